"""What the slop policy makes of a row of logits: amounts, hold, guard. In float64 the truth, in float32 the same order of work as kernels/slop.h."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from backends.decode.slop import Knobs, State
from backends.decode.slop_masks import Masks
from backends.decode.slop_tables import (
    BOLD,
    BOLD_OPEN,
    BULLET,
    CAP,
    CLAUSE_START,
    DASH,
    EMOJI,
    END,
    HEADING,
    LEXICAL,
    LINE_START,
    OPENER,
    PROSE,
)

FAINT = 1e-12  # of the largest term; far above what float32 rounds to 0
Float = TypeVar("Float", np.float32, np.float64)


def class_amounts(state: State, knobs: Knobs, dtype: Any = np.float64) -> dict[int, Any]:
    """What each class costs in this state, in logits, by its bit and in the order of the bits; all 0 outside prose."""
    dash, lexical, structure, opener = (dtype(value) for value in knobs.values)
    zero = dtype(0)
    if state.region != PROSE:
        return dict.fromkeys((DASH, BULLET, HEADING, BOLD, LEXICAL, OPENER, EMOJI), zero)
    at_line_start = bool(state.flags & LINE_START)
    return {
        DASH: dash * dtype(1 + state.dashes),
        BULLET: structure * dtype(state.bullet_run) if at_line_start else zero,
        HEADING: structure * dtype(1 + state.headings) if at_line_start else zero,
        BOLD: zero if state.flags & BOLD_OPEN else structure * dtype(1 + state.bolds),
        LEXICAL: lexical,
        OPENER: opener if state.visible == 0 else opener / dtype(2) if state.flags & CLAUSE_START else zero,
        EMOJI: lexical,
    }


def amounts(state: State, masks: Masks, knobs: Knobs, dtype: Any = np.float64) -> NDArray[Any]:
    """What each id's logit is lowered by [len(masks)], 0..30: the sum over its classes, in the order of the bits. END ids: 0."""
    lowered = np.zeros(len(masks), dtype)
    for bit, cost in class_amounts(state, knobs, dtype).items():
        lowered += np.where(masks & np.uint32(bit), cost, dtype(0))
    np.minimum(lowered, dtype(CAP), out=lowered)
    lowered[(masks & np.uint32(END)) != 0] = 0
    return lowered


def hold(row: NDArray[Float], lowered: NDArray[Float], held: NDArray[np.bool_], temperature: float) -> Float:
    """How much held ids are to be lowered by, so that each keeps its probability while the others lose `lowered`.

    row: logits before, [vocabulary]; held: which ids are (END); temperature: 0 (greedy) counts as 1. c = T log(Q / Q'), where Q sums
    exp(l / T) over the ids not held and Q' sums exp((l - a) / T); relative to the largest l. Q - Q' is summed by itself, as little of it is
    left between two sums where the temperature is high. Where next to nothing is left of Q', it is relative to its own largest term instead.
    0 where no held id or no other id has mass.
    """
    dtype = row.dtype.type
    free = ~held & (row > -np.inf)
    if not free.any() or not (held & (row > -np.inf)).any():
        return dtype(0)
    t = dtype(temperature if temperature > 0 else 1)
    before, after = row[free], row[free] - lowered[free]
    top, left_top = before.max(), after.max()
    with np.errstate(invalid="ignore"):  # a logit that is infinite is found by whoever picks
        terms, shares = np.exp((before - top) / t), -lowered[free] / t
        if (sum_left := (terms * np.exp(shares)).sum(dtype=dtype)) > FAINT:
            return dtype(t * np.log1p((terms * -np.expm1(shares)).sum(dtype=dtype) / sum_left))
        sum_left = np.exp((after - left_top) / t).sum(dtype=dtype)
        return dtype((top - left_top) + t * (np.log(terms.sum(dtype=dtype)) - np.log(sum_left)))


def adjust(row: NDArray[Float], masks: Masks, state: State, knobs: Knobs, temperature: float) -> NDArray[Float]:
    """A row [vocabulary] after amounts, hold and guard; row: logits after bias and penalties, float32 or float64, which the result is too.

    masks: of the row's ids, uint32 of the same length (a draft head's rows: their ids' masks). state: behind the row's input token.
    temperature: of the picks; 0: greedy. In a greedy row whose largest logit is no held id's, held ids (END) become -inf: they are left out of
    that pick. A new array; with all knobs zero and outside prose a copy, but for the guard.
    """
    out = row.copy()
    if not knobs.active:
        return out
    held = (masks & np.uint32(END)) != 0
    if state.region == PROSE:
        lowered = amounts(state, masks, knobs, row.dtype.type)
        out = np.where(held, row - hold(row, lowered, held, temperature), row - lowered)
        if temperature == 0 and not held[int(np.argmax(row))]:
            out[held] = -np.inf
    if state.visible == 0:
        out[held] = -np.inf
    return out
