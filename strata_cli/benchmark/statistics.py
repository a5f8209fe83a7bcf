"""What pairs of speeds say: how many times as fast, within which interval. Pure functions of numbers; nothing here is measured.

A round runs every arm twice, there and back (A B B A), so what drifts linearly through a round adds the same to every arm. From a round
comes one value, the mean of its pairs' log-ratios; rounds are the units of the interval, because what differs between processes (where
memory lies, what else runs) differs between rounds and hardly within one process, however many prompts that runs.

The interval is Student's: the mean of the rounds' values, and their own standard error times the quantile of Student's t with a degree of
freedom less than there are rounds. The signs of what differs between arms are as good as drawn (an arm beside itself could be swapped with
it), so the values lie symmetrically, and there t errs to the wide side for heavy tails (Benjamini, "Is the t test really conservative when
the parent distribution is long-tailed?", 1983). Unlike a bootstrap's it has an end however few distinct values a coarse clock gives; the
plain percentile bootstrap covers 82-89% of the time, not 95%, with 5 to 8 rounds. That the highest level that was repeated is the unit, with
this interval: Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
MIN_ROUNDS = 4
"""With fewer, the quantile is so large that an interval says nothing."""
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
            math.log(theirs[key]) - math.log(ours[key])
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
    low, high = (None, None) if reach is None else (_factor(center - reach), _factor(center + reach))
    return Comparison(_factor(center), low, high, tuple(map(_factor, rounds)), wins, losses, ties)


def _factor(log: float) -> float:
    """Back from a logarithm; one beyond all floats gives the end of what a report can hold."""
    return math.exp(max(-700.0, min(700.0, log)))


def half_width(values: Sequence[float]) -> float | None:
    """How far the CONFIDENCE interval of the mean of `values` reaches to either side. None with under MIN_ROUNDS values."""
    count = len(values)
    if count < MIN_ROUNDS:
        return None
    mean = math.fsum(values) / count
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return 0.0 if error <= 1e-12 else student(count - 1) * error  # an ideal clock: rounding alone is no spread


@functools.cache
def student(freedom: int) -> float:
    """Student's t with so many degrees of freedom lies within plus and minus this with probability CONFIDENCE."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(freedom, middle) < CONFIDENCE else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(freedom: int, angle: float) -> float:
    """The probability that |t| <= tan(angle) * sqrt(freedom): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * power / (power + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
