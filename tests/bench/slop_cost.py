"""What the slop policy costs a round, in parts: the table of docs/slop.md. `python -m tests.bench.slop_cost MODEL.gguf`.

Rounds of one size (no draft is ever dropped) with the policy and without it, in turn in one process; then drafts that see it beside drafts
that do not, both under the policy. The bundled drafter and its vocabulary.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from backends.config import DecodeConfig, Request, RoundTrace
from backends.decode.slop import DEFAULT
from backends.engine import Engine, Session
from strata_cli.folders import cache_folder

DATA = Path(__file__).parents[2] / "data"
TURNS, NEW, DRAWS = 40, 100, 10_000
ASKED = Request(prompt="Tell me a story.", max_new=NEW, seed=1, ignore_eos=True)
PICKS = {"greedy": {}, "temperature 0.8": {"temperature": 0.8}, "and top-p 0.9": {"temperature": 0.8, "top_p": 0.9}}
WINDOWS = (1, 2, 4, 8)


def ms(session: Session, request: Request, rows: int) -> float:
    """The median round of `rows` rows of one generation."""
    session.engine.window = rows
    trace: list[RoundTrace] = []
    for _ in session.generate(request, trace=trace.append):
        pass
    return float(np.median([entry.ms for entry in trace[2:] if entry.rows == rows]))


def main(model: str) -> None:
    """Prints Markdown: the median of the turns' differences and its 95% percentile interval over turns drawn with replacement."""
    lists = {name: str(DATA / f"{name}.txt") for name in ("slop_lexicon", "slop_openers")}
    config = DecodeConfig(
        spec=max(WINDOWS),
        spec_min_p=0.0,
        mtp_model=str(DATA / "drafters" / "smollm2-135m-instruct-mtp-q8_0.gguf"),
        draft_vocab=str(DATA / "draft-vocab" / "smollm2-en.bin"),
        cache_dir=cache_folder(os.environ),
        **lists,
    )
    rng = np.random.default_rng(1)
    with Engine.open(model, config) as blind, Engine.open(model, replace(config, mtp_slop=True)) as seeing:
        blind.wait_wide()
        seeing.wait_wide()
        off, on, drafts = blind.session(), blind.session(), seeing.session()
        print("| picks | rows | round ms | policy | of a round (95%) | drafts that see it | of a round (95%) |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for picks, how in PICKS.items():
            plain = replace(ASKED, **how)
            policy = replace(plain, slop=DEFAULT)
            for rows in WINDOWS:
                sides = ((off, plain), (on, policy), (drafts, policy))
                for session, request in sides:
                    ms(session, request, rows)
                turns = []
                for _ in range(TURNS):
                    order = rng.permutation(3)
                    took = {int(side): ms(*sides[side], rows) for side in order}
                    turns.append([took[side] for side in range(3)])
                found = np.array(turns)
                cells = []
                for before, after in ((0, 1), (1, 2)):
                    share = 100 * (found[:, after] / found[:, before] - 1)
                    low, high = np.percentile(np.median(share[rng.integers(0, TURNS, (DRAWS, TURNS))], axis=1), [2.5, 97.5])
                    micro = 1e3 * np.median(found[:, after] - found[:, before])
                    cells.append(f"{micro:.0f} us | {np.median(share):.1f}% ({low:.1f} to {high:.1f})" if rows > 1 or after == 1 else " | ")
                print(f"| {picks} | {rows} | {np.median(found[:, 0]):.2f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
