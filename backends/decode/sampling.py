"""Sampling: penalties, and the filters top-k, top-p and min-p. The host's truth of what kernels/sampler.h, filter.cl and pick.cl do.

All of it is exact and free of order: penalties depend on counts, filters on integer weights, so a device agrees with this to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from backends import reference_math

UNIT = 1 << 32  # the likeliest token's weight


@dataclass(frozen=True, slots=True)
class Filters:
    """Which ids sampling keeps, in this order: top_k (0: all), top_p of 0..1 (1: all), min_p of 0..1 (0: all)."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def active(self) -> bool:
        """Whether there is anything to filter."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def top_p_units(self) -> int:
        """top_p in units of 2^-32, nearest, at least 1; 0: off."""
        return 0 if self.top_p >= 1 else max(1, min(UNIT - 1, round(Fraction(self.top_p) * UNIT)))

    @property
    def least_weight(self) -> np.float32:
        """The smallest float32 that is at least min_p in units of 2^-32: what an unrounded weight is compared with."""
        least = math.ceil(Fraction(self.min_p) * UNIT)
        rounded = np.float32(least)
        return rounded if int(rounded) >= least else np.nextafter(rounded, np.float32(np.inf))


@dataclass(frozen=True, slots=True)
class Penalties:
    """What a token found among the last `last_n` (-1: all) loses: logit / repeat (logit * repeat below 0), presence, frequency each time."""

    repeat: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    last_n: int = 64

    @property
    def active(self) -> bool:
        """Whether there is anything to apply."""
        return (self.repeat, self.presence, self.frequency) != (1.0, 0.0, 0.0) and self.last_n != 0


def penalise(logits: NDArray[np.float32], history: NDArray[np.int32], penalties: Penalties) -> NDArray[np.float32]:
    """A row's logits [vocabulary] after the penalties; history: the sequence's tokens up to the row's own, oldest first."""
    if not penalties.active:
        return logits
    ids, counts = np.unique(history if penalties.last_n < 0 else history[-penalties.last_n :], return_counts=True)
    found = logits[ids]
    repeat, presence, frequency = np.float32(penalties.repeat), np.float32(penalties.presence), np.float32(penalties.frequency)
    out = logits.copy()
    out[ids] = np.where(found > 0, reference_math.div(found, np.full_like(found, repeat)), found * repeat)
    out[ids] = out[ids] - frequency * counts.astype(np.float32) - presence
    return out


def raw_weights(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(logit - largest) in units of 2^-32, float32, before it is rounded down to an integer weight."""
    weights: NDArray[np.float32] = reference_math.exp(logits - logits.max()) * np.float32(UNIT)
    return weights


def kept(logits: NDArray[np.float32], filters: Filters) -> NDArray[np.bool_]:
    """Which ids of a row [vocabulary] the filters keep.

    In order of (logit descending, id ascending), top-k keeps the first k; top-p the fewest of those, at least one, whose integer weights
    floor(exp(logit - largest) * 2^32) sum to top_p of all of them; min-p those of them whose weight is at least min_p of the largest.
    """
    order = np.lexsort((np.arange(len(logits)), -logits))
    order = order[logits[order] > -np.inf]
    raw = raw_weights(logits)
    if filters.top_k > 0:
        order = order[: filters.top_k]
    if filters.top_p_units:
        sums = np.cumsum(raw[order].astype(np.uint64))
        goal = -(-filters.top_p_units * int(sums[-1]) // UNIT)
        order = order[: int(np.searchsorted(sums, np.uint64(goal))) + 1]
    mask = np.zeros(len(logits), np.bool_)
    mask[order] = raw[order] >= filters.least_weight
    return mask
