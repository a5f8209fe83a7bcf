"""`strata batch`: results, errors, ends of a run, and what it says meanwhile."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.config import Speculation
from backends.errors import BadValue, DeviceError, ModelError, StrataError
from strata_cli.batch_input import request_seed
from strata_cli.batch_progress import BatchProgress
from tests.conftest import skip_or_fail
from tests.strata_cli.conftest import ROOT, Cli, Outcome

GOOD = [{"id": "a", "prompt": "one two"}, {"id": 2, "prompt": "three"}, {"id": "c", "messages": [{"role": "user", "content": "four"}]}]
links = pytest.mark.skipif(sys.platform == "win32", reason="needs links")
full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def write_requests(path: Path, requests: Sequence[Any]) -> str:
    """Requests as JSON lines; texts as they are."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in requests), encoding="utf-8")
    return str(path)


def records(path: str | Path) -> list[dict[str, Any]]:
    """The results in a file, every line of which must be one."""
    text = Path(path).read_bytes().decode()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def run(cli: Cli, requests: Sequence[Any], *args: str, out: str = "out.jsonl", terminal: bool = False) -> Outcome:
    source = write_requests(cli.folder / "in.jsonl", requests)
    return cli("batch", "-m", cli.model, source, "-o", str(cli.folder / out), *args, terminal=terminal)


def test_results(cli: Cli, tmp_path: Path) -> None:
    cli.script.speculation = Speculation(rounds=2, drafted=3, accepted=1, by_position=((2, 1), (1, 0)))
    cli.script.pieces = ["a\n\x1b\u2028", "é\x85"]
    outcome = run(cli, GOOD, "--seed", "7", "-n", "5")
    assert (outcome.code, outcome.out) == (0, "")
    found = records(tmp_path / "out.jsonl")
    assert [record["id"] for record in found] == ["a", 2, "c"]
    assert found[0] == {
        "id": "a",
        "text": "a\n\x1b\u2028é\x85",
        "token_ids": [0, 1],
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
        "speculation": {"rounds": 2, "drafted": 3, "accepted": 1, "by_position": [[2, 1], [1, 0]]},
        "timings": {"prefill_ms": 100.0, "decode_ms": 50.0, "prompt_tok_s": 10.0, "decode_tok_s": 40.0},
    }
    assert outcome.err.startswith("3 requests, 0 errors, 6 tokens, ") and outcome.err.endswith(" tok/s, seed 7\n")
    assert len(cli.script.opened) == 1 and cli.script.closed == 1
    assert [request.max_new for request in cli.script.requests] == [5, 5, 5]
    assert [request.seed for request in cli.script.requests] == [request_seed(7, name) for name in ("a", 2, "c")]


def test_bad_lines_are_results_too(cli: Cli, tmp_path: Path) -> None:
    bad = [
        "{",
        "[]",
        '"text"',
        '{"prompt": "x"}',
        '{"id": "b1"}',
        '{"id": "b2", "prompt": ""}',
        '{"id": "b3", "prompt": "x", "max_new": "many"}',
        '{"id": "b4", "prompt": "x", "promt": "y"}',
        '{"id": "b5", "prompt": "x", "strata_tune": {"spec_p_cum": true}}',
        '{"id": "b6", "prompt": "x", "temperature": NaN}',
    ]
    lines = [GOOD[0], *bad[:5], "", GOOD[1], *bad[5:], GOOD[2]]
    outcome = run(cli, lines)
    assert outcome.code == 1
    assert outcome.err.startswith("13 requests, 10 errors, 9 tokens, ") and outcome.err.count("\n") == 1
    found = records(tmp_path / "out.jsonl")
    assert [record["id"] for record in found] == ["a", None, None, None, None, "b1", 2, "b2", "b3", "b4", "b5", "b6", "c"]
    assert [record["line"] for record in found if record["id"] is None] == [2, 3, 4, 5]
    assert sum("error" in record for record in found) == 10
    assert all(set(record) - {"line"} == {"id", "error"} for record in found if "error" in record)
    assert len(cli.script.requests) == 3


def test_what_the_engine_refuses_is_a_result(cli: Cli, tmp_path: Path) -> None:
    cli.script.errors = {
        "long": BadValue("the prompt has 5000 tokens"),
        "nan": StrataError("the logits of position 3 are not numbers"),
        "roles": ModelError("the template wants other roles"),
    }
    requests = [{"id": text, "prompt": text} for text in ("long", "nan", "roles", "good")]
    assert run(cli, requests).code == 1
    found = records(tmp_path / "out.jsonl")
    assert [record.get("error") for record in found] == [*map(str, cli.script.errors.values()), None]
    assert cli.script.closed == 1


def test_no_request_needs_a_model(cli: Cli, tmp_path: Path) -> None:
    assert run(cli, ["nothing"]).code == 1
    assert run(cli, [], out="none.jsonl").code == 0
    assert cli.script.opened == []
    assert len(records(tmp_path / "out.jsonl")) == 1 and records(tmp_path / "none.jsonl") == []


def test_standard_input_and_output(cli: Cli, tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", GOOD)
    outcome = cli("batch", "-m", cli.model, "-", "-o", "-", stdin=Path(source).read_bytes())
    assert outcome.code == 0
    assert [json.loads(line)["id"] for line in outcome.out.splitlines()] == ["a", 2, "c"]
    assert "3 requests, 0 errors, " in outcome.err
    seed = int(outcome.err.split()[-1])
    assert cli.script.requests[0].seed == request_seed(seed, "a")
    assert not list(tmp_path.glob("*.manifest.json*"))


def test_quiet(cli: Cli) -> None:
    outcome = run(cli, [*GOOD, "nothing"], "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "")
    assert run(cli, [*GOOD, "nothing"], "-q").err == ""
    assert "it would overwrite the requests" in run(cli, GOOD, "-q", out="in.jsonl").error


def test_notices_are_shown(cli: Cli) -> None:
    cli.script.notices = ["slow today"]
    assert run(cli, GOOD).err.count("strata: warning: slow today\n") == 1


@links
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["{folder}/nowhere.jsonl", "-o", "{folder}/o"], "nowhere.jsonl: No such file or directory"),
        (["{folder}", "-o", "{folder}/o"], "Is a directory"),
        (["{in}"], "Missing option '-o'"),
        (["-o", "{folder}/o"], "Missing argument 'IN.jsonl'"),
        (["{in}", "-o", "{folder}"], "it is a folder; allowed: a file, or - for standard output"),
        (["{in}", "-o", "{folder}/nowhere/o"], "nowhere/o: No such file or directory"),
        (["{in}", "-o", ""], "-o"),
        (["{in}", "-o", "{in}"], "it would overwrite the requests"),
        (["{in}", "-o", "{folder}/link"], "it would overwrite the requests"),
        (["{in}", "-o", "{folder}/hard"], "it would overwrite the requests"),
        (["{folder}/o.manifest.json", "-o", "{folder}/o"], "it would overwrite the requests"),
        (["{in}", "-o", "{folder}/other"], "exists and has no manifest beside it"),
        (["{in}", "-o", "{folder}/o", "--temp", "hot"], "--temperature: 'hot' is not allowed"),
        (["{folder}/twice", "-o", "{folder}/o"], 'twice: lines 1 and 3 have the same id "a"; each needs its own'),
    ],
)
def test_refused_at_the_start(cli: Cli, tmp_path: Path, args: list[str], says: str) -> None:
    source = write_requests(tmp_path / "in.jsonl", GOOD)
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    write_requests(tmp_path / "o.manifest.json", GOOD)
    write_requests(tmp_path / "other", ["something else"])
    write_requests(tmp_path / "twice", [GOOD[0], GOOD[1], GOOD[0]])
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    outcome = cli("batch", "-m", cli.model, *(arg.format(**{"folder": tmp_path, "in": source}) for arg in args))
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.error
    assert cli.script.opened == []
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert {path: content for path, content in after.items() if path.name != "model.gguf"} == before


@full_device
@pytest.mark.parametrize("out", ["/dev/full", "link"])
def test_a_full_device(cli: Cli, tmp_path: Path, out: str) -> None:
    (tmp_path / "link").symlink_to("/dev/full")
    outcome = run(cli, GOOD, out=out)
    assert outcome.code == 1
    assert outcome.error == f"cannot write to {tmp_path / out}: No space left on device; 0 of 3 requests are finished"


@links
@pytest.mark.parametrize("out", ["/dev/stdout", "/dev/fd/1", "{folder}/link", ">(cat)", "{folder}/pipe"])
def test_a_pipe_by_any_name(cli: Cli, tmp_path: Path, out: str) -> None:
    """The results go there, without a manifest."""
    if not Path("/dev/stdout").exists() or not shutil.which("bash"):
        skip_or_fail("it needs /dev/stdout and bash")
    source = write_requests(tmp_path / "in.jsonl", GOOD)
    (tmp_path / "link").symlink_to("/dev/stdout")
    os.mkfifo(tmp_path / "pipe")
    reader = f"cat {tmp_path}/pipe & " if "pipe" in out else ""
    command = f"{reader}{sys.executable} -m tests.strata_cli.run_fake batch -m {cli.model} {source} -o {out.format(folder=tmp_path)} | cat; wait"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert "3 requests, 0 errors" in done.stderr and done.stderr.count("\n") == 1
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["a", 2, "c"]
    assert not list(tmp_path.glob("*manifest*"))


def test_a_device_that_fails_ends_the_run(cli: Cli, tmp_path: Path) -> None:
    cli.script.errors = {"three": DeviceError("the device is gone")}
    outcome = run(cli, GOOD)
    assert outcome.code == 1
    assert outcome.error == (
        f"request 2: the device is gone; 1 of 3 requests are finished in {tmp_path / 'out.jsonl'}; the same command goes on from there"
    )
    assert [record["id"] for record in records(tmp_path / "out.jsonl")] == ["a"]
    cli.script.errors = {}
    assert run(cli, GOOD).code == 0
    assert [record["id"] for record in records(tmp_path / "out.jsonl")] == ["a", 2, "c"]


def test_a_model_that_does_not_open_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    cli.script.open_error = DeviceError("no device")
    outcome = run(cli, GOOD)
    assert (outcome.code, outcome.error) == (1, "no device")
    assert not list(tmp_path.glob("out*"))


def test_ctrl_c(cli: Cli, tmp_path: Path) -> None:
    cli.script.errors = {"three": KeyboardInterrupt()}
    outcome = run(cli, GOOD, "--quiet")
    assert (outcome.code, outcome.err) == (
        130,
        f"interrupted: 1 of 3 requests are finished in {tmp_path / 'out.jsonl'}; the same command goes on from there\n",
    )
    assert cli.script.closed == 1
    cli.script.errors = {}
    outcome = run(cli, GOOD)
    assert outcome.code == 0
    assert outcome.err.startswith("3 requests (1 of them before), 0 errors, 6 tokens, ")


def test_ctrl_c_while_loading(cli: Cli, tmp_path: Path) -> None:
    cli.script.open_error = KeyboardInterrupt()
    outcome = run(cli, GOOD)
    assert outcome.code == 130 and "0 of 3 requests are finished" in outcome.err
    assert not list(tmp_path.glob("out*"))


def test_a_bar_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = run(cli, GOOD, terminal=True).err
    assert "requests" in shown and "3/3" in shown and "tok/s" in shown and "left" in shown
    assert "3/3" not in run(cli, GOOD, "--quiet", out="quiet.jsonl", terminal=True).err


def test_a_line_now_and_then_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with BatchProgress(total=4, before=1, errors=1, quiet=False, patience=0) as progress:
        progress.add_tokens(5)
        progress.finish_request(error=False)
        progress._started -= 3600 * 2
        progress.finish_request(error=True)
        assert "-:--" in BatchProgress(4, 1, 1, False)._left()
    first, second = stream.getvalue().splitlines()
    assert first.startswith("2 of 4 requests, 1 error, ") and first.endswith(" tok/s, 0:00 left")
    assert second == "3 of 4 requests, 2 errors, 0.0 tok/s, 1:00:00 left"
    assert progress.statistics(7) == "3 requests (1 of them before), 2 errors, 5 tokens, 0.0 tok/s, seed 7"
