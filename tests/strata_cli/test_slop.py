"""`strata slop`, and --slop in requests, results and manifests."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from backends.decode.slop import DEFAULT, OFF, Knobs
from tests.strata_cli.conftest import Cli
from tests.tiny import write_tiny_llama

TEXT = "Certainly! Here is a tapestry — a testament to life.\n- a — b\n- b **x**\n\n```\n- — delve\n```\n"


@pytest.fixture
def show(cli: Cli, smollm2_path: Path) -> Any:
    def run(*args: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        outcome = cli("slop", "show", "-m", str(smollm2_path), "--json", *args, stdin=stdin)
        assert outcome.code == 0, outcome.err
        found: list[dict[str, Any]] = json.loads(outcome.out)["tokens"]
        return found

    return run


def test_show(cli: Cli, smollm2_path: Path) -> None:
    outcome = cli("slop", "show", "-m", str(smollm2_path), "Sure — yes — no\n")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "token  text    classes         state                    lowered by",
        "34355  'Sure'  OPENER VISIBLE  prose LC d0 r0 h0 B0 v0  2",
        "1841   ' —'    DASH VISIBLE    prose - d0 r0 h0 B0 v1   1.5",
        "9805   ' yes'  VISIBLE         prose - d1 r0 h0 B0 v2",
        "1841   ' —'    DASH VISIBLE    prose - d1 r0 h0 B0 v3   3",
        "787    ' no'   VISIBLE         prose - d2 r0 h0 B0 v4",
        "198    '\\n'    NEWLINE         prose - d2 r0 h0 B0 v5",
    ]


def test_show_as_json(show: Any, cli: Cli, tmp_path: Path) -> None:
    first, second = show("a —", "--slop", "dash=4")
    assert first["amount"] == 0 and first["classes"] == ["VISIBLE"]
    state = {"state": "prose - d0 r0 h0 B0 v1", "after": "prose - d1 r0 h0 B0 v2"}
    assert second == {"token": 1841, "text": " —", "mask": 0x10008, "classes": ["DASH", "VISIBLE"], "amount": 4, **state}
    assert [one["amount"] for one in show("a —", "--slop", "off")] == [0, 0]
    path = tmp_path / "text.txt"
    path.write_text("a —\n", encoding="utf-8")
    assert show(str(path)) == show("-", stdin="a —".encode()) == show("a —")
    assert show("delve<|im_end|>")[-1]["classes"] == ["END"]


def test_show_in_colour(cli: Cli, smollm2_path: Path) -> None:
    outcome = cli("slop", "show", "-m", str(smollm2_path), "Sure \x1b[1m", terminal=True)
    assert outcome.code == 0
    assert "34355" in outcome.out and "OPENER VISIBLE" in outcome.out


def test_count(cli: Cli, smollm2_path: Path, tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text(TEXT, encoding="utf-8")
    lines.write_text("".join(json.dumps({"id": n, "text": TEXT}) + "\n" for n in (1, 2)) + '{"id": 3, "error": "x"}\n', encoding="utf-8")
    outcome = cli("slop", "count", "-m", str(smollm2_path), str(text), str(lines), "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert report["files"] == [str(text), str(lines)]
    assert report["counts"] == {"dashes": 6, "phrases": 6, "openers": 6, "bullet_lines": 6, "headings": 0, "bold": 3, "emoji": 0}
    assert report["found"] == {"tapestry": 3, "testament to": 3, "certainly": 3, "here is": 3}
    assert report["texts"] == 3 and 0 < report["prose_tokens"] < report["tokens"]
    assert report["per_1000"]["dashes"] == round(6000 / report["tokens"], 3)
    table = cli("slop", "count", "-m", str(smollm2_path), str(text)).out.splitlines()
    assert table[0] == "mannerism     count  per 1,000 tokens"
    assert table[-1].endswith("prose, in 1 texts; tapestry 1, testament to 1, certainly 1, here is 1")


def test_a_first_piece_alone_is_no_phrase(cli: Cli, smollm2_path: Path, tmp_path: Path) -> None:
    """The policy has to penalise "testament" before it knows what follows; counting need not."""
    path = tmp_path / "a.txt"
    path.write_text("The old testament. A delves-like thing. Testament\nto it.", encoding="utf-8")
    report = json.loads(cli("slop", "count", "-m", str(smollm2_path), str(path), "--json").out)
    assert report["found"] == {"testament to": 1, "delves": 1}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("show",), "Missing argument"),
        (("show", ""), "TEXT: the text is empty"),
        (("show", "x", "--slop", "dahs=1"), "--slop: 'dahs=1' is not allowed (no knob 'dahs'); allowed: off, default, or any of dash, lexical"),
        (("show", "x", "--slop-lexicon", "none.txt"), "--slop-lexicon: 'none.txt' is not allowed (no such file)"),
        (("count", "none.txt"), "FILE: none.txt: No such file"),
        (("count",), "Missing argument"),
        (("show", "."), "FILE: .: Is a directory"),
        (("show", "/dev/null"), "FILE: /dev/null: the text is empty"),
        (("show", "-"), "standard input: the text is empty"),
        (("show", "x", "--slop", "dash=" + "9" * 10**5), "(dash is '9999"),
        (("show", "x", "--slop", "d" * 10**5 + "=1"), "(no knob 'dddd"),
    ],
)
def test_mistakes(cli: Cli, smollm2_path: Path, args: tuple[str, ...], says: str) -> None:
    outcome = cli("slop", args[0], "-m", str(smollm2_path), *args[1:])
    assert outcome.code == 2
    assert says in outcome.error and len(outcome.error) < 500


def test_no_command_says_which_there_are(cli: Cli) -> None:
    for group, commands in (("slop", "count, show"), ("draft-vocab", "build, show")):
        outcome = cli(group)
        assert outcome.code == 2
        assert outcome.error == f"a command is missing; allowed: {commands}; see `strata {group} --help`"


def test_what_show_reads(cli: Cli, smollm2_path: Path, tmp_path: Path, show: Any) -> None:
    """Whatever is there, pipes too; the name of nothing is a text, with a word about it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a —",), kwargs={"encoding": "utf-8"})
    writer.start()
    assert show(str(pipe)) == show("a —")
    writer.join()
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"na\xefve")
    assert f"FILE: {latin}: not UTF-8 at byte 2 (0xef); the text must be UTF-8" in cli("slop", "show", "-m", str(smollm2_path), str(latin)).error
    for text, told in (("notes.txt", True), ("no/where", True), ("Well. yes", False), ("Certainly!", False)):
        outcome = cli("slop", "show", "-m", str(smollm2_path), text)
        assert outcome.code == 0 and (f"there is no file {text!r}" in outcome.err) == told


@pytest.mark.parametrize("slop", ["off", "dash=0"])
def test_show_knows_that_the_policy_was_put_off(cli: Cli, smollm2_path: Path, slop: str) -> None:
    outcome = cli("slop", "show", "-m", str(smollm2_path), "--json", "a —", env={"STRATA_SLOP": slop})
    assert json.loads(outcome.out)["slop"] == "off"


def test_count_reads_standard_input_and_passes_over_errors(cli: Cli, smollm2_path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "b.JSONL"
    lines.write_text('{"error": "x", "text": null}\n{"error": "x", "text": 5}\n{"text": "Well \u2014"}\n', encoding="utf-8")
    report = json.loads(cli("slop", "count", "-m", str(smollm2_path), "--json", str(lines), "-", stdin="so — so".encode()).out)
    assert report["texts"] == 2 and report["counts"]["dashes"] == 2


def test_long_texts_are_taken_in_pieces(cli: Cli, smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same counts, as the state goes on: here the fence that was open at a cut."""
    path = tmp_path / "a.txt"
    path.write_text(TEXT * 9, encoding="utf-8")
    args = ("slop", "count", "-m", str(smollm2_path), "--json", str(path))
    whole = json.loads(cli(*args).out)
    monkeypatch.setattr("strata_cli.corpus._PIECE", 50)
    monkeypatch.setattr("strata_cli.slop_report.AT_ONCE", 17)
    pieces = json.loads(cli(*args).out)
    assert pieces["counts"]["dashes"] == whole["counts"]["dashes"] == 18
    assert pieces["counts"]["bullet_lines"] == whole["counts"]["bullet_lines"] == 18


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff", "not UTF-8 at byte 0"), (b"in conclusion", "no token of the model starts 'in conclusion'"), (b"a\na", "lines 1 and 2 are both 'a'")],
)
def test_lists_that_do_not_fit(cli: Cli, smollm2_path: Path, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(content)
    outcome = cli("slop", "show", "-m", str(smollm2_path), "x", "--slop-openers", str(path))
    assert outcome.code == 2 and says in outcome.error


def test_an_empty_text(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.touch()
    lists = ("--slop-lexicon", str(path), "--slop-openers", str(path))
    model = str(write_tiny_llama(tmp_path / "tiny.gguf", n_vocab=300))
    assert "there is no text" in cli("slop", "count", "-m", model, *lists, str(path)).error


def test_settings_reach_the_engine(cli: Cli, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.touch()
    assert cli.generate("hi").code == 0
    env = {"STRATA_SLOP": "dash=1", "STRATA_METAL_MTP_SLOP": "1", "STRATA_SLOP_OPENERS": str(words)}
    assert cli.generate("hi", "--slop", "default", "--slop-lexicon", str(words), env=env).code == 0
    assert cli.generate("hi", "--slop", "dash=0", env=env).code == 0
    off, on, zero = (config for _, config in cli.script.opened)
    assert (off.slop, off.mtp_slop) == (None, False)
    assert off.slop_lexicon is not None and off.slop_lexicon.endswith("slop_lexicon.txt")
    assert (on.slop, on.mtp_slop, on.slop_lexicon, on.slop_openers) == (DEFAULT, True, str(words), str(words))
    assert zero.slop is None


def test_json_names_the_knobs(cli: Cli) -> None:
    settings = json.loads(cli.generate("hi", "--json", "--slop", "dash=1").out)["settings"]
    assert settings["slop"] == "dash=1" and settings["slop_openers"].endswith("slop_openers.txt") and settings["mtp_slop"] is False
    settings = json.loads(cli.generate("hi", "--json").out)["settings"]
    assert (settings["slop"], settings["slop_lexicon"], settings["slop_openers"]) == ("off", None, None)


def test_data_folder_without_lists(cli: Cli, tmp_path: Path) -> None:
    """They are missed only where they are used."""
    env = {"STRATA_DATA": str(tmp_path)}
    assert cli.generate("hi", env=env).code == 0
    assert cli.script.opened[0][1].slop_lexicon is None
    outcome = cli.generate("hi", "--slop", "default", env=env)
    assert outcome.code == 1 and "slop_lexicon.txt: no such file" in outcome.error
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "prompt": "hi", "slop": "dash=1"}\n{"id": 2, "prompt": "hi", "slop": "off"}\n', encoding="utf-8")
    assert cli("batch", str(source), "-o", str(tmp_path / "out.jsonl"), "-m", cli.model, "-q", env=env).code == 1
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert first["error"].startswith("slop: ") and first["error"].endswith("which STRATA_DATA can name, lacks it")
    assert "error" not in second


def _batch(cli: Cli, tmp_path: Path, *args: str, requests: list[dict[str, Any]]) -> Any:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
    return cli("batch", str(source), "-o", str(tmp_path / "out.jsonl"), "-m", cli.model, "-q", *args)


def test_requests_have_their_own(cli: Cli, tmp_path: Path) -> None:
    values = [None, "off", "default", "dash=1, opener=2", "dahs=1", 1, ""]
    requests = [{"id": n, "prompt": "hi"} | ({} if value is None else {"slop": value}) for n, value in enumerate(values)]
    assert _batch(cli, tmp_path, "--slop", "dash=3", requests=requests).code == 1
    assert [request.slop for request in cli.script.requests] == [None, OFF, DEFAULT, Knobs(dash=1, opener=2)]
    assert cli.script.opened[0][1].slop == Knobs(dash=3)
    errors = [json.loads(line).get("error", "") for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert errors[:4] == [""] * 4
    assert errors[4].startswith("slop: 'dahs=1' is not allowed (no knob 'dahs'); allowed: off, default, or any of dash")
    assert errors[5].startswith("slop: 1 is not allowed") and errors[6].startswith("slop: '' is not allowed")


def test_a_batch_goes_on_with_the_same_policy_only(cli: Cli, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("delve\n", encoding="utf-8")
    lists = ("--slop-lexicon", str(words))
    requests = [{"id": 1, "prompt": "hi"}]
    assert _batch(cli, tmp_path, "--slop", "default", *lists, requests=requests).code == 0
    requests.append({"id": 2, "prompt": "ho"})
    assert "--slop: " in _batch(cli, tmp_path, "--slop", "dash=1", *lists, requests=requests).error
    words.write_text("realm\n", encoding="utf-8")
    assert "--slop-lexicon: " in _batch(cli, tmp_path, "--slop", "default", *lists, requests=requests).error
    words.write_text("delve\n", encoding="utf-8")
    knobs = "opener=2,structure=0.5,lexical=2,dash=1.5"
    outcome = cli("batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "-m", cli.model, "-q", "--slop", knobs, *lists,
                  env={"STRATA_METAL_MTP_SLOP": "1"})  # fmt: skip
    assert outcome.code == 0, outcome.err
