"""One run of an arm as a process: its job in, its JSON lines out, under a time limit; whatever goes wrong in one line."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from backends.errors import BadValue, StrataError
from strata_cli.benchmark.arms import Arm, child_environment

# Without the current folder, which -c puts first: whatever lies there is none of ours.
_PATH = f"import sys; sys.path = [{str(Path(__file__).resolve().parents[2])!r}, *filter(None, sys.path)]"
STRATA = [sys.executable, "-c", f"{_PATH}; from strata_cli.benchmark.child import main; sys.exit(main())"]
"""The program that is an arm of Strata."""
_WAITING = 1000  # lines that may wait to be read; a program that prints more at once is held up
_DRAIN_S = 2.0  # for what a process that ended left in the pipe; who still holds it then has left the group
_DEEP = 20  # lists and objects within each other: what a report can pass on


@dataclass(frozen=True, slots=True)
class Output:
    """What a run printed. records: one for each prompt, in order. about: all else, merged."""

    records: tuple[Mapping[str, Any], ...]
    about: Mapping[str, Any]


def run(arm: Arm, job: Mapping[str, Any], where: str, timeout: float, progress: Callable[[int], None]) -> Output:
    """Runs an arm once. where: names the run in errors. progress: is called with the number of prompts done.

    Raises StrataError: the process failed, printed what it must not, or took longer than `timeout` seconds. BadValue where it says so.
    """
    prompts = [] if job["rehearsal"] else job["prompts"]
    with _scratch(where) as errors:
        try:
            process = subprocess.Popen(
                list(arm.command or STRATA),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=child_environment(arm, os.environ),
                start_new_session=True,  # Ctrl-C is this process's to act on, and what the arm started ends with it
            )
        except OSError as error:
            raise StrataError(f"{where}: {(arm.command or STRATA)[0]}: {error.strerror}") from None
        watch = _Watch(process, timeout)
        try:
            records, about = _talk(process, watch, job, prompts, where, progress)
            code = watch.wait()
        except _Garbage as error:
            # Of one that failed, or was stopped, the reason matters more than what it printed.
            code = watch.wait(2)
            if code in (0, None) and not watch.expired:
                raise StrataError(str(error)) from None
        finally:
            watch.end()
        if watch.expired:
            raise StrataError(f"{where}: not done after {timeout:g} s; --timeout SECONDS waits longer")
        if code:
            raise _failure(arm, where, code, errors)
    if len(records) < len(prompts):
        raise StrataError(f"{where}: it ended after {len(records)} of {len(prompts)} prompts")
    return Output(tuple(records), about)


def _scratch(where: str) -> IO[bytes]:
    """A file for what the process says on stderr."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise StrataError(f"{where}: no temporary file: {error.strerror or error}") from None


class _Garbage(Exception):
    """Output that is none."""


class _Watch:
    """Reads a process's lines, and ends its whole group: at the time limit, and when the process itself has ended.

    What it started may outlive it and hold its stdout. So a thread waits for the process, and the lines end with it, not with the pipe.
    """

    def __init__(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        self.expired = False
        self._process = process
        self._lines: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._over, self._stopped = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._timer = threading.Timer(timeout, self._expire)
        self._timer.daemon = True
        try:
            self._timer.start()
            self._reader.start()
            threading.Thread(target=self._keep, daemon=True).start()
        except BaseException:
            self._kill()
            raise

    def __iter__(self) -> Iterator[bytes]:
        """The lines, until there can be no more."""
        while True:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=1)  # Windows lets no Ctrl-C through a wait without an end
                if line is None:
                    return
                yield line

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code; None if the process is still there after so many seconds."""
        self._over.wait(seconds)
        return self._process.returncode if self._over.is_set() else None

    def end(self) -> None:
        """Nothing of the group is there afterwards."""
        try:
            self._timer.cancel()
            self._stopped.set()
        finally:
            self._kill()
        self._over.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdout as stdout:
            for line in stdout:
                if not self._offer(line):
                    return
        self._offer(None)

    def _offer(self, line: bytes | None) -> bool:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._lines.put(line, timeout=0.2)
                return True
        return False

    def _keep(self) -> None:
        if hasattr(os, "waitid"):  # without reaping it: its number must be nobody else's while the group is killed by it
            with contextlib.suppress(OSError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            self._kill_group()
            self._process.wait()
            self._over.set()
        self._reader.join(_DRAIN_S)
        if self._reader.is_alive():
            self._offer(None)

    def _expire(self) -> None:
        if not self._over.is_set():
            self.expired = True
            self._kill()

    def _kill(self) -> None:
        with self._lock:
            if not self._over.is_set():
                self._kill_group()

    def _kill_group(self) -> None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._process.poll() is None:
            self._process.kill()


def _talk(
    process: subprocess.Popen[bytes],
    lines: Iterable[bytes],
    job: Mapping[str, Any],
    prompts: Sequence[Mapping[str, Any]],
    where: str,
    progress: Callable[[int], None],
) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    assert process.stdin is not None
    # In a thread: a program that prints before it has read everything must not wait for us while we wait for it.
    writer = threading.Thread(target=_feed, args=(process.stdin, json.dumps(job).encode()), daemon=True)
    writer.start()
    records: list[Mapping[str, Any]] = []
    about: dict[str, Any] = {}
    for line in lines:
        if not line.strip():
            continue
        found = _parse(line, where)
        if "id" not in found:
            about |= _checked_about(found, where)
            continue
        if len(records) == len(prompts):
            raise _Garbage(f"{where}: it printed more than one object for a prompt, or one for a prompt that it was not given")
        records.append(_checked(found, prompts[len(records)], where))
        progress(len(records))
    return records, about


def _feed(stdin: IO[bytes], content: bytes) -> None:
    with contextlib.suppress(OSError), stdin:  # one that ends early says by its exit code what it thinks of that
        stdin.write(content)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError):
        pass
    shown = line.decode(errors="replace").strip()
    raise _Garbage(f"{where}: it printed {shown[:80]!r} where one JSON object a line belongs; docs/bench.md has the fields")


def _number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _time(value: Any) -> bool:
    """Milliseconds: none, or from a nanosecond to 30 years, which speeds and their ratios can be made of."""
    return _number(value, 1e-6, 1e12) or _number(value, 0, 0)


def _count(value: Any) -> bool:
    return isinstance(value, int) and _number(value, 0, 2**53)


def _token(value: Any) -> bool:
    return isinstance(value, int) and _number(value, 0, 2**31 - 1)


def _plain(value: Any, depth: int = 0) -> bool:
    """Whether a report can pass it on: JSON has no NaN and no infinity, and no program reads what is nested without end."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return depth < _DEEP and all(_plain(item, depth + 1) for item in value)
    return not isinstance(value, float) or _number(value, -sys.float_info.max, sys.float_info.max)


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # a number too long to print, or lists within lists
        text = "..."
    return text if len(text) <= 60 else text[:57] + "..."


def _checked(found: dict[str, Any], prompt: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A prompt's object; optional fields that are absent or null are given the value that means "not known"."""
    if (found["id"], found.get("mode")) != (prompt["id"], prompt["mode"]):
        got = f"{found['id']!r}, {found.get('mode')!r}"
        raise _Garbage(f"{where}: it printed an object for {got} where that for {prompt['id']!r}, {prompt['mode']!r} belongs")
    found = {key: value for key, value in found.items() if value is not None}
    spec = {"rounds": 0, "drafted": 0, "accepted": 0, "by_position": []}
    if isinstance(found.get("speculation", {}), dict):
        spec |= found.get("speculation", {})
    places = spec["by_position"]
    valid = {
        "token_ids": isinstance(found.get("token_ids"), list) and all(map(_token, found["token_ids"])),
        "decode_ms": _time(found.get("decode_ms")),
        "prefill_ms": _time(found.get("prefill_ms", 0)),
        "prompt_tokens": _count(found.get("prompt_tokens", 0)),
        "text": isinstance(found.get("text", ""), str),
        "speculation": isinstance(found.get("speculation", {}), dict)
        and all(_count(spec[key]) for key in ("rounds", "drafted", "accepted"))
        and isinstance(places, list)
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(_count, pair)) for pair in places),
    }
    _refuse(f"{where}: prompt {prompt['id']!r}", found, valid)
    return {"text": None, "prefill_ms": None, "prompt_tokens": None, "finish_reason": None} | found | {"speculation": spec}


def _checked_about(found: dict[str, Any], where: str) -> dict[str, Any]:
    found = {key: value for key, value in found.items() if value is not None}
    windows = found.get("window_ms", {})
    valid = {
        "about": isinstance(found.get("about", {}), dict),
        "load_ms": _time(found.get("load_ms", 0)),
        "window_ms": isinstance(windows, dict)
        and all(
            re.fullmatch("[1-9][0-9]{0,3}", rows) and isinstance(times, list) and times and all(_time(ms) and ms > 0 for ms in times)
            for rows, times in windows.items()
        ),
    }
    _refuse(where, found, valid)
    return found


def _refuse(where: str, found: Mapping[str, Any], valid: Mapping[str, Any]) -> None:
    """Ends a run that printed what is not allowed, whether this version knows the field or not: later the report would be lost by it."""
    for key in dict.fromkeys([*valid, *found]):
        if not valid.get(key, True) or not _plain(found.get(key)):
            raise _Garbage(f"{where}: {key[:40]} is {_shown(found.get(key))}; docs/bench.md says what is allowed")


def _failure(arm: Arm, where: str, code: int, errors: IO[bytes]) -> StrataError:
    errors.seek(0)
    lines = [line for line in errors.read()[-20_000:].decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip().removeprefix("strata: error: ") if lines else ""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return StrataError(
            f"{where}: killed by signal {name}" + (", perhaps for want of memory" if -code == 9 else "") + (f"; {last}" if last else "")
        )
    kind = BadValue if code == BadValue.exit_code and arm.command is None else StrataError
    return kind(f"{where}: {last or 'it gave no reason'}" + ("" if arm.command is None else f" (exit code {code})"))
