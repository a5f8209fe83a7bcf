"""Runs of an arm as a process: nothing of it is left, and nothing that it prints loses the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.errors import StrataError
from strata_cli.benchmark import process
from tests.strata_cli.conftest import ROOT, WORDS, Bench, Cli
from tests.strata_cli.run_fake_bench import COMMAND
from tests.strata_cli.test_bench import ANSWER, posix, program, report

SLEEP = "[sys.executable, '-c', 'import time; time.sleep(300)']"


def _until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def _gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has asked for its exit code counts."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" if Path("/proc/self").exists() else False
    except (ProcessLookupError, FileNotFoundError):
        return True


@posix
@pytest.mark.parametrize(
    "how",
    ["", "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL", "stdout=subprocess.DEVNULL", "stderr=subprocess.DEVNULL"],
)
def test_what_an_arm_leaves_behind_ends_with_it(bench: Bench, tmp_path: Path, how: str) -> None:
    """Whatever that holds open: the time limit is far away, and the run does not wait for it."""
    kept = tmp_path / "pids"
    body = f"import subprocess\nchild = subprocess.Popen({SLEEP}, {how})\nopen({str(kept)!r}, 'a').write(f'{{child.pid}}\\n')\n"
    started = time.monotonic()
    found = report(bench("--arm", f"peer: {program(tmp_path, ANSWER + body)}", "--json"))
    assert len(found["runs"]) == 2 and time.monotonic() - started < 200
    assert all(_until(lambda pid=pid: _gone(pid)) for pid in map(int, kept.read_text().split()))  # type: ignore[misc]


@posix
def test_what_leaves_the_group_holds_nothing_up(bench: Bench, tmp_path: Path) -> None:
    """It keeps the arm's stdout open, and is not the arm's any more."""
    kept = tmp_path / "pids"
    body = f"import subprocess\nchild = subprocess.Popen({SLEEP}, start_new_session=True)\nopen({str(kept)!r}, 'a').write(f'{{child.pid}}\\n')\n"
    try:
        started = time.monotonic()
        assert len(report(bench("--arm", f"peer: {program(tmp_path, ANSWER + body)}", "--json"))["runs"]) == 2
        assert time.monotonic() - started < 200
    finally:
        for pid in map(int, kept.read_text().split()):
            os.kill(pid, signal.SIGKILL)


def test_a_program_that_prints_much(bench: Bench, tmp_path: Path) -> None:
    """More lines than may wait, and all of them come through."""
    body = "print('{}\\n' * 5000)\n" + ANSWER + 'print(\'{"about": {}}\\n\' * 5000 + \'{"about": {"last": 1}}\')'
    found = report(bench("--arm", f"peer: {program(tmp_path, body)}", "--json"))
    assert found["arms"][0]["about"] == {"last": 1} and len(found["runs"][0]["prompts"]) == 2


@posix
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGINT"])
@pytest.mark.parametrize("rounds", [0, 1])
def test_a_signal_ends_the_arm_too(cli: Cli, tmp_path: Path, number: str, rounds: int) -> None:
    """With the rounds that are complete, and the exit code of the signal."""
    kept = tmp_path / "pids"
    body = f"""
        pids = open({str(kept)!r}, 'a+')
        pids.seek(0)
        runs = len(pids.read().split())
        pids.write(f'{{os.getpid()}}\\n'); pids.close()
        if runs >= 2 * {rounds}:
            time.sleep(300)
    """
    command = [*COMMAND, "--parent", "bench", "-m", cli.model, "--prompt", WORDS, "--greedy", "--arm", f"peer: {program(tmp_path, body, ANSWER)}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert _until(lambda: kept.exists() and kept.read_text().count("\n") > 2 * rounds)
        running.send_signal(getattr(signal, number))
        out, err = running.communicate(timeout=60)
    assert running.returncode == 128 + getattr(signal, number)
    assert err.splitlines()[-1] == f"interrupted after {rounds} of 6 rounds"
    assert ("rounds: 1 of the 6 wanted" in out) == (rounds == 1)
    assert all(_until(lambda pid=pid: _gone(pid)) for pid in map(int, kept.read_text().split()))  # type: ignore[misc]


@posix
def test_nohup_holds(cli: Cli, tmp_path: Path) -> None:
    """A signal that is ignored from the start stays so."""
    body = "import signal\nos.kill(os.getppid(), signal.SIGHUP)\n"
    command = [
        *COMMAND,
        "--parent",
        "bench",
        "-m",
        cli.model,
        "--prompt",
        WORDS,
        "--rounds",
        "1",
        "--arm",
        f"peer: {program(tmp_path, body, ANSWER)}",
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert done.returncode == 0


def _third(folder: Path, body: str) -> str:
    """A command that answers twice, a round, and then does as `body` says."""
    counter = folder / "count"
    count = f"n = os.path.getsize({str(counter)!r}) if os.path.exists({str(counter)!r}) else 0\nopen({str(counter)!r}, 'a').write('x')\n"
    return program(folder, count, f"if n == 2: {body}", ANSWER)


@posix
@pytest.mark.parametrize("form", [(), ("--json",), ("--markdown",)])
def test_complete_rounds_survive_a_fault_of_this_side(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]) -> None:
    """Such as a folder for temporary files that is gone or full."""
    real, files = process.tempfile.TemporaryFile, []

    def full(*args: Any) -> Any:
        files.append(args)
        if len(files) == 4:  # behind the rehearsal that gets the prompts' tokens, and a round
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(process.tempfile, "TemporaryFile", full)
    outcome = bench("--arm", f"peer: {program(tmp_path, ANSWER)}", *form, rounds="3")
    assert outcome.code == 1 and outcome.out
    assert outcome.err.splitlines()[-1] == "strata: error: arm 'peer', round 2: no temporary file: No space left on device"


@posix
@pytest.mark.parametrize("plot", [StrataError("--plot: no room"), ValueError("a fault in drawing")])
@pytest.mark.parametrize("end", ["sys.exit('because\\n')", "os.kill(os.getppid(), 2); time.sleep(300)", "pass"])
def test_a_report_that_fails_hides_nothing(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plot: Exception, end: str) -> None:
    def draw(*_: object) -> None:
        raise plot

    monkeypatch.setattr("strata_cli.benchmark.plot.draw", draw)
    outcome = bench("--arm", f"peer: {_third(tmp_path, end)}", "--plot", str(tmp_path / "x.png"), rounds="2")
    last = outcome.err.splitlines()[-1]
    if end == "pass":
        assert outcome.code == 1 and str(plot) in last
        return
    assert f"strata: warning: the report failed: {plot}" in outcome.err.splitlines()
    assert outcome.out.startswith("command: ")
    expected = (1, "strata: error: arm 'peer', round 2: because (exit code 1)") if "exit" in end else (130, "interrupted after 1 of 2 rounds")
    assert (outcome.code, last) == expected


RECORD = '"id": "prompt-1", "mode": "greedy"'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{%s, "token_ids": [1], "decode_ms": 1, "extra": NaN}', "extra is NaN"),
        ('{%s, "token_ids": [1], "decode_ms": 1, "extra": [{"x": -1e999}]}', 'extra is [{"x": -Infinity}]'),
        ('{%s, "token_ids": [1], "decode_ms": 1, "speculation": {"more": Infinity}}', 'speculation is {"more": Infinity}'),
        ('{%s, "token_ids": [1], "decode_ms": 1, "finish_reason": NaN}', "finish_reason is NaN"),
        ('{%s, "token_ids": [1], "decode_ms": 1, "extra": ' + "[" * 100 + "]" * 100 + "}", "extra is [[["),
        ('{%s, "token_ids": [1], "decode_ms": 1, "prefill_ms": 1e999}', "prefill_ms is Infinity"),
        ('{%s, "token_ids": [1' + "0" * 400 + '], "decode_ms": 1}', "token_ids is [1000"),
        ('{%s, "token_ids": [4294967296], "decode_ms": 1}', "token_ids is [4294967296]"),
        ('{%s, "token_ids": [true], "decode_ms": 1}', "token_ids is [true]"),
        ('{%s, "token_ids": [1], "decode_ms": 5e-324}', "decode_ms is 5e-324"),
        ('{%s, "token_ids": [1], "decode_ms": 1e300}', "decode_ms is 1e+300"),
        ('{%s, "token_ids": [1], "decode_ms": 1' + "0" * 400 + "}", "decode_ms is 1000"),
        ('{%s, "token_ids": [1], "decode_ms": 1, "prompt_tokens": 1' + "0" * 30 + "}", "prompt_tokens is 1000"),
        ('{"about": {"v": NaN}}', 'about is {"v": NaN}'),
        ('{"more": [Infinity]}', "more is [Infinity]"),
        ('{"load_ms": 1e-300}', "load_ms is 1e-300"),
        ('{"window_ms": {"01": [1.0]}}', 'window_ms is {"01": [1.0]}'),
        ('{"window_ms": {"1": [5e-324]}}', 'window_ms is {"1": [5e-324]}'),
        ('{"window_ms": {"' + "9" * 5000 + '": [1]}}', 'window_ms is {"999'),
    ],
)
def test_values_that_no_report_can_hold(bench: Bench, tmp_path: Path, line: str, says: str) -> None:
    """Refused in the first run, in a field of the contract or in any other, rather than after all of them."""
    printed = line.replace("%s", RECORD)
    outcome = bench("--arm", f"peer: {program(tmp_path, f'print({printed!r})')}", "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error.startswith("arm 'peer', round 1: ") and f": {says}" in outcome.error
    assert outcome.error.endswith("; docs/bench.md says what is allowed")


def test_the_ends_of_what_is_allowed(bench: Bench, tmp_path: Path) -> None:
    """They make a report, beside each other too."""
    arms = []
    for name, ms in (("fast", "1e-6"), ("slow", "1e12"), ("none", "0")):
        (tmp_path / name).mkdir()
        body = f"""
            for p in job["prompts"]:
                found = {{"token_ids": [2**31 - 1], "decode_ms": {ms}, "prefill_ms": {ms}, "prompt_tokens": 2**53}}
                print(json.dumps({{"id": p["id"], "mode": p["mode"], **found}}))
        """
        arms += ["--arm", f"{name}: {program(tmp_path / name, body)}"]
    found = report(bench(*arms, "--json", rounds="4"))
    assert found["arms"][1]["beside"]["decode"]["ratio"] == pytest.approx(1e-18)


def test_no_thread_for_the_arm_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], stdout=subprocess.PIPE, start_new_session=True)
    monkeypatch.setattr(process.threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError), running:
        process._Watch(running, 60)
    assert running.returncode != 0
