"""Drafts through the command line on the real engine, with tiny models on NumPy."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata_cli.main import main
from tests.tiny import write_tiny_drafter, write_tiny_llama

Run = Any


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "plain": str(write_tiny_llama(folder / "plain.gguf")),
        "own": str(write_tiny_llama(folder / "own.gguf", nextn=True)),
        "drafter": str(write_tiny_drafter(folder / "drafter.gguf")),
        "other": str(write_tiny_drafter(folder / "other.gguf", n_embd=128)),
    }


@pytest.fixture
def run(models: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`strata generate` with 24 tokens; gives exit code, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith("STRATA_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "APPDATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))

    def generate(model: str, *args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            common = ("generate", "--raw", "abc def", "-m", models[model], "--backend", "numpy", "-n", "24", "--seed", "1", "--ignore-eos")
            code = main([*common, *(models.get(arg, arg) for arg in args)])
        out, err = capsys.readouterr()
        return code, out, err

    return generate


def test_drafts_never_change_the_text(run: Run, tmp_path: Path) -> None:
    code, plain, err = run("own", "--no-mtp")
    assert code == 0 and "1.00 tokens per round" in err and "drafts" not in err
    assert run("plain")[1] == plain
    np.array([*range(3, 60)], "<i4").tofile(tmp_path / "vocabulary.bin")
    trace = tmp_path / "trace.jsonl"
    for args, env in (
        (("--spec-min-p", "0"), None),
        (("--spec", "8", "--spec-min-p", "0", "--trace", str(trace)), {"STRATA_SPEC_PCUM": "0.0001,0.5,10,20"}),
        (("--spec-min-p", "0", "--draft-vocab", str(tmp_path / "vocabulary.bin")), None),
        (("--spec-min-p", "0", "--mtp-model", "drafter", "--spec-corrupt", "2"), None),
    ):
        code, out, err = run("own", *args, env=env)
        assert (code, out) == (0, plain), args
        assert "drafts accepted " in err, args
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    assert sum(len(made["tokens"]) for made in rounds) == 24
    assert [made["depth"] for made in rounds[1:]] == [made["next_depth"] for made in rounds[:-1]]
    assert all(made["rows"] == 1 + before["kept"] for before, made in itertools.pairwise(rounds))
    assert rounds[-1]["threshold"] == 0.5


def test_an_oracle_is_accepted_whole(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("plain", "--json")
    assert code == 0
    (tmp_path / "oracle.json").write_text(out)
    found = json.loads(run("plain", "--json", "--spec", "8", "--spec-oracle", str(tmp_path / "oracle.json"))[1])
    assert found["text"] == json.loads(out)["text"]
    assert found["speculation"]["accepted"] == found["speculation"]["drafted"] > 12
    assert (found["settings"]["spec"], found["settings"]["spec_oracle"], found["settings"]["mtp"]) == (8, True, False)
    wrong = json.loads(run("plain", "--json", "--spec-oracle", str(tmp_path / "oracle.json"), "--spec-corrupt", "1")[1])
    assert wrong["text"] == found["text"]
    assert wrong["speculation"]["accepted"] == 0 < wrong["speculation"]["drafted"]


def test_a_window_without_a_drafter_is_one_warning(run: Run, models: dict[str, str]) -> None:
    code, _, err = run("plain", "--spec", "4")
    assert code == 0
    assert [line for line in err.splitlines() if "warning: " in line and "spec" in line] == [
        f"strata: warning: --spec 4: {models['plain']} has no MTP layer to draft with; decoding plainly"
    ]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--mtp",), 2, "plain.gguf has no MTP layer (nextn tensors) to draft with; --mtp needs one, or a file with one by --mtp-model"),
        (("--mtp-model", "plain"), 1, "plain.gguf: the file has no MTP layer"),
        (("--mtp-model", "other"), 1, "other.gguf: the drafter's embedding length is 128, that of its target"),
        (("--mtp-model", "drafter", "--draft-vocab", "smollm2-en"), 1, "smollm2-en.bin: id "),
    ],
)
def test_what_cannot_draft(run: Run, args: tuple[str, ...], code: int, says: str) -> None:
    found = run("plain", *args)
    assert found[:2] == (code, "")
    (error,) = [line for line in found[2].splitlines() if "warning" not in line]
    assert error.startswith("strata: error: ") and says in error
