"""The seed of a chain of drafts that see the slop policy: the state behind the last committed token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.config import Request, RoundTrace
from backends.decode.slop import State, fresh, step
from backends.decode.slop_adjust import adjust
from backends.engine import Engine
from tests.backends.test_drafts import rule
from tests.backends.test_slop import BREAK, CLOSE, SAMPLED, STRONG, UNFILTERED, class_masks, opened, write_files

PLACES: dict[str, dict[str, Any]] = {"cpu": {"backend": "opencl"}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with opened(write_files(tmp_path_factory.mktemp("slop")), place, cache_dir) as engine:
        yield engine


def first_draft_rows(engine: Engine, request: Request) -> tuple[dict[int, NDArray[np.float32]], list[RoundTrace]]:
    """The draft head's row of every round's first draft, by the position of the last token; and the rounds. For windows of two."""
    session, rows, rounds = engine.session(), dict[int, NDArray[np.float32]](), list[RoundTrace]()
    for _ in session.generate(request, trace=rounds.append):
        assert engine.drafter is not None
        if rounds[-1].drafts:
            rows[rounds[-1].next_depth] = engine.device.download(session.sequence(1).draft_work.logits, np.float32, engine.drafter.n_ids)
    return rows, rounds


def test_the_seed_of_a_chain(engine: Engine) -> None:
    """The first draft's row is what the state behind all committed tokens makes of it. Stepping a window's picks from the state before its
    first input, a known mistake, leaves that token out: it then fails at line starts and behind the end of thinking."""
    rule(engine, 2)
    assert engine.drafter is not None and engine.drafter.vocabulary is not None
    masks, wrong_behind = class_masks(), set[int]()
    for base, seed in itertools.product((SAMPLED, UNFILTERED), range(3)):
        request = replace(base, slop=STRONG, seed=seed)
        engine.config = replace(engine.config, mtp_slop=False)
        untouched, _ = first_draft_rows(engine, replace(request, corrupt=1))  # nothing accepted: a round at every position
        engine.config = replace(engine.config, mtp_slop=True)
        found, rounds = first_draft_rows(engine, request)
        assert any(len(entry.tokens) == 2 for entry in rounds)
        start = rounds[0].depth  # of the prompt's last token, which is not stepped
        states = {start: fresh(thinking=base is UNFILTERED)}
        text = {start + 1 + i: token for i, token in enumerate(token for entry in rounds for token in entry.tokens)}
        for position, token in text.items():
            states[position] = step(states[position - 1], int(masks[token]))
        for entry in rounds:
            if not entry.drafts:
                continue
            row, before = found[entry.next_depth], untouched[entry.next_depth].astype(np.float64)

            def fits(state: State, row: NDArray[np.float32] = row, before: NDArray[np.float64] = before) -> bool:
                expected = adjust(before, masks[engine.drafter.vocabulary], state, STRONG, SAMPLED.temperature)  # type: ignore[union-attr]
                return np.allclose(row, expected, rtol=0, atol=1e-5 * float(np.abs(before).max()))

            assert fits(states[entry.next_depth]), (seed, entry)
            if entry.depth > start:
                mistaken = states[entry.depth - 1]
                for token in entry.tokens:
                    mistaken = step(mistaken, int(masks[token]))
                if not fits(mistaken):
                    wrong_behind.add(text[entry.depth])
    assert {CLOSE, BREAK} <= wrong_behind
