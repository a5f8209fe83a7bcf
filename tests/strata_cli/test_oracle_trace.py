"""`strata generate --spec-oracle`, `--spec-corrupt` and `--trace`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from backends.config import RoundTrace
from tests.strata_cli.conftest import Cli

TRACES = [
    RoundTrace(10, 1, (5,), (7, 8, 9), (0.9, 0.8, 0.25), 2, 11, 0.18, 0.2, 1.23456),
    RoundTrace(11, 3, (7, 8, 4), (-1,), (math.nan,), 0, 14, math.nan, None, 2.0),
]


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (b'{"text": "x", "token_ids": [3, 1, 2], "usage": {}}\n', (3, 1, 2)),
        (b'\xef\xbb\xbf{"token_ids": [3]}', (3,)),
        (b"four words of text\n", (4, 5, 2, 4)),
        (b'{"a": 1}', (5, 2)),  # a text that happens to be JSON
        (b"{not json", (4, 4)),
    ],
)
def test_what_an_oracle_may_be(cli: Cli, tmp_path: Path, content: bytes, ids: tuple[int, ...]) -> None:
    (tmp_path / "oracle").write_bytes(content)
    assert cli.generate("hi", "--spec-oracle", str(tmp_path / "oracle"), "--spec-corrupt", "3").code == 0
    request, config = cli.script.requests[0], cli.script.opened[0][1]
    assert (request.oracle, request.corrupt) == (ids, 3)
    assert (config.mtp, config.spec) == (False, 4)  # no layer is loaded for nothing


@pytest.mark.parametrize(
    ("content", "args", "says"),
    [
        (b"", [], "the file is empty"),
        (b"\n", [], "the file is empty"),
        (b"\xff", [], "not UTF-8 at byte 0 (0xff); a continuation must be UTF-8 text"),
        (b'{"token_ids": "x"}', [], "its token_ids are not a list of token ids"),
        (b'{"token_ids": [1, true]}', [], "its token_ids are not a list of token ids"),
        (b'{"token_ids": [-1]}', [], "its token_ids are not a list of token ids"),
        (b'{"token_ids": []}', [], "its token_ids are empty"),
        (b'{"token_ids": [99, 100]}', [], "token id 100 is not allowed; allowed: 0 to 99"),
        (b"text", ["--mtp"], "--spec-oracle and --mtp are both given; only one of them can draft, leave one out"),
        (b"text", ["--spec", "1"], "--spec-oracle: a window of 1 has no room for drafts; --spec 2 to 8 has"),
    ],
)
def test_bad_oracles(cli: Cli, tmp_path: Path, content: bytes, args: list[str], says: str) -> None:
    (tmp_path / "oracle").write_bytes(content)
    outcome = cli.generate("hi", "--spec-oracle", str(tmp_path / "oracle"), *args)
    assert outcome.code == 2
    assert outcome.error.startswith("--spec-oracle") and says in outcome.error
    assert cli.script.requests == []


def test_an_oracle_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        outcome = cli.generate("hi", "--spec-oracle", str(path))
        assert (outcome.code, outcome.error) == (2, f"--spec-oracle: {path}: {says}")


def test_trace(cli: Cli, tmp_path: Path) -> None:
    cli.script.traces, path = TRACES, tmp_path / "trace.jsonl"
    path.write_text("an older one, and longer than what comes\n" * 50)
    assert cli.generate("hi", "--trace", str(path)).code == 0
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert lines[0] == {
        "round": 1,
        "depth": 10,
        "rows": 1,
        "tokens": [5],
        "accepted": 0,
        "drafts": [7, 8, 9],
        "probabilities": [0.9, 0.8, 0.25],
        "product": 0.18,
        "threshold": 0.2,
        "kept": 2,
        "next_depth": 11,
        "ms": 1.235,
    }
    assert [lines[1][key] for key in ("round", "accepted", "probabilities", "product", "threshold")] == [2, 2, [None], None, None]


def test_the_trace_is_written_as_it_goes(cli: Cli, tmp_path: Path) -> None:
    """What was traced before a failure is there."""
    cli.script.traces, cli.script.error, cli.script.fail_after = TRACES, KeyboardInterrupt(), 1
    assert cli.generate("hi", "--trace", str(tmp_path / "trace.jsonl")).code == 130
    assert (tmp_path / "trace.jsonl").read_text().count("\n") == 1


def test_a_trace_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    cli.script.traces = TRACES
    for path, says in ((tmp_path / "none" / "x", "No such file or directory"), (tmp_path, "Is a directory")):
        outcome = cli.generate("hi", "--trace", str(path))
        assert (outcome.code, outcome.error) == (2, f"--trace: {path}: {says}")
    for flag in ("-f", "--spec-oracle"):
        source = tmp_path / "source.txt"
        source.write_text("text")
        outcome = cli.generate(flag, str(source), "--trace", str(source))
        assert (outcome.code, outcome.error) == (2, f"--trace: {source}: this run reads that file; name another")
        assert source.read_text() == "text"
    assert cli.script.opened == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_trace_on_a_full_disk(cli: Cli) -> None:
    cli.script.traces = TRACES[1:]
    outcome = cli.generate("hi", "--trace", "/dev/full")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == "strata: error: --trace: cannot write /dev/full: No space left on device"
