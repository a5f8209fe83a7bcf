"""One run of an arm as a process: its job in, its JSON lines out, under a time limit; whatever goes wrong in one line."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from backends.errors import BadValue, StrataError
from strata_cli.benchmark.arms import Arm, child_environment

# Without the current folder, which -c puts first: whatever lies there is none of ours.
_PATH = f"import sys; sys.path = [{str(Path(__file__).resolve().parents[2])!r}, *filter(None, sys.path)]"
STRATA = [sys.executable, "-c", f"{_PATH}; from strata_cli.benchmark.child import main; sys.exit(main())"]
"""The program that is an arm of Strata."""


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
    with tempfile.TemporaryFile() as errors:
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
            records, about = _talk(process, job, prompts, where, progress)
            code = process.wait()
        except _Garbage as error:
            # Of one that failed, or was stopped, the reason matters more than what it printed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            if process.returncode in (0, None) and not watch.expired:
                raise StrataError(str(error)) from None
            code = process.returncode or 0
        finally:
            watch.stop()
            _end(process)
        if watch.expired:
            raise StrataError(f"{where}: not done after {timeout:g} s; --timeout SECONDS waits longer")
        if code != 0:
            raise _failure(arm, where, code, errors)
    if len(records) < len(prompts):
        raise StrataError(f"{where}: it ended after {len(records)} of {len(prompts)} prompts")
    return Output(tuple(records), about)


class _Garbage(Exception):
    """Output that is none."""


class _Watch:
    """Ends a process that takes too long."""

    def __init__(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        self.expired = False
        self._process = process
        self._timer = threading.Timer(timeout, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        if self._process.poll() is None:
            self.expired = True
            _end(self._process, wait=False)


def _talk(
    process: subprocess.Popen[bytes], job: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]], where: str, progress: Callable[[int], None]
) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    assert process.stdin is not None and process.stdout is not None
    # In a thread: a program that prints before it has read everything must not wait for us while we wait for it.
    writer = threading.Thread(target=_feed, args=(process.stdin, json.dumps(job).encode()), daemon=True)
    writer.start()
    records: list[Mapping[str, Any]] = []
    about: dict[str, Any] = {}
    for line in process.stdout:
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


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and _number(value)


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
        "token_ids": isinstance(found.get("token_ids"), list) and all(map(_count, found["token_ids"])),
        "decode_ms": _number(found.get("decode_ms")),
        "prefill_ms": _number(found.get("prefill_ms", 0)),
        "prompt_tokens": _count(found.get("prompt_tokens", 0)),
        "text": isinstance(found.get("text", ""), str),
        "speculation": isinstance(found.get("speculation", {}), dict)
        and all(_count(spec[key]) for key in ("rounds", "drafted", "accepted"))
        and isinstance(places, list)
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(_count, pair)) for pair in places),
    }
    for key, ok in valid.items():
        if not ok:
            shown = json.dumps(found.get(key))[:60]
            raise _Garbage(f"{where}: prompt {prompt['id']!r}: {key} is {shown}; docs/bench.md says what is allowed")
    return {"text": None, "prefill_ms": None, "prompt_tokens": None, "finish_reason": None} | found | {"speculation": spec}


def _checked_about(found: dict[str, Any], where: str) -> dict[str, Any]:
    found = {key: value for key, value in found.items() if value is not None}
    windows = found.get("window_ms", {})
    valid = {
        "about": isinstance(found.get("about", {}), dict),
        "load_ms": _number(found.get("load_ms", 0)),
        "window_ms": isinstance(windows, dict)
        and all(
            rows.isdecimal() and isinstance(times, list) and times and all(_number(ms) and ms > 0 for ms in times) for rows, times in windows.items()
        ),
    }
    for key, ok in valid.items():
        if not ok:
            raise _Garbage(f"{where}: {key} is {json.dumps(found[key])[:60]}; docs/bench.md says what is allowed")
    return found


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


def _end(process: subprocess.Popen[bytes], wait: bool = True) -> None:
    """Ends the process and whatever it started, if it still runs."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    if wait:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
