"""What drafting costs on a machine, in parts: the table of docs/experiments.md. `python -m tests.bench.draft_cost MODEL.gguf`.

A round of n rows with n - 1 drafts behind it (every draft verified), beside the same window without a drafter; plain decoding beside drafts
that are all right and cost nothing. In turn, in one process; the bundled drafter and its vocabulary.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from backends.config import DecodeConfig, Request, Result, RoundTrace
from backends.engine import Engine, Session
from strata_cli.folders import cache_folder

DATA = Path(__file__).parents[2] / "data"
ROWS, TURNS, NEW = (1, 2, 3, 4, 5, 8), 8, 150
ASKED = Request(prompt="Tell me a story.", max_new=NEW, seed=1, ignore_eos=True)


def run(session: Session, request: Request, trace: list[RoundTrace] | None = None) -> Result:
    """One generation."""
    for _ in session.generate(request, trace=None if trace is None else trace.append):
        pass
    assert session.result is not None
    return session.result


def main(model: str) -> None:
    """Prints Markdown: medians over all turns, and the range of the turns' ratios."""
    cache = cache_folder(os.environ)
    drafting = DecodeConfig(
        spec=max(ROWS),
        spec_min_p=0.0,
        mtp_model=str(DATA / "drafters" / "smollm2-135m-instruct-mtp-q8_0.gguf"),
        draft_vocab=str(DATA / "draft-vocab" / "smollm2-en.bin"),
        cache_dir=cache,
    )
    rounds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    windows: dict[int, list[float]] = {rows: [] for rows in ROWS}
    ratios = []
    with Engine.open(model, drafting) as engine, Engine.open(model, DecodeConfig(mtp=False, cache_dir=cache)) as plain:
        engine.wait_wide()
        plain.wait_wide()
        drafts, alone = engine.session(), plain.session()
        for session in (drafts, alone):
            run(session, ASKED)
        for _ in range(TURNS):
            for rows in ROWS:
                engine.window = rows
                trace: list[RoundTrace] = []
                run(drafts, ASKED, trace)
                rounds[rows] += [entry.ms for entry in trace[3:] if entry.rows == rows]
                windows[rows] += alone.window_ms(rows, 30, 100)
            plain.config = replace(plain.config, spec=4)
            known = run(alone, ASKED)
            oracle = run(alone, replace(ASKED, oracle=known.token_ids))
            assert oracle.token_ids == known.token_ids
            ratios.append(known.timings.decode_ms / oracle.timings.decode_ms)
    print("| rows | round ms | window alone ms | drafts and cells ms | of a plain step |\n| --- | --- | --- | --- | --- |")
    for rows in ROWS:
        whole, window = median(rounds[rows]), median(windows[rows])
        print(f"| {rows} | {whole:.2f} | {window:.2f} | {whole - window:.2f} | {100 * (whole - window) / median(windows[1]):.0f}% |")
    print(f"\nAll drafts right, window 4: {median(ratios):.2f} times plain ({min(ratios):.2f} to {max(ratios):.2f} in {TURNS} turns)")


if __name__ == "__main__":
    main(sys.argv[1])
