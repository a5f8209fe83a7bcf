"""The filters and penalties by themselves, against what SEMANTICS-style definitions say in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from backends import reference_math
from backends.decode.sampling import UNIT, Filters, Penalties, kept, penalise


def kept_exactly(logits: np.ndarray, filters: Filters) -> set[int]:
    """The same by the letter: sorted Python tuples, weights as integers, parts as fractions."""
    top = logits.max()
    weights = {i: int(reference_math.exp(np.float32(v - top)) * np.float64(UNIT)) for i, v in enumerate(logits) if v > -np.inf}
    order = sorted(weights, key=lambda i: (-logits[i], i))
    if filters.top_k:
        order = order[: filters.top_k]
    if filters.top_p < 1:
        total = sum(weights[i] for i in order)
        sums = np.cumsum([Fraction(weights[i]) for i in order])
        need = next(n for n, s in enumerate(sums, 1) if s >= Fraction(filters.top_p) * total)
        order = order[:need]
    return {i for i in order if weights[i] >= Fraction(filters.min_p) * UNIT}


def test_against_the_definition() -> None:
    rng = np.random.default_rng(1)
    for trial in range(300):
        logits = (rng.normal(size=rng.integers(1, 60)) * rng.choice([0.1, 1, 5])).astype(np.float32)
        if trial % 3 == 0:
            logits = np.round(logits)
        if trial % 5 == 0:
            logits[rng.random(len(logits)) < 0.4] = -np.inf
            logits[rng.integers(len(logits))] = 1
        filters = Filters(int(rng.choice([0, 1, 3, 40])), float(rng.choice([0, 0.3, 0.75, 0.95, 1])), float(rng.choice([0, 0.05, 0.4, 1])))
        assert set(np.flatnonzero(kept(logits, filters))) == kept_exactly(logits, filters), (filters, logits)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(), [0, 1, 2, 3, 4]),
        (Filters(top_k=2), [1, 3]),  # of three equal ones the lowest ids
        (Filters(top_k=1), [1]),
        (Filters(top_k=9), [0, 1, 2, 3, 4]),
        (Filters(top_p=0.0), [1]),
        (Filters(top_p=0.3), [1]),  # 1/3 - a bit
        (Filters(top_p=0.5), [1, 3]),
        (Filters(min_p=1.0), [1, 3, 4]),
        (Filters(min_p=0.05), [0, 1, 3, 4]),
        (Filters(min_p=0.06), [1, 3, 4]),
        (Filters(top_k=4, top_p=0.99, min_p=0.2), [1, 3, 4]),
    ],
)
def test_worked_examples(filters: Filters, expected: list[int]) -> None:
    logits = np.array([2.0 - np.log(18.0), 2.0, -9.0, 2.0, 2.0], np.float32)  # 1/18, 1, e^-11, 1, 1
    assert np.flatnonzero(kept(logits, filters)).tolist() == expected


@pytest.mark.parametrize("min_p", [0.05, 0.1, 0.3, 2**-40, 1 - 2**-30, 1.0])
def test_least_weight_is_rounded_up(min_p: float) -> None:
    """A float weight passes where the integer below it does: no float lies between min_p and its threshold."""
    least = Filters(min_p=min_p).least_weight
    assert Fraction(float(least)) >= Fraction(min_p) * UNIT
    below = np.nextafter(least, np.float32(0))
    assert int(below) < Fraction(min_p) * UNIT


def test_penalties_by_hand() -> None:
    logits = np.array([3.0, -2.0, 1.0, 0.5, 0.0], np.float32)
    history = np.array([4, 0, 1, 0, 2, 1], np.int32)
    out = penalise(logits, history, Penalties(repeat=2.0, presence=0.25, frequency=0.5, last_n=-1))
    assert out.tolist() == [1.5 - 1.0 - 0.25, -4.0 - 1.0 - 0.25, 0.5 - 0.5 - 0.25, 0.5, 0.0 - 0.5 - 0.25]
    assert penalise(logits, history, Penalties(repeat=2.0, last_n=2)).tolist() == [3.0, -4.0, 0.5, 0.5, 0.0]
    assert penalise(logits, history, Penalties(repeat=2.0, last_n=0)).tolist() == logits.tolist()
    assert logits.tolist() == [3.0, -2.0, 1.0, 0.5, 0.0]
