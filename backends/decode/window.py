"""Window rules: how many of a round's drafts are verified. The host's truth of what kernels/window.h does.

A rule sees the drafter's probabilities so far and the round's depth, and says whether the newest draft is kept. The first draft that a rule
drops is dropped with all behind it; of several rules the earliest stop wins. Rules decide what is computed, never which text comes out.

To add a rule: a function `keeps_<rule>` here and one of the same name in kernels/window.h, a setting in `WindowRules`, and a line that calls
it in `WindowRules.keeps` and in the kernel's `keeps_draft`. Nothing else knows how many rules there are. A rule that is off must not stop
anything, and a probability that is no number must not pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from backends.errors import BadValue

# numpy is imported on use: whoever reads settings needs `PCum`, and numpy takes a tenth of a second to import.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from backends.config import Tune

DEPTH_MAX = 2**31 - 1
Probabilities: TypeAlias = "Sequence[np.float32] | NDArray[np.float32]"  # in the order of the drafts


@dataclass(frozen=True, slots=True)
class PCum:
    """The cumulative-probability rule: a draft is kept while the product of all probabilities up to its own is at least a threshold.

    The threshold depends on the round's depth, the absolute position of its first row: `base` below d0, `deep` from d1 on, on a straight line
    between them; d0 == d1 is a step. base, deep: 0..1, deep is base where it is not given; 0 and 0 keep every draft.
    d0, d1: integers, 0 <= d0 <= d1 <= 2**31-1. Raises BadValue.
    """

    base: float
    deep: float = None  # type: ignore[assignment]  # becomes base on creation, so that a reader always finds a number
    d0: int = 16384
    d1: int = 49152

    def __post_init__(self) -> None:
        if self.deep is None:
            object.__setattr__(self, "deep", self.base)
        for name in ("base", "deep"):
            _check_number(f"p_cum {name}", getattr(self, name))
        _check_depth("p_cum d0", self.d0, 0, f"an integer from 0 to {DEPTH_MAX}")
        _check_depth("p_cum d1", self.d1, self.d0, f"an integer from d0, here {self.d0}, to {DEPTH_MAX}")

    def __str__(self) -> str:
        """base,deep,d0,d1: how a user writes it."""
        cutoffs = [repr(float(value)).removesuffix(".0") for value in (self.base, self.deep)]
        return ",".join([*cutoffs, str(self.d0), str(self.d1)])

    def threshold(self, depth: int) -> np.float32:
        """The least product that keeps a draft at this depth: computed in float64, rounded once to float32."""
        import numpy as np  # noqa: PLC0415

        if depth >= self.d1:
            return np.float32(self.deep)
        if depth < self.d0:
            return np.float32(self.base)
        return np.float32(self.base + (self.deep - self.base) * (depth - self.d0) / (self.d1 - self.d0))

    def thresholds(self, ctx: int) -> NDArray[np.float32]:
        """The thresholds of depths 0..ctx-1 [ctx], to the last bit those of `threshold`: how a device gets them. ctx: at least 0."""
        import numpy as np  # noqa: PLC0415

        table = np.full(ctx, self.base, np.float64)
        table[self.d1 :] = self.deep
        ramp = np.arange(self.d0, min(self.d1, ctx))
        if ramp.size:
            table[self.d0 : self.d1] = self.base + (self.deep - self.base) * (ramp - self.d0) / (self.d1 - self.d0)
        return table.astype(np.float32)


@dataclass(frozen=True, slots=True)
class WindowRules:
    """The rules of a round.

    min_p: least probability of a draft, 0..1, compared as float32; 0: off. p_cum: the cumulative rule; None: there is none. Raises BadValue.
    """

    min_p: float = 0.5
    p_cum: PCum | None = None

    def __post_init__(self) -> None:
        _check_number("window rule min_p", self.min_p)
        if not (self.p_cum is None or isinstance(self.p_cum, PCum)):
            raise _not_allowed("window rule p_cum", self.p_cum, "a PCum, or None")

    def keeps(self, probabilities: Probabilities, depth: int) -> bool:
        """Whether the last of these drafts is kept, all before it having been.

        probabilities: of the drafts so far, at least one; each of 0..1, or NaN, which drops the draft. depth: the absolute position of the
        window's first row.
        """
        return keeps_min_p(probabilities, self.min_p) and (self.p_cum is None or keeps_p_cum(probabilities, self.p_cum.threshold(depth)))

    def kept(self, probabilities: Probabilities, depth: int) -> int:
        """How many drafts of a whole chain, which may be empty, are kept."""
        for count in range(len(probabilities)):
            if not self.keeps(probabilities[: count + 1], depth):
                return count
        return len(probabilities)


def keeps_min_p(probabilities: Probabilities, min_p: float) -> bool:
    """Whether the last probability is at least min_p, both as float32. At min_p 0 only NaN is not."""
    import numpy as np  # noqa: PLC0415

    return bool(np.float32(probabilities[-1]) >= np.float32(min_p))


def keeps_p_cum(probabilities: Probabilities, threshold: np.float32) -> bool:
    """Whether the product of the probabilities, float64, taken in order, is at least the threshold. At 0 only NaN is not."""
    import numpy as np  # noqa: PLC0415

    product = 1.0
    for p in probabilities:
        product *= float(np.float32(p))
    return product >= float(threshold)


def for_request(rules: WindowRules, tune: Tune) -> WindowRules:
    """The engine's rules with what a request sets.

    spec_p_cum sets base and deep, then spec_p_cum_deep deep. Either turns the cumulative rule on where the engine has none. What is not set
    stays the engine's or, without its rule, is 0 for base and the default for d0 and d1. Raises nothing: both are checked already.
    """
    p_cum = rules.p_cum
    if tune.spec_p_cum is not None:
        p_cum = replace(p_cum or PCum(0.0), base=tune.spec_p_cum, deep=tune.spec_p_cum)
    if tune.spec_p_cum_deep is not None:
        p_cum = replace(p_cum or PCum(0.0), deep=tune.spec_p_cum_deep)
    return WindowRules(rules.min_p if tune.spec_min_p is None else tune.spec_min_p, p_cum)


# The checks of backends/config.py in short: that module may hold these classes, so this one cannot need it.


def _not_allowed(name: str, value: object, allowed: str) -> BadValue:
    shown = " ".join(repr(value).split())
    return BadValue(f"{name}: {shown if len(shown) <= 80 else shown[:77] + '...'} is not allowed; allowed: {allowed}")


def _check_number(name: str, value: object) -> None:
    if not (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1):
        raise _not_allowed(name, value, "a number from 0 to 1")


def _check_depth(name: str, value: object, least: int, allowed: str) -> None:
    if not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= DEPTH_MAX):
        raise _not_allowed(name, value, allowed)
