"""`strata draft-vocab`."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata_cli.scripts import CHOICES, script_of
from strata_cli.vocabulary import choose
from tests.strata_cli.conftest import Cli, Outcome
from tests.tiny import IM_END, write_tiny_llama

N_VOCAB = 300
CONTROL = [0, 1, 2]  # IM_END, an END id, among them


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", n_vocab=N_VOCAB))


def encode(model: str, text: str) -> list[int]:
    from backends.model.gguf import GGUFFile
    from backends.model.tokenizer import Tokenizer

    return Tokenizer.from_gguf(GGUFFile.open(model)).encode(text, special=False)


def ids_of(path: Path) -> list[int]:
    return np.fromfile(path, "<i4").tolist()  # type: ignore[no-any-return]


def save(path: Path, ids: list[int]) -> str:
    np.array(ids, "<i4").tofile(path)
    return str(path)


@pytest.fixture
def build(cli: Cli, model: str, tmp_path: Path) -> Any:
    """Builds from a text; gives the ids and the report."""
    text = tmp_path / "corpus.txt"

    def run(corpus: str | None, *args: str) -> tuple[list[int], dict[str, Any]]:
        files = [] if corpus is None else [str(text)]
        if corpus is not None:
            text.write_text(corpus, encoding="utf-8")
        outcome = cli("draft-vocab", "build", *files, "-m", model, "-o", str(tmp_path / "out.bin"), "--json", *args)
        assert outcome.code == 0, outcome.err
        return ids_of(tmp_path / "out.bin"), json.loads(outcome.out)

    return run


def test_every_token_of_the_corpus(build: Any, model: str) -> None:
    corpus = "the aardvark and the 12 others, etc.\n"
    ids, report = build(corpus)
    tokens = encode(model, corpus.removesuffix("\n"))
    assert ids == sorted({*CONTROL, *tokens})
    assert (report["ids"], report["n_vocab"], report["end_ids_missing"]) == (len(ids), N_VOCAB, [])
    assert IM_END in report["end_ids"]
    assert report["coverage"] == {"tokens": len(tokens), "covered": len(tokens), "share": 1.0}


def test_size_takes_the_most_frequent(build: Any, model: str, cli: Cli) -> None:
    a, b, c = (encode(model, letter)[0] for letter in "zxq")
    ids, report = build("zzzzxxxqq", "--size", "5")
    assert ids == sorted([*CONTROL, a, b])
    assert report["coverage"]["covered"] == 7
    assert build("zzxxqq", "--size", "5")[0] == sorted([*CONTROL, *sorted([a, b, c])[:2]])  # equally frequent: the lowest ids
    assert build("zzzzxxxqq", "--size", "100")[0] == sorted([*CONTROL, a, b, c])


def test_coverage_takes_as_few_as_hold_it(build: Any, model: str) -> None:
    a, b, c = (encode(model, letter)[0] for letter in "zxq")
    corpus = "zzzzzxxxqq"
    for share, ids in (("0.5", [a]), ("0.51", [a, b]), ("0.8", [a, b]), ("0.81", [a, b, c]), ("1", [a, b, c])):
        assert build(corpus, "--coverage", share)[0] == sorted([*CONTROL, *ids]), share


def test_scripts_and_base_are_added(build: Any, model: str, tmp_path: Path) -> None:
    latin, report = build(None, "--script", "latin")
    assert set(encode(model, "the quick")) - set(encode(model, " ")) <= set(latin)
    assert set(report["scripts"]) == {"latin", "control"}
    assert report["coverage"] is None
    base = save(tmp_path / "base.bin", [250, 7, 8])
    assert build(None, "--base", base)[0] == sorted([*CONTROL, 7, 8, 250])
    (z,) = encode(model, "z")
    assert build("zz", "--base", base, "--size", "7")[0] == sorted([*CONTROL, 7, 8, 250, z])
    assert not set(encode(model, "a")) & set(build(None, "--script", "common")[0])


def test_results_of_a_batch_are_a_corpus(cli: Cli, model: str, tmp_path: Path) -> None:
    results = tmp_path / "out.jsonl"
    results.write_text('{"id": 1, "text": "zz", "token_ids": [9]}\n{"id": 2, "error": "no"}\n\n{"id": 3, "text": "x"}\n')
    assert cli("draft-vocab", "build", str(results), "-m", model, "-o", str(tmp_path / "v.bin")).code == 0
    assert ids_of(tmp_path / "v.bin") == sorted({*CONTROL, *encode(model, "zz"), *encode(model, "x")})
    results.write_text('{"id": 1, "text": "zz"}\n{"id": 1}\n')
    outcome = cli("draft-vocab", "build", str(results), "-m", model, "-o", str(tmp_path / "v.bin"))
    assert (outcome.code, outcome.error) == (2, f'CORPUS: {results}, line 2: not an object with "text", such as `strata batch` writes')
    results.write_text("zz\n")
    assert "line 1: not JSON" in cli("draft-vocab", "build", str(results), "-m", model, "-o", str(tmp_path / "v.bin")).error


def test_a_long_corpus_is_counted_whole(build: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = "the theory\nof it all\n" * 30
    whole = build(corpus)[1]["coverage"]
    monkeypatch.setattr("strata_cli.corpus._PIECE", 50)
    assert build(corpus)[1]["coverage"] == whole


def test_show(cli: Cli, model: str, tmp_path: Path) -> None:
    z, x = (encode(model, letter)[0] for letter in "zx")
    file = save(tmp_path / "v.bin", [z, IM_END])
    (tmp_path / "text").write_text("zzzx")
    outcome = cli("draft-vocab", "show", file, "-m", model, "--text", str(tmp_path / "text"))
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == f"{file}: 2 of {N_VOCAB} ids"
    assert lines[1] == "by script: latin 1, control 1"
    assert lines[2].startswith("END ids: 2 <|im_end|>; not in it: ")
    assert lines[3] == f"coverage of {tmp_path / 'text'}: 75.00% (3 of 4 tokens)"
    found = json.loads(cli("draft-vocab", "show", file, "-m", model, "--json").out)
    assert (found["file"], found["ids"], found["scripts"], found["coverage"]) == (file, 2, {"latin": 1, "control": 1}, None)
    assert x not in ids_of(Path(file))


def test_show_by_name(cli: Cli, model: str, tmp_path: Path) -> None:
    (tmp_path / "draft-vocab").mkdir()
    save(tmp_path / "draft-vocab" / "mine.bin", [5])
    environ = {"STRATA_DATA": str(tmp_path), "STRATA_MODEL": model}
    assert cli("draft-vocab", "show", "mine", env=environ).out.startswith("mine: 1 of ")
    outcome = cli("draft-vocab", "show", "mime", env=environ)
    assert (outcome.code, outcome.error) == (
        2,
        "FILE: there is no file 'mime'; nearest: mine; allowed: a file of token ids, or of the bundled ones mine",
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes are no draft vocabulary"),
        (b"\0" * 7, "7 bytes are no draft vocabulary"),
        (np.array([4, 5, 4], "<i4").tobytes(), "id 4 is there 2 times; wanted each once"),
        (np.array([4, 300], "<i4").tobytes(), "id 300 (entry 1) is not of the model's vocabulary; wanted 0..299"),
        (np.array([-1], "<i4").tobytes(), "id -1 (entry 0) is not of the model's vocabulary"),
    ],
)
def test_files_that_are_none(cli: Cli, model: str, tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "v.bin"
    file.write_bytes(content)
    for args in (["show", str(file)], ["build", "--base", str(file), "-o", str(tmp_path / "out.bin")]):
        outcome = cli("draft-vocab", *args, "-m", model)
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.error.startswith(f"{file}: ") and says in outcome.error
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "CORPUS: no file is given"),
        (["--size", "5"], "CORPUS: no file is given"),
        (["--script", "latin", "--coverage", "0.5"], "CORPUS: no file is given"),
        (["TEXT", "--size", "5", "--coverage", "0.5"], "--size and --coverage are both given; leave one out"),
        (["TEXT", "--size", "0"], "--size: '0' is not allowed"),
        (["TEXT", "--size", "2"], "--size: 2 is not allowed; allowed: at least 3, the ids that are always in"),
        (["TEXT", "--coverage", "0"], "--coverage: '0' is not allowed; allowed: a number above 0, to 1"),
        (["TEXT", "--coverage", "99%"], "--coverage: '99%' is not allowed"),
        (["TEXT", "--script", "klingon"], "--script: 'klingon' is not allowed; allowed: latin, "),
        (["TEXT", "--base", "nothing"], "--base: there is no file 'nothing'"),
        (["nothing.txt"], "CORPUS: nothing.txt: No such file or directory"),
        (["EMPTY"], "CORPUS: {EMPTY}: there is no text"),
        (["TEXT", "-m", "nothing.gguf"], "--model: there is no file"),
    ],
)
def test_bad_input(cli: Cli, model: str, tmp_path: Path, args: list[str], says: str) -> None:
    (tmp_path / "text").write_text("zx")
    (tmp_path / "empty").touch()
    names = {"TEXT": str(tmp_path / "text"), "EMPTY": str(tmp_path / "empty")}
    outcome = cli("draft-vocab", "build", "-m", model, "-o", str(tmp_path / "v.bin"), *(names.get(arg, arg) for arg in args))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error.startswith(says.format(**names))
    assert not (tmp_path / "v.bin").exists()


def test_where_it_may_go(cli: Cli, model: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("zx")

    def to(path: str) -> Outcome:
        return cli("draft-vocab", "build", str(text), "-m", model, "-o", path)

    for path in ("-", str(tmp_path), str(tmp_path / "none" / "v.bin"), os.devnull):
        outcome = to(path)
        assert (outcome.code, outcome.error) == (2, f"-o: {path!r} is not allowed; allowed: a file in a folder that exists")
    assert to(str(text)).error == f"-o: {text} is one of the corpus files"
    assert text.read_text() == "zx"
    for _ in range(2):  # an older one is replaced
        assert to(str(tmp_path / "v.bin")).code == 0
    if os.name == "posix":
        assert stat.S_IMODE(os.stat(tmp_path / "v.bin").st_mode) == stat.S_IMODE(os.stat(text).st_mode)
    assert sorted(path.name for path in tmp_path.glob("*v.bin*")) == ["v.bin"]


def test_scripts() -> None:
    assert {"latin", "cyrillic", "greek", "cjk", "common", "bytes"} <= set(CHOICES)
    examples = {
        " Étude": "latin", "Ωμέγα": "greek", " привет": "cyrillic", "中": "cjk", "かな": "cjk", "한": "cjk", " 12,\n": "common", "": "common",
        "aя": "mixed", "ᚠ": "other", "हिन्दी": "devanagari",
    }  # fmt: skip
    assert {text: script_of(text.encode()) for text in examples} == examples
    assert script_of("я".encode()[:1]) == "bytes"


def test_choose_keeps_what_is_needed() -> None:
    counts = np.array([0, 5, 3, 3, 0, 1])
    assert choose(counts, np.array([4]), 3, None).tolist() == [1, 2, 4]
    assert choose(counts, np.array([1, 5]), None, 0.5).tolist() == [1, 5]
    assert choose(counts, np.array([4]), None, None).tolist() == [1, 2, 3, 4, 5]
