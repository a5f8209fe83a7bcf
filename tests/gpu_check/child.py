"""One measurement in a process of its own, so that a driver that hangs or dies takes no other down.

python -m tests.gpu_check.child < job.json     its last line is the answer, as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.device_choice import PROGRAMS, settings_of

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 40.0  # for what a job began before its time was over, such as a compilation


class ChildFailed(Exception):
    """What a measurement died of, in one line."""


class ChildSlow(ChildFailed):
    """It gave no answer in time."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Does the job. "task": "device" (what it is, its copy bandwidth) or "speed"."""
    from backends.config import DecodeConfig

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


def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The job's answer from a process of its own. Raises ChildFailed."""
    command = [sys.executable, "-m", "tests.gpu_check.child"]
    try:
        done = subprocess.run(command, input=json.dumps(job), cwd=ROOT, capture_output=True, text=True, timeout=seconds + GRACE_S)
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
