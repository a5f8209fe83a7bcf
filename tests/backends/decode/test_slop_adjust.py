"""Amounts, hold and guard of the slop policy on rows of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backends.decode.slop import DEFAULT, OFF, Knobs, State
from backends.decode.slop_adjust import adjust, amounts, hold
from backends.decode.slop_masks import Masks
from backends.decode.slop_tables import (
    BOLD,
    BOLD_OPEN,
    BULLET,
    CLAUSE_START,
    DASH,
    EMOJI,
    END,
    FENCED,
    HEADING,
    LEXICAL,
    LINE_START,
    OPENER,
    PROSE,
    THINK,
    TOOL,
    VISIBLE,
)

KNOBS = Knobs(dash=1.5, lexical=2, structure=0.5, opener=3)
CLASSES = (DASH, BULLET, HEADING, BOLD, LEXICAL, OPENER, EMOJI)
MASKS: Masks = np.array([0, VISIBLE, END, *(bit | VISIBLE for bit in CLASSES), DASH | END], np.uint32)
ROWS = st.integers(0, 2**32 - 1)


def lowered(state: State, *bits: int, knobs: Knobs = KNOBS) -> list[float]:
    return amounts(state, np.array(bits, np.uint32), knobs).tolist()  # type: ignore[no-any-return]


def softmax(row: NDArray[Any], temperature: float) -> NDArray[Any]:
    weights = np.exp((row - row.max()) / temperature)
    return weights / weights.sum()  # type: ignore[no-any-return]


def test_amounts() -> None:
    state = State(flags=0, dashes=2, bullet_run=3, headings=1, bolds=2, visible=9)
    assert lowered(state, 0, *CLASSES) == [0, 4.5, 0, 0, 1.5, 2, 0, 2]
    at_line_start = State(flags=LINE_START | CLAUSE_START, dashes=2, bullet_run=3, headings=1, bolds=2, visible=9)
    assert lowered(at_line_start, *CLASSES) == [4.5, 1.5, 1, 1.5, 2, 1.5, 2]
    assert lowered(State(flags=0), OPENER) == [3]  # whatever comes first opens the answer
    assert lowered(State(flags=BOLD_OPEN, visible=1), BOLD) == [0]
    assert lowered(state, DASH | LEXICAL | EMOJI | BOLD | VISIBLE) == [10]
    assert lowered(state, DASH | END, LEXICAL | END) == [0, 0]


def test_an_id_loses_30_at_most() -> None:
    assert lowered(State(dashes=255, visible=1), DASH, knobs=Knobs(dash=20)) == [30]
    assert lowered(State(visible=0), LEXICAL | OPENER, knobs=Knobs(lexical=20, opener=20)) == [30]


@pytest.mark.parametrize("region", [FENCED, THINK, TOOL])
def test_only_prose_is_touched(region: int) -> None:
    row = np.linspace(-3, 3, len(MASKS))
    for temperature in (0, 0.7):
        assert np.array_equal(adjust(row, MASKS, State(region=region, dashes=9, visible=1), KNOBS, temperature), row)
        assert np.array_equal(adjust(row, MASKS, State(region=region, visible=0), OFF, temperature), row)


@pytest.mark.parametrize("region", [PROSE, THINK])
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_no_empty_turn(region: int, temperature: float) -> None:
    """However certain the end is: nothing to read yet, and thinking is nothing to read."""
    row = np.where(MASKS & END, 50.0, 0.0)
    held = (MASKS & END) != 0
    empty = adjust(row, MASKS, State(region=region, visible=0), KNOBS, temperature)
    assert (empty[held] == -np.inf).all() and np.isfinite(empty[~held]).all()
    shown = adjust(row, MASKS, State(region=region, visible=1), KNOBS, temperature)
    assert np.isfinite(shown[held]).all() and held[shown.argmax()]


def random_row(seed: int, size: int = 64) -> tuple[NDArray[np.float64], Masks]:
    draw = np.random.default_rng(seed)
    row = draw.normal(0, draw.choice([0.5, 3, 10]), size)
    row[draw.random(size) < 0.05] = -np.inf
    masks = draw.choice(MASKS, size)
    return row, masks


@settings(max_examples=300, deadline=None)
@given(ROWS, st.floats(0.3, 2), st.integers(0, 3), st.sampled_from([None, 0.0, 5.0, 30.0, 60.0]))
@example(seed=1, temperature=0.3, ends=1, end_logit=60.0)
def test_the_hold_keeps_the_probability_of_ending(seed: int, temperature: float, ends: int, end_logit: float | None) -> None:
    """Over random amounts of 0..30, END absent, at -inf, or nearly certain."""
    row, _ = random_row(seed)
    draw = np.random.default_rng(seed + 1)
    held = np.zeros(len(row), np.bool_)
    held[draw.choice(len(row), ends, replace=False)] = True
    if end_logit is not None:
        row[held] = end_logit
    less = np.where(held | (draw.random(len(row)) < 0.5), 0, draw.uniform(0, 30, len(row)))
    assume(np.isfinite(row[~held]).any())
    c = hold(row, less, held, temperature)
    assert c >= -1e-12
    after = np.where(held, row - c, row - less)
    np.testing.assert_allclose(softmax(after, temperature)[held], softmax(row, temperature)[held], rtol=1e-6, atol=0)
    if not np.isfinite(row[held]).any():
        assert c == 0


@settings(max_examples=300, deadline=None)
@given(ROWS, st.floats(0.3, 2), st.integers(0, 255), st.integers(0, 15), st.floats(0, 20), st.floats(0, 20))
def test_adjusted_rows_keep_it_too(seed: int, temperature: float, count: int, flags: int, dash: float, other: float) -> None:
    row, masks = random_row(seed)
    held = (masks & END) != 0
    assume(np.isfinite(row[~held]).any())
    state = State(PROSE, flags, count, count, count, count, 1)
    after = adjust(row, masks, state, Knobs(dash, other, other, other), temperature)
    np.testing.assert_allclose(softmax(after, temperature)[held], softmax(row, temperature)[held], rtol=1e-6, atol=0)


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(0, 15))
def test_penalties_never_make_a_greedy_answer_end(seed: int, flags: int) -> None:
    row, masks = random_row(seed)
    held = (masks & END) != 0
    assume(np.isfinite(row[~held]).any())
    after = adjust(row, masks, State(PROSE, flags, 9, 9, 9, 9, 1), DEFAULT, 0)
    if not held[row.argmax()]:
        assert not held[after.argmax()]
        assert (after[held] == -np.inf).all()
    else:
        np.testing.assert_allclose(softmax(after, 1)[held], softmax(row, 1)[held], rtol=1e-6, atol=0)


def test_worked_hold() -> None:
    """Q = e^0 + e^1, Q' = e^0 + e^(1-2): both END ids are lowered by log(Q / Q')."""
    row, masks = np.array([0.0, 1.0, 2.0, 0.5]), np.array([VISIBLE, LEXICAL, END, END], np.uint32)
    after = adjust(row, masks, State(flags=0, visible=1), Knobs(lexical=2), 1.0)
    c = np.log((1 + np.e) / (1 + np.exp(-1)))
    np.testing.assert_allclose(after, [0, -1, 2 - c, 0.5 - c])


def test_no_hold_without_mass() -> None:
    masks = np.array([VISIBLE, LEXICAL, END], np.uint32)
    state, knobs = State(flags=0, visible=1), Knobs(lexical=2)
    assert adjust(np.array([0.0, 1.0, -np.inf]), masks, state, knobs, 1.0).tolist() == [0, -1, -np.inf]
    assert adjust(np.array([-np.inf, -np.inf, 1.0]), masks, state, knobs, 1.0).tolist() == [-np.inf, -np.inf, 1]


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.3, 0.8, 2.0]), st.integers(0, 255), st.integers(0, 15), st.integers(0, 1), st.sampled_from([0, 1, 2, 3]))
def test_float32_is_float64(seed: int, temperature: float, count: int, flags: int, visible: int, region: int) -> None:
    row, masks = random_row(seed, 512)
    assume(np.isfinite(row).any())
    state = State(region, flags, count, count, count, count, visible)
    single = row.astype(np.float32)
    for knobs in (OFF, DEFAULT, KNOBS, Knobs(20, 20, 20, 20), Knobs(dash=0.1)):
        exact = adjust(single.astype(np.float64), masks, state, knobs, temperature)
        rounded = adjust(single, masks, state, knobs, temperature)
        assert rounded.dtype == np.float32
        assert np.array_equal(np.isfinite(exact), np.isfinite(rounded))
        scale = max(1.0, float(np.abs(single[np.isfinite(single)]).max()))
        finite = np.isfinite(exact)
        assert np.abs(exact[finite] - rounded[finite]).max(initial=0) <= 2e-6 * scale
