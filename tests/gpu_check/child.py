"""One measurement in a process of its own, so that a driver that hangs or dies takes no other down.

python -m tests.gpu_check.child < job.json     its last line is the answer, as JSON
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.device_choice import PROGRAMS, settings_of

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 40.0  # for what a job began before its time was over, such as a compilation
KILLED_S = 5.0  # for a process that was killed to be gone: one that is stuck in a driver never is


class ChildFailed(Exception):
    """What a measurement died of, in one line."""


class ChildSlow(ChildFailed):
    """It gave no answer in time."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Does the job. "task": "list" (which devices there are), "device" (what it is, its copy bandwidth) or "speed"."""
    from backends.config import DecodeConfig

    if job["task"] == "list":
        return devices()
    config = DecodeConfig(cache_dir=str(PROGRAMS), **settings_of(job["device"]))
    if job["task"] == "device":
        from backends.devices import open_device
        from tests.gpu_check.copy import copy_bandwidth

        device = open_device(config, [])
        memory = device.memory()
        copy = copy_bandwidth(device, job["copy_bytes"])
        return {"line": device.line, "memory_bytes": memory.total if memory else None, "copy": copy}
    from tests.gpu_check.speed import measure

    return measure(job["model"], config, job["type"], job["seconds"], job["quick"], job["is_file"])


def devices() -> dict[str, Any]:
    """All devices, why CuPy runs no card though there is a driver for one ("trouble"), and what a GPU would need ("hint")."""
    from backends.cuda import load_cupy
    from backends.cuda_driver import gpu_driver
    from backends.devices import gpu_trouble, list_devices
    from backends.errors import DeviceError

    found = [{key: getattr(info, key) for key in ("name", "backend", "description", "driver")} for info in list_devices(str(PROGRAMS))]
    trouble = gpu_trouble()
    reasons = list(trouble)
    try:
        load_cupy()
    except DeviceError as error:
        reasons = reasons or [str(error)]
    if reasons:
        hint = f" by OpenCL, and {'; '.join(reasons)}"
    else:
        hint = "" if gpu_driver() else ": neither CuPy nor OpenCL sees one, and no driver of one is loaded"
    return {"devices": found, "trouble": trouble, "hint": hint}


def run_limited(command: Sequence[str], seconds: float, said: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it, with `said` on stdin. Raises TimeoutExpired in time, also where the process cannot be killed, which is then left alone."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(said, seconds)
    except BaseException:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILLED_S)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The job's answer from a process of its own. Raises ChildFailed."""
    command = [sys.executable, "-m", "tests.gpu_check.child"]
    try:
        done = run_limited(command, seconds + GRACE_S, json.dumps(job))
    except subprocess.TimeoutExpired as error:
        raise ChildSlow(f"no answer within {seconds + GRACE_S:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise ChildFailed(f"it ended with code {done.returncode}: {said}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
