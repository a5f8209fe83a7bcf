"""The statistics of `strata bench` on simulated clocks: what an interval must cover, what it must find, what must cancel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from strata_cli.benchmark.measure import order
from strata_cli.benchmark.statistics import MIN_ROUNDS, TIE, compare, half_width, student

ROUNDS, PROMPTS = 6, 12  # the command's default rounds

Clock = Callable[[int, int, int], float]
"""The logarithm of a speed: of (arm, run in time, prompt)."""


def simulate(clock: Clock, arms: int = 2, rounds: int = ROUNDS) -> list[list[list[dict[int, float]]]]:
    """Speeds as [arm][round][run]{prompt: speed}, measured in the order of the real runs."""
    found: list[list[list[dict[int, float]]]] = [[[] for _ in range(rounds)] for _ in range(arms)]
    runs = ((round_, arm) for round_ in range(rounds) for arm in order(arms))
    for time, (round_, arm) in enumerate(runs):
        found[arm][round_].append({prompt: 100 * math.exp(clock(arm, time, prompt)) for prompt in range(PROMPTS)})
    return found


def machine(rng: np.random.Generator, slowdown: float = 1.0) -> Clock:
    """A noisy machine: each process has its own luck, with heavy tails; a walk and a drift of 20% through the whole; noise in each prompt,
    with heavy tails, and now and then one at half the speed.
    """
    total = 2 * 2 * ROUNDS
    process = 0.012 * rng.standard_t(3, total)
    walk = np.cumsum(rng.normal(0, 0.005, total)) + rng.uniform(-0.2, 0.2) * np.arange(total) / total
    noise = 0.02 * rng.standard_t(3, (total, PROMPTS)) - (rng.random((total, PROMPTS)) < 0.01) * math.log(2)
    return lambda arm, time, prompt: float(process[time] + walk[time] + noise[time, prompt] + (math.log(slowdown) if arm else 0))


def test_an_arm_beside_itself_is_covered() -> None:
    rng = np.random.default_rng(20240601)
    covered = 0
    for _ in range(1000):
        found = compare(*simulate(machine(rng)))
        assert found is not None and found.low is not None and found.high is not None
        covered += found.low <= 1 <= found.high
    assert 930 <= covered <= 970


@pytest.mark.parametrize("spread", ["even", "normal", "heavy"])
def test_an_interval_covers_the_mean(spread: str) -> None:
    rng = np.random.default_rng(7)
    draw = {"even": rng.random, "normal": rng.standard_normal, "heavy": lambda n: rng.standard_t(3, n)}[spread]
    middle = 0.5 if spread == "even" else 0.0
    covered = 0
    for _ in range(1000):
        values = np.asarray(draw(ROUNDS)).tolist()
        reach = half_width(values)
        assert reach is not None
        covered += abs(sum(values) / ROUNDS - middle) <= reach
    assert 930 <= covered <= 970


@pytest.mark.parametrize("step", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rounds", [MIN_ROUNDS, ROUNDS, 8])
def test_an_interval_covers_the_mean_with_a_coarse_clock(step: float, rounds: int) -> None:
    """The clock's step as a part of the spread. Where all rounds are alike nothing tells how far off that value is, so those do not count."""
    rng = np.random.default_rng(11)
    covered = total = 0
    for _ in range(1000):
        values = (step * np.round(rng.standard_normal(rounds) / step)).tolist()
        reach = half_width(values)
        assert reach is not None and math.isfinite(reach)
        if reach > 0:
            total += 1
            covered += abs(sum(values) / rounds) <= reach
    assert covered >= 0.93 * total


def test_a_slow_down_of_5_percent_is_found() -> None:
    rng = np.random.default_rng(3)
    results = [compare(*simulate(machine(rng, 0.95))) for _ in range(200)]
    slower = [found is not None and found.verdict == "slower" for found in results]
    faster = [found is not None and found.verdict == "faster" for found in results]
    assert sum(slower) >= 180 and not any(faster)


def test_the_same_slow_down_on_one_machine() -> None:
    found = compare(*simulate(machine(np.random.default_rng(1), 0.95)))
    assert found is not None and found.high is not None and found.low is not None
    assert found.low < 0.95 < found.high < 1
    assert found.verdict == "slower" and found.losses > found.wins


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_a_linear_drift_cancels(arms: int) -> None:
    found = simulate(lambda arm, time, prompt: -0.01 * (time + prompt / PROMPTS) + 0.1 * arm, arms)
    for arm in range(1, arms):
        result = compare(found[0], found[arm])
        assert result is not None and result.low is not None and result.high is not None
        assert result.ratio == pytest.approx(math.exp(0.1 * arm), rel=1e-12)
        assert result.rounds == pytest.approx([math.exp(0.1 * arm)] * ROUNDS, rel=1e-12)
        assert result.high - result.low == pytest.approx(0, abs=1e-9)


def test_the_order_of_the_runs() -> None:
    assert order(1) == [0, 0]
    assert order(2) == [0, 1, 1, 0]
    assert order(3) == [0, 1, 2, 2, 1, 0]


def test_wins_losses_and_ties() -> None:
    base = [[{"a": 100.0, "b": 100.0, "c": 100.0, "d": 100.0}]]
    arm = [[{"a": 100 * (1 + TIE) * 1.0001, "b": 100 / (1 + TIE) / 1.0001, "c": 100.9, "d": 99.1}]]
    found = compare(base, arm)
    assert found is not None
    assert (found.wins, found.losses, found.ties) == (1, 1, 2)
    assert (found.low, found.high, found.verdict) == (None, None, "too few rounds to say")


def test_what_only_one_side_measured_is_left_out() -> None:
    found = compare([[{"a": 1.0, "b": 1.0, "c": 0.0}]], [[{"a": 2.0, "x": 9.0, "c": 5.0}]])
    assert found is not None and found.ratio == pytest.approx(2) and found.wins == 1
    assert compare([[{"a": 1.0}]], [[{"b": 1.0}]]) is None
    assert compare([], []) is None


def test_an_interval_needs_rounds() -> None:
    values = [0.01, -0.02, 0.03, 0.0, 0.005]
    assert half_width(values[: MIN_ROUNDS - 1]) is None
    reach = half_width(values)
    assert reach is not None and reach > 0
    assert half_width([10 * value for value in values]) == pytest.approx(10 * reach)
    assert half_width([0.1] * 6) == 0


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (11, 2.2010), (30, 2.0423), (999, 1.9623)]
)
def test_the_quantiles_of_student(freedom: int, quantile: float) -> None:
    """As tables have them."""
    assert student(freedom) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize(
    "values",
    [[0, 0, 0.01, -0.01], [0, 0, 0, 0, 0.01, -0.01], [0.01, 0.02, 0.01, 0.02], [0, 0, 0, 1e-9], [0.0, 1e-10, 0.01, -0.01], [300.0, -300.0] * 3],
)
def test_few_distinct_values(values: list[float]) -> None:
    """The interval is finite, and reaches as far as Student's t with their standard error."""
    reach = half_width(values)
    assert reach == pytest.approx(student(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values)))
    found = compare([[{0: 1.0}]] * len(values), [[{0: math.exp(value)}] for value in values])
    assert found is not None and found.low is not None and found.high is not None
    assert 0 < found.low <= found.ratio <= found.high < math.inf


def test_speeds_from_end_to_end_of_what_floats_hold() -> None:
    found = compare([[{0: 5e-324}]] * 4, [[{0: 1e308}], [{0: 5e-324}]] * 2)
    assert found is not None and found.low is not None and found.high is not None
    assert all(0 < value < math.inf for value in (found.ratio, found.low, found.high, *found.rounds))
