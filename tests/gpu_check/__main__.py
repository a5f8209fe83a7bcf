"""Checks everything that a GPU can show: `make gpu-check`, or python -m tests.gpu_check.

Tests the kernels against NumPy and the promise that a text does not depend on how it was computed, then measures speed, on every GPU it
finds. Needs no network and no model. Exit code 0 where all checks ran and passed (an aim that is missed is no failure), 1 where one failed, 3
where none failed but some did not run, or a card was not checked at all. docs/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.errors import StrataError
from tests.gpu_check import correctness, plan, report
from tests.gpu_check.shapes import SHAPES
from tests.gpu_check.weights import CODES

DEVICE_HELP = (
    "checks this device, as `strata devices` names it, and no other; may be given more than once. One that is no GPU runs the kernels in GPU "
    "shape, as a rehearsal; `emulated` is a CUDA device that this machine's C++ compiler stands in for"
)
LIMIT_S = 420.0  # and what a part begins in time may end after it: below eight minutes in all


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", metavar="PATH", help="measures this GGUF file's speed too")
    made.add_argument("--device", metavar="NAME", action="append", help=DEVICE_HELP)
    made.add_argument("--json", metavar="FILE", type=Path, default=Path("gpu-check.json"), help="every figure goes there (gpu-check.json)")
    made.add_argument("--quick", action="store_true", help="one of the tiny models in the checks, the smallest shape in speed: a minute or two")
    made.add_argument("--time-limit", metavar="SECONDS", type=float, default=LIMIT_S, help=f"nothing is begun after it ({LIMIT_S:.0f})")
    made.add_argument("--shapes", metavar="NAMES", help=f"shapes whose speed is measured, with commas: {', '.join(SHAPES)}")
    made.add_argument("--type", default="Q4_0", choices=tuple(CODES), help="weight type of the random models (Q4_0)")
    made.add_argument("--only", choices=("checks", "speed"), help="one of the two parts")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; returns the exit code."""
    options = parser()
    args = options.parse_args(arguments)
    shapes = tuple(args.shapes.split(",")) if args.shapes else plan.QUICK_MODELS if args.quick else plan.MODELS
    if not set(shapes) <= set(SHAPES):
        options.error(f"--shapes: {args.shapes!r} is not allowed; allowed: {', '.join(SHAPES)}")
    if args.model is not None and not Path(args.model).is_file():
        options.error(f"--model: {args.model}: no such file")
    clock = plan.Clock(args.time_limit)
    try:
        listed = plan.named(args.device) if args.device else plan.gpus()
    except StrataError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 1
    if not listed.places:
        print(f"gpu-check: no GPU found{listed.hint}", file=sys.stderr)
        return 1
    for line in listed.trouble:
        print(f"gpu-check: only OpenCL is checked: {line}", file=sys.stderr)
    file = str(Path(args.model).resolve()) if args.model else None
    job = plan.Job(shapes, args.type, file, args.quick, args.only != "speed", args.only != "checks")
    asked = {"quick": args.quick, "checks": job.checks, "sections": list(correctness.SECTIONS) if job.checks else []}
    found: dict[str, Any] = {"about": report.about(), "limit_s": args.time_limit, "asked": asked, "unlisted": listed.trouble}
    found["devices"] = plan.run(listed.places, job, clock, lambda line: print(f"[{clock.took:3.0f} s] {line}", file=sys.stderr, flush=True))
    found["took_s"] = clock.took
    report.finished(found)
    report.show(found)
    try:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"gpu-check: {args.json} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return report.EXIT_CODES[found["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
