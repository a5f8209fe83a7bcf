"""The variables: every one parses its default, refuses what its grammar excludes, and is never passed over in silence."""

from __future__ import annotations

import json
import math

import pytest

from backends.config import DecodeConfig, Request
from backends.decode.slop import DEFAULT, OFF, Knobs
from backends.decode.window import PCum
from backends.errors import BadValue
from strata_cli import environment
from strata_cli.environment import BY_NAME, VARIABLES
from strata_cli.options import GENERATION
from tests.strata_cli.conftest import Cli
from tests.strata_cli.surface import GOLDEN, surface

MALFORMED = {
    "STRATA_MODEL": ["nothing-of-that-name", "folder/none.gguf"],
    "STRATA_BACKEND": ["cuda2", "OpenCL", "opencl,numpy"],
    "STRATA_KV": ["int3", "F16"],
    "STRATA_CTX": ["0", "1", "-1", "4k", "4096.0", "1e3", "2147483648", "9" * 5000],
    "STRATA_MAX_NEW": ["0", "-2", "ten", "1.5", "1_000", "٣", "2147483648"],
    "STRATA_TEMPERATURE": ["-0.1", "nan", "inf", "-inf", "1e400", "100.1", "0,7", "0x1", "1_0"],
    "STRATA_TOP_K": ["-1", "1.5", "all", "2147483648"],
    "STRATA_TOP_P": ["-0.1", "1.1", "nan", "95%"],
    "STRATA_MIN_P": ["-0.1", "1.1", "nan", "."],
    "STRATA_REPEAT_PENALTY": ["0", "-1", "101", "nan"],
    "STRATA_REPEAT_LAST_N": ["-2", "1.5", "all"],
    "STRATA_PRESENCE_PENALTY": ["-101", "101", "nan"],
    "STRATA_FREQUENCY_PENALTY": ["-101", "101", "inf"],
    "STRATA_SEED": ["-1", "18446744073709551616", "1.0", "none"],
    "STRATA_LOGIT_BIAS": ["5", "=1", "5=", "-1=2", "5=nan", "5=inf", "5=1e10", "5=1,5=2", "5=1,", "a=1", "9999999999=1"],
    "STRATA_STOP": ["[", '[""]', "[1]", '["a"', "[" * 100_000],
    "STRATA_IGNORE_EOS": ["maybe", "ON", "2"],
    "STRATA_SPEC": ["-1", "9", "1.5", "x"],
    "STRATA_SPEC_MIN_P": ["-0.1", "1.1", "nan", "50%"],
    "STRATA_SPEC_PCUM": ["x", "1.1", "-0.1", "nan", ",", "0.5,", "0.5,0.4,100", "0.5,0.4,200,100", "0.5,0.4,-1,5", "0.5,0.4,1.5,5", "1,1,1,1,1"],
    "STRATA_MTP": ["ON", "true", "nowhere.gguf"],
    "STRATA_DRAFT_VOCAB": ["nowhere.bin", "smollm2-e", "on"],
    "STRATA_SLOP": ["on", "1", "dash", "dash=", "dash=x", "dash=-1", "dash=21", "dash=nan", "dahs=1", "dash=1,dash=2", "dash=1,", ",", "OFF"],
    "STRATA_SLOP_LEXICON": ["nowhere.txt", "tests", "off"],
    "STRATA_SLOP_OPENERS": ["nowhere.txt", "tests", "off"],
    "STRATA_METAL_MTP_SLOP": ["on", "off", "2", "yes", "01", "0.0"],
    "STRATA_CACHE": ["setup.cfg"],
    "STRATA_DATA": ["/nowhere/at/all", "setup.cfg"],
    "STRATA_PREFILL_CHUNK": ["0", "513", "auto"],
    "STRATA_WORK_GROUPS": ["0", "1025"],
    "STRATA_INSTRUCTIONS": ["vnni"],
    "STRATA_KERNEL_SHAPE": ["tpu", "GPU"],
    "STRATA_LAUNCH": ["persistent"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in MALFORMED.items() for value in values], ids=lambda text: text[:40])
def test_malformed(cli: Cli, name: str, value: str) -> None:
    if name == "STRATA_CACHE":
        value = cli.model  # a file where a folder should be
    args = ["generate", "hi"] + ([] if name == "STRATA_MODEL" else ["-m", cli.model])
    if len(value) > 10_000:
        with pytest.raises(BadValue, match=name):
            environment.read({name: value})
        return
    outcome = cli(*args, env={name: value})
    assert outcome.code == 2
    assert outcome.error.startswith(f"{name}: ")
    assert value[:20] in outcome.error
    assert cli.script.opened == []


def test_every_variable_but_the_device_has_a_malformed_case() -> None:
    assert {*MALFORMED, "STRATA_DEVICE"} == set(BY_NAME)


def test_malformed_names_the_grammar(cli: Cli) -> None:
    assert cli.generate("hi", env={"STRATA_KV": "int3"}).error == "STRATA_KV: 'int3' is not allowed; allowed: f16"


def test_a_flag_does_not_hide_a_malformed_variable(cli: Cli) -> None:
    assert cli.generate("hi", "--max-new", "5", env={"STRATA_MAX_NEW": "many"}).code == 2


@pytest.mark.parametrize("blank", ["", "  ", "\t\n"])
@pytest.mark.parametrize("name", [variable.name for variable in VARIABLES if variable.name != "STRATA_MODEL"])
def test_blank_is_unset(cli: Cli, name: str, blank: str) -> None:
    assert cli.generate("hi", env={name: blank}).code == 0


def test_blanks_are_trimmed(cli: Cli) -> None:
    cli.generate("hi", env={"STRATA_MAX_NEW": "  7\t"})
    assert cli.script.requests[0].max_new == 7


def test_unknown_names_warn_with_the_nearest(cli: Cli) -> None:
    outcome = cli.generate("hi", env={"STRATA_MAXNEW": "7", "STRATA_QQQQQQ": "1", "STRATA_EMPTY": " "})
    assert outcome.code == 0
    assert outcome.err.splitlines()[:2] == [
        "strata: warning: STRATA_MAXNEW is no variable of strata; nearest: STRATA_MAX_NEW",
        "strata: warning: STRATA_QQQQQQ is no variable of strata",
    ]


def test_defaults_are_the_engines() -> None:
    config, request = DecodeConfig(), Request(prompt="hi")
    values = {variable.key: variable.value for variable in VARIABLES}
    same = ("backend", "device", "kv", "ctx", "prefill-chunk", "work-groups", "instructions", "launch", "kernel-shape")
    assert values["slop"] == (config.slop or OFF)
    assert values["metal-mtp-slop"] == config.mtp_slop
    for key in (*same, "spec", "spec-min-p", "mtp", "draft-vocab", "slop-lexicon", "slop-openers"):
        assert values[key] == getattr(config, key.replace("-", "_")), key
    assert values["seed"] == request.seed
    for name in GENERATION:
        assert values[name.replace("_", "-")] == getattr(request, name), name


def test_special_values() -> None:
    values = environment.read(
        {
            "STRATA_CTX": "auto",
            "STRATA_MAX_NEW": "-1",
            "STRATA_SEED": "18446744073709551615",
            "STRATA_LOGIT_BIAS": " 5 = -inf , 6=+2.5",
            "STRATA_STOP": '["\\n\\n", "[x"]',
            "STRATA_CACHE": "off",
            "STRATA_TEMPERATURE": "-0",
            "STRATA_SPEC_PCUM": " 0.9 , 0.5,100,200",
            "STRATA_SLOP": " dash = 1.5 ,opener=20",
            "STRATA_METAL_MTP_SLOP": "1",
        }
    )
    assert values["ctx"] is None
    assert values["max-new"] == -1
    assert values["seed"] == 2**64 - 1
    assert values["logit-bias"] == {5: -math.inf, 6: 2.5}
    assert values["stop"] == ("\n\n", "[x")
    assert values["cache"] is None
    assert values["spec-pcum"] == PCum(0.9, 0.5, 100, 200)
    assert values["slop"] == Knobs(dash=1.5, opener=20)
    assert values["metal-mtp-slop"] is True
    assert [environment.read({"STRATA_SLOP": text})["slop"] for text in ("default", "off", "dash=0")] == [DEFAULT, OFF, OFF]
    assert math.copysign(1, values["temperature"]) == 1


def test_surface_is_the_recorded_one() -> None:
    """Names and defaults never change silently; `python -m tests.strata_cli.surface` records a change that is meant."""
    assert surface() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_reference_names_everything() -> None:
    text = (GOLDEN.parent.parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    flags = {flag for command in surface()["commands"].values() for names in command for flag in names.split() if flag.startswith("-")}
    assert [name for name in (*BY_NAME, *sorted(flags)) if f"`{name}" not in text and f"{name}`" not in text] == []
