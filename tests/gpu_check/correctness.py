"""The tests of kernels and guarantee on one device, each section in a process of its own, which ends in time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu_check.child import GRACE_S, run_limited

# What is wrong at the bottom shows first: what the kernels compute with, then single kernels, then whole models.
SECTIONS = {
    "math": ("tests/backends/test_device_bits.py",),
    "kernels": ("tests/backends/test_ops.py", "tests/backends/test_attention.py", "tests/backends/test_pick.py"),
    "guarantee": ("tests/backends/test_gpu_shape.py",),
}
QUICK = "not q4_0 and not q8_0 and not f32"  # of the tiny models, Q4_1 alone


def check(section: str, tests: Sequence[str], device: str, seconds: float, quick: bool, done: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the section's tests on a device, but those done before. Counts by outcome, "failures" (test and why), "unrun" tests for which there
    was no time, "ran": the names of those that ran.

    A process that dies or hangs is a failure too: a device that takes it down has not passed.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        options = ["-p", "tests.gpu_check.pytest_log", "-p", "no:cacheprovider", "--log-to", str(log), "--stop-after", str(seconds)]
        if done:
            (Path(folder) / "done").write_text(json.dumps(list(done)), encoding="utf-8")
            options += ["--done", str(Path(folder) / "done")]
        command = [sys.executable, "-m", "pytest", "-q", *options, "--device", device, *(["-k", QUICK] if quick else []), *tests]
        died = ""
        try:
            done = run_limited(command, seconds + GRACE_S)
            code, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            died, code, said = f"no answer within {seconds + GRACE_S:.0f} s", 0, ""
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    tests_run = [line for line in lines if "test" in line]
    unrun = sum(line.get("unrun", 0) for line in lines)
    failures = [{"test": line["test"], "why": line["why"]} for line in tests_run if line["outcome"] == "failed"]
    # 1: some failed; 2: it was interrupted, by its own clock or else by a file that it could not import.
    if not died and not (code == 0 or (code in (1, 2) and failures) or (code == 2 and lines and lines[-1].get("stopped"))):
        died = f"pytest ended with code {code}"
    if not died and (not lines or "unrun" not in lines[-1] or (not tests_run and not unrun)):
        died = "pytest ran no tests"
    if died:
        last = f"; last before it: {tests_run[-1]['test']}" if tests_run else ""
        words = [line for line in said.splitlines() if line.strip()]
        failures.append({"test": section, "why": died + last + (f": {words[-1].strip()}" if words else "")})
    counts = {outcome: sum(line["outcome"] == outcome for line in tests_run) for outcome in ("passed", "skipped")}
    skips = sorted({line["why"] for line in tests_run if line["outcome"] == "skipped"})
    took = time.monotonic() - begun
    found = {"section": section, **counts, "failed": len(failures), "failures": failures, "skips": skips, "unrun": unrun, "seconds": took}
    return found | {"ran": [line["test"] for line in tests_run]}


def joined(first: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A section's outcome from that of its tests and of those that ran later."""
    added = {key: first[key] + more[key] for key in ("passed", "skipped", "failed", "failures", "seconds", "ran")}
    return {**first, **added, "skips": sorted({*first["skips"], *more["skips"]}), "unrun": more["unrun"]}
