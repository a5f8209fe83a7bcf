"""What pairs of speeds say: how many times as fast, within which interval. Pure functions of numbers; nothing here is measured.

A round runs every arm twice, there and back (A B B A), so what drifts linearly through a round adds the same to every arm. From a round
comes one value, the mean of its pairs' log-ratios; rounds are the units of the interval, because what differs between processes (where
memory lies, what else runs) differs between rounds and hardly within one process, however many prompts that runs.

The interval is a symmetric bootstrap-t: rounds are drawn with replacement, each deviation from the mean with a random sign, and the spread
of the drawn means over their own standard errors says how many standard errors the interval reaches to either side (Hall, "On symmetric
bootstrap confidence intervals", 1988). The plain percentile bootstrap covers 82-89% of the time, not 95%, with 5 to 8 rounds. A random
sign is right because an arm beside itself could as well be swapped with it. That the highest level that was repeated is the unit: Kalibera
and Jones, "Rigorous benchmarking in reasonable time", 2013.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 9999
MIN_ROUNDS = 4
"""With fewer, draws without any spread are so frequent that the interval has no end."""
TIE = 0.01
"""A pair whose speeds differ by no more than this part is a tie."""

Speeds = Mapping[Hashable, float]
"""One run of an arm: a speed (the more the better) for each thing that was measured."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm beside the baseline. ratio: how many times as fast; low, high: its interval, None with under MIN_ROUNDS rounds.

    rounds: each round's own ratio. wins, losses, ties: of its pairs, by TIE.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: tuple[float, ...]
    wins: int
    losses: int
    ties: int

    @property
    def verdict(self) -> str:
        """What the interval allows to say."""
        if self.low is None or self.high is None:
            return "too few rounds to say"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "no difference shown"


def compare(baseline: Sequence[Sequence[Speeds]], arm: Sequence[Sequence[Speeds]]) -> Comparison | None:
    """An arm beside the baseline; both as [round][run of the round]. What only one side measured is left out; None if that is all."""
    rounds: list[float] = []
    wins = losses = ties = 0
    for base_runs, arm_runs in zip(baseline, arm, strict=True):
        logs = [
            math.log(theirs[key] / ours[key])
            for ours, theirs in zip(base_runs, arm_runs, strict=True)
            for key in ours
            if key in theirs and ours[key] > 0 and theirs[key] > 0
        ]
        if not logs:
            return None
        rounds.append(math.fsum(logs) / len(logs))
        wins += sum(value > math.log1p(TIE) for value in logs)
        losses += sum(value < -math.log1p(TIE) for value in logs)
        ties += sum(abs(value) <= math.log1p(TIE) for value in logs)
    if not rounds:
        return None
    reach = half_width(rounds)
    center = math.fsum(rounds) / len(rounds)
    low, high = (None, None) if reach is None else (math.exp(center - reach), math.exp(center + reach))
    return Comparison(math.exp(center), low, high, tuple(map(math.exp, rounds)), wins, losses, ties)


def half_width(values: Sequence[float], resamples: int = RESAMPLES) -> float | None:
    """How far the CONFIDENCE interval of the mean of `values` reaches to either side. None with under MIN_ROUNDS values.

    The draws are the same ones every time, so equal values give equal intervals.
    """
    count = len(values)
    if count < MIN_ROUNDS:
        return None
    deviations = np.asarray(values, np.float64)
    deviations = deviations - deviations.mean()
    error = math.sqrt(float((deviations**2).sum()) / (count - 1) / count)
    if error <= 1e-12:  # an ideal clock: rounding alone is no spread
        return 0.0
    rng = np.random.default_rng(0)
    drawn = deviations[rng.integers(0, count, (resamples, count))] * rng.choice((-1.0, 1.0), (resamples, count))
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        reaches = np.abs(drawn.mean(axis=1)) / errors
    reaches = np.sort(np.where(np.isfinite(reaches), reaches, np.inf))
    return float(reaches[math.ceil(CONFIDENCE * resamples) - 1]) * error
