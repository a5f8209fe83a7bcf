"""What `--slop` changes in a model's answers, prompt by prompt, with intervals: the tables of docs/slop.md.

    python -m tests.bench.slop_effect requests > slop.jsonl
    strata batch slop.jsonl -o off.jsonl -n 200
    strata batch slop.jsonl -o on.jsonl -n 200 --slop default
    python -m tests.bench.slop_effect table MODEL.gguf off.jsonl on.jsonl

Requests: the sets persona, coding and control, each prompt greedily and at temperature 0.8 with three seeds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from strata_cli.slop_report import Policy

DATA = Path(__file__).parents[2] / "data"
SETS = ("persona", "coding", "control")
COUNTED = ("dashes", "phrases", "openers", "bullet_lines", "headings", "bold")
DRAWS = 10_000


def requests() -> None:
    """Prints the requests, a line each."""
    for name in SETS:
        for line in (DATA / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            prompt = json.loads(line)
            asked = {key: prompt[key] for key in ("prompt", "system") if key in prompt}
            for seed in (None, 1, 2, 3):
                how = {"temperature": 0} if seed is None else {"temperature": 0.8, "seed": seed}
                print(json.dumps({"id": f"{prompt['id']}/{'greedy' if seed is None else seed}", **asked, **how}))


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """Results by id."""
    return {result["id"]: result for result in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def table(model: Path, off: Path, on: Path) -> None:
    """Prints Markdown: counts per 1,000 tokens, and their difference with the 95% percentile interval over prompts drawn with replacement.

    A prompt's four answers are drawn together, as they are not independent. A percentile interval of 20 prompts is somewhat too narrow.
    """
    policy = Policy.of(model, str(DATA / "slop_lexicon.txt"), str(DATA / "slop_openers.txt"))
    sides = answers(off), answers(on)
    rng = np.random.default_rng(1)
    print("| set | per 1,000 tokens | off | on | difference (95%) |\n| --- | --- | --- | --- | --- |")
    for name in SETS:
        ids = sorted({key.rsplit("/", 1)[0] for key in sides[0] if key.startswith(f"{name}-")})
        # [side][prompt][tokens, counts...]
        sums = np.array([[_sums(policy, [side[key] for key in side if key.startswith(f"{prompt}/")]) for prompt in ids] for side in sides], float)
        drawn = rng.integers(0, len(ids), (DRAWS, len(ids)))
        for place, what in enumerate(COUNTED, 1):
            off_rate, on_rate = (1000 * side[:, place].sum() / side[:, 0].sum() for side in sums)
            rates = [1000 * side[drawn, place].sum(1) / side[drawn, 0].sum(1) for side in sums]
            low, high = np.percentile(rates[1] - rates[0], [2.5, 97.5])
            print(f"| {name} | {what.replace('_', ' ')} | {off_rate:.2f} | {on_rate:.2f} | {on_rate - off_rate:+.2f} ({low:+.2f} to {high:+.2f}) |")
        tokens, ended = [side[:, 0].sum() for side in sums], [side[:, -1].sum() for side in sums]
        print(f"| {name} | tokens in all; ended by themselves | {tokens[0]:.0f}; {ended[0]:.0f} | {tokens[1]:.0f}; {ended[1]:.0f} | |")


def _sums(policy: Policy, results: list[dict[str, Any]]) -> list[int]:
    counted = policy.count([result["text"] for result in results])
    ended = sum(result["finish_reason"] == "stop" for result in results)
    return [counted["tokens"], *(counted["counts"][what] for what in COUNTED), ended]


if __name__ == "__main__":
    if sys.argv[1:2] == ["requests"]:
        requests()
    else:
        table(*map(Path, sys.argv[2:5]))
