"""The window rules by themselves: worked examples, and definitions in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.config import Tune
from backends.decode.window import DEPTH_MAX, PCum, WindowRules, for_request
from backends.errors import BadValue

UNITS = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 0.6, 0.81, 0.9]), st.floats(0, 1))
P = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.9, 1e-40, math.nan]), st.floats(0, 1, width=32), st.floats(0.75, 1, width=32)).map(np.float32)
DEPTHS = st.integers(0, 400)


def floats(*values: float) -> list[np.float32]:
    return [np.float32(value) for value in values]


def nearest64(x: Fraction) -> Fraction:
    """x rounded to float64: Python's division of integers rounds correctly."""
    return Fraction(x.numerator / x.denominator)


def nearest32(x: Fraction) -> Fraction:
    """x of 0..1 rounded to float32, ties to even, from the definition."""
    exponent = -149
    while x >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent


def threshold_exactly(rule: PCum, depth: int) -> Fraction:
    base, deep = Fraction(rule.base), Fraction(rule.deep)
    if depth >= rule.d1:
        return nearest32(deep)
    if depth < rule.d0:
        return nearest32(base)
    slope = nearest64(nearest64(deep - base) * (depth - rule.d0))
    return nearest32(nearest64(base + nearest64(slope / (rule.d1 - rule.d0))))


def kept_exactly(rules: WindowRules, probabilities: list[np.float32], depth: int) -> int:
    """By the letter, in fractions: the earlier of two stops that are found apart."""
    single = next((j for j, p in enumerate(probabilities) if math.isnan(p) or Fraction(float(p)) < nearest32(Fraction(rules.min_p))), None)
    numbers = probabilities[:single]
    if rules.p_cum is None:
        return len(numbers)
    product, threshold = Fraction(1), threshold_exactly(rules.p_cum, depth)
    for j, p in enumerate(numbers):
        product = nearest64(product * Fraction(float(p)))
        if product < threshold:
            return j
    return len(numbers)


@pytest.mark.parametrize(
    ("rules", "probabilities", "expected"),
    [
        (WindowRules(0.7), (0.9, 0.6, 0.9), 1),
        (WindowRules(0.95), (0.9, 0.99), 0),
        (WindowRules(0, PCum(0.6)), (0.85,) * 4, 3),
        (WindowRules(0, PCum(0.25)), (0.5,) * 3, 2),
        (WindowRules(0, PCum(0.81)), (0.9, 0.9), 1),  # float32(.9) squared is a bit below .81
        (WindowRules(0, PCum(0.8)), (0.9, 0.9), 2),
        (WindowRules(0.9), (0.9, 0.9), 2),  # equal as float32
        (WindowRules(0.9), (np.nextafter(np.float32(0.9), np.float32(0)),), 0),
        (WindowRules(0.7, PCum(0.25)), (0.9, 0.6, 0.9), 1),  # the single rule stops first,
        (WindowRules(0.5, PCum(0.8)), (0.9, 0.8, 0.4), 1),  # the cumulative one,
        (WindowRules(0.5, PCum(0.8)), (0.9, 0.4), 1),  # both at once
        (WindowRules(0, PCum(1)), (1.0, 1.0, 1.0), 3),
        (WindowRules(1), (1.0, 1.0, 1 - 2**-24), 2),
        (WindowRules(0), (0.0, 1e-45, 0.5), 3),
        (WindowRules(0, PCum(0)), (0.0, 1e-45, 0.5), 3),
        (WindowRules(0, PCum(0)), (1e-45,) * 8, 8),  # a product that underflows
        (WindowRules(0), (0.9, math.nan, 0.9), 1),
        (WindowRules(0, PCum(0)), (math.nan,), 0),
        (WindowRules(0.5, PCum(0.5)), (), 0),
    ],
)
def test_worked_examples(rules: WindowRules, probabilities: tuple[float, ...], expected: int) -> None:
    assert rules.kept(floats(*probabilities), 0) == expected
    assert rules.kept(np.array(probabilities, np.float32), 0) == expected


def test_the_running_interface() -> None:
    rules = WindowRules(0, PCum(0.6))
    chain = floats(0.85, 0.85, 0.85, 0.85)
    assert [rules.keeps(chain[: n + 1], 0) for n in range(4)] == [True, True, True, False]
    assert WindowRules() == WindowRules(0.5, None)


@pytest.mark.parametrize(("depth", "expected"), [(0, 0.9), (99, 0.9), (100, 0.9), (150, 0.7), (199, 0.504), (200, 0.5), (300, 0.5), (DEPTH_MAX, 0.5)])
def test_the_threshold_by_depth(depth: int, expected: float) -> None:
    rule = PCum(0.9, 0.5, 100, 200)
    assert rule.threshold(depth) == np.float32(expected)
    assert rule.threshold(depth).dtype == np.float32
    just = floats(float(rule.threshold(depth)))
    assert WindowRules(0, rule).kept(just, depth) == 1
    assert WindowRules(0, rule).kept([np.nextafter(just[0], np.float32(0))], depth) == 0


@pytest.mark.parametrize("at", [0, 1, 7, 16384])
def test_a_step(at: int) -> None:
    rule = PCum(0.25, 0.75, at, at)
    assert [rule.threshold(depth) for depth in (at - 1, at, at + 1)] == [0.25, 0.75, 0.75]
    np.testing.assert_array_equal(rule.thresholds(at + 2), [0.25] * at + [0.75] * 2)


def test_defaults() -> None:
    assert PCum(0.9) == PCum(0.9, 0.9, 16384, 49152)
    assert PCum(0.9, 0.5) == PCum(0.9, 0.5, 16384, 49152)
    assert {float(PCum(0.5).threshold(depth)) for depth in (0, 16384, 30000, 49152, DEPTH_MAX)} == {0.5}
    assert PCum(1, 0, 0, 2).threshold(1) == 0.5  # integers are numbers too
    assert not PCum(0, 0).thresholds(40).any()


@given(UNITS, UNITS, DEPTHS, DEPTHS, st.integers(0, 500))
@example(0.9, 0.5, 100, 200, 100)
@example(0.9, 0.5, 100, 200, 101)
@example(0.9, 0.5, 100, 200, 0)
@example(0.1, 0.7, 0, 0, 3)
def test_the_table_is_the_function_and_the_definition(base: float, deep: float, d0: int, more: int, ctx: int) -> None:
    rule = PCum(base, deep, d0, d0 + more)
    table = rule.thresholds(ctx)
    assert table.dtype == np.float32 and table.shape == (ctx,)
    assert [float(v) for v in table] == [float(rule.threshold(depth)) for depth in range(ctx)]
    for depth in range(0, ctx, 17):
        assert Fraction(float(table[depth])) == threshold_exactly(rule, depth)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, DEPTH_MAX), st.integers(0, DEPTH_MAX), st.integers(0, DEPTH_MAX))
def test_the_ramp_is_straight(base: int, deep: int, a: int, b: int, depth: int) -> None:
    """Thousandths as typed, on an exact line: what float64 adds is far below float32's own rounding."""
    d0, d1 = sorted((a, b))
    got = Fraction(float(PCum(base / 1000, deep / 1000, d0, d1).threshold(depth)))
    part = Fraction(min(max(depth - d0, 0), d1 - d0), d1 - d0) if d1 > d0 else Fraction(depth >= d1)
    exact = (base + (deep - base) * part) / 1000
    assert abs(got - exact) <= exact / 2**24 + Fraction(1, 2**51)


@given(UNITS, st.none() | st.tuples(UNITS, UNITS, DEPTHS, DEPTHS), st.lists(P, max_size=7), DEPTHS)
def test_equals_the_definition(min_p: float, p_cum: tuple[float, float, int, int] | None, probabilities: list[np.float32], depth: int) -> None:
    rule = None if p_cum is None else PCum(p_cum[0], p_cum[1], p_cum[2], p_cum[2] + p_cum[3])
    rules = WindowRules(min_p, rule)
    assert rules.kept(probabilities, depth) == kept_exactly(rules, probabilities, depth)
    # A threshold on the product itself: equality keeps, one float above drops.
    with np.errstate(under="ignore"):
        product = np.prod(np.array(probabilities, np.float64))
    if probabilities and not math.isnan(product):
        near = np.float32(product)
        for threshold in {near, np.nextafter(near, np.float32(0)), min(np.nextafter(near, np.float32(2)), np.float32(1))}:
            rules = WindowRules(0, PCum(float(threshold)))
            assert rules.keeps(probabilities, depth) == (product >= float(threshold))
            assert rules.kept(probabilities, depth) == kept_exactly(rules, probabilities, depth)


SET = WindowRules(0.5, PCum(0.9, 0.6, 100, 200))
UNSET = WindowRules(0.5)


@pytest.mark.parametrize(
    ("rules", "tune", "expected"),
    [
        (SET, Tune(), SET),
        (UNSET, Tune(), UNSET),
        (SET, Tune(spec_p_cum=0.3), WindowRules(0.5, PCum(0.3, 0.3, 100, 200))),
        (UNSET, Tune(spec_p_cum=0.3), WindowRules(0.5, PCum(0.3))),
        (SET, Tune(spec_p_cum_deep=0.3), WindowRules(0.5, PCum(0.9, 0.3, 100, 200))),
        (UNSET, Tune(spec_p_cum_deep=0.3), WindowRules(0.5, PCum(0.0, 0.3, 16384, 49152))),
        (SET, Tune(spec_p_cum=0.3, spec_p_cum_deep=0.2), WindowRules(0.5, PCum(0.3, 0.2, 100, 200))),
        (UNSET, Tune(spec_p_cum=0.3, spec_p_cum_deep=0.2), WindowRules(0.5, PCum(0.3, 0.2, 16384, 49152))),
        (SET, Tune(spec_p_cum=0), WindowRules(0.5, PCum(0, 0, 100, 200))),
        (UNSET, Tune(spec_p_cum=0), WindowRules(0.5, PCum(0))),
        (UNSET, Tune(spec_p_cum_deep=0), WindowRules(0.5, PCum(0))),
        (SET, Tune(spec_min_p=0), WindowRules(0, SET.p_cum)),
        (UNSET, Tune(spec_min_p=0.8), WindowRules(0.8)),
        (UNSET, Tune(spec_p_cum=0.3, spec_p_cum_deep=0.2, spec_min_p=1), WindowRules(1, PCum(0.3, 0.2))),
    ],
)
def test_keys_of_a_request(rules: WindowRules, tune: Tune, expected: WindowRules) -> None:
    assert for_request(rules, tune) == expected


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, math.inf, True, "0.5", np.float32(0.5)])
def test_numbers_that_are_not_allowed(value: object) -> None:
    makers: dict[str, Callable[[Any], object]] = {"p_cum base": PCum, "p_cum deep": partial(PCum, 0.5), "window rule min_p": WindowRules}
    for name, make in makers.items():
        with pytest.raises(BadValue) as caught:
            make(value)
        assert str(caught.value) == f"{name}: {value!r} is not allowed; allowed: a number from 0 to 1"


@pytest.mark.parametrize(
    ("d0", "d1", "message"),
    [
        (-1, 5, "p_cum d0: -1 is not allowed; allowed: an integer from 0 to 2147483647"),
        (1.0, 5, "p_cum d0: 1.0 is not allowed"),
        (True, 5, "p_cum d0: True is not allowed"),
        (2**31, 2**31, "p_cum d0: 2147483648 is not allowed"),
        (5, 4, "p_cum d1: 4 is not allowed; allowed: an integer from d0, here 5, to 2147483647"),
        (5, 2**31, "p_cum d1: 2147483648 is not allowed"),
        (5, "9", "p_cum d1: '9' is not allowed"),
    ],
)
def test_depths_that_are_not_allowed(d0: object, d1: object, message: str) -> None:
    with pytest.raises(BadValue) as caught:
        PCum(0.5, 0.5, d0, d1)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_a_rule_of_another_kind() -> None:
    with pytest.raises(BadValue, match=r"window rule p_cum: 0\.5 is not allowed; allowed: a PCum, or None"):
        WindowRules(0.5, 0.5)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=r"p_cum base: None is not allowed"):
        PCum(None)  # type: ignore[arg-type]
    PCum(0, 1, DEPTH_MAX, DEPTH_MAX)
