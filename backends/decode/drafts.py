"""What the host does around drafts: it counts them, traces rounds, and puts scripted ones in their place for tests and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from backends.config import Request, RoundTrace, Speculation
from backends.decode.window import WindowRules

if TYPE_CHECKING:
    from backends.sequence import Round


@dataclass(slots=True)
class Counts:
    """Rounds so far, and by place in the window how many drafts were verified and accepted."""

    rounds: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, rows: int, made: Round) -> None:
        """A round of a window of `rows` rows: each of its committed tokens but one is an accepted draft."""
        self.rounds += 1
        for place in range(rows - 1):
            if place == len(self.drafted):
                self.drafted.append(0)
                self.accepted.append(0)
            self.drafted[place] += 1
            self.accepted[place] += place < len(made.tokens) - 1

    def speculation(self) -> Speculation:
        """The counts as a result holds them."""
        return Speculation(self.rounds, sum(self.drafted), sum(self.accepted), tuple(zip(self.drafted, self.accepted, strict=True)))


@dataclass(slots=True)
class Scripted:
    """Drafts that do not come from the drafter as they are: those of a continuation given, or with every so manyth one made wrong."""

    window: int
    n_vocab: int
    oracle: Sequence[int] | None
    corrupt: int
    _seen: int = 0

    @classmethod
    def of(cls, request: Request, window: int, n_vocab: int) -> Scripted | None:
        """What the request asks for, if anything."""
        if request.oracle is None and (request.corrupt == 0 or window <= 1):
            return None
        return cls(window, n_vocab, request.oracle, request.corrupt)

    def drafts(self, generated: int, drafted: Sequence[int]) -> list[int]:
        """The next window's drafts behind `generated` tokens; drafted: what the drafter would have."""
        drafts = list(drafted if self.oracle is None else self.oracle[generated : generated + self.window - 1])
        for place in range(len(drafts)):
            self._seen += 1
            if self.corrupt and self._seen % self.corrupt == 0:
                drafts[place] = (drafts[place] + 1) % self.n_vocab
        return [int(token) for token in drafts]


def traced(rules: WindowRules, depth: int, rows: int, made: Round, ms: float) -> RoundTrace:
    """A round's trace; depth: of its window, which had `rows` rows. The next window's threshold is what the device compared with."""
    following = depth + len(made.tokens)
    return RoundTrace(
        depth=depth,
        rows=rows,
        tokens=made.tokens,
        drafts=made.drafts,
        probabilities=made.probabilities,
        kept=made.kept,
        next_depth=following,
        product=float(np.prod(np.array(made.probabilities, np.float64))),
        threshold=None if rules.p_cum is None else float(rules.p_cum.threshold(following)),
        ms=ms,
    )
