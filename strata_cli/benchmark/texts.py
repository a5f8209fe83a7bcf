"""Whether two arms wrote the same, and where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_cli.benchmark.measure import Run

CONTINUATION = 80
"""Characters shown of what follows where two texts part."""
_LEAD = 20

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A prompt whose texts differ. position: of the first token that does. ours: the baseline's text from there on; theirs: the arm's.

    The two begin with the word in which they part. None for one that was not given, which a text beside it cannot part from: that one is shown
    from its beginning.
    """

    id: str
    mode: str
    position: int
    ours: str | None
    theirs: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """identical: prompts whose tokens are the same in every pair of runs, of `total`. differences: the first one of each other prompt."""

    identical: int
    total: int
    differences: tuple[Difference, ...]


def compare_texts(baseline: Sequence[Sequence[Run]], arm: Sequence[Sequence[Run]], mode: str | None = None) -> Identity:
    """The arm's texts beside the baseline's, pair by pair; both as [round][run of the round]."""
    pairs = [pair for ours, theirs in zip(baseline, arm, strict=True) for pair in zip(ours, theirs, strict=True)]
    return _identity([(ours.output.records, theirs.output.records) for ours, theirs in pairs], mode)


def repeat_texts(arm: Sequence[Sequence[Run]]) -> Identity:
    """An arm's texts beside those of its own first run."""
    runs = [run.output.records for round_ in arm for run in round_]
    return _identity([(runs[0], later) for later in runs], None)


def _identity(pairs: Sequence[tuple[Sequence[Record], Sequence[Record]]], mode: str | None) -> Identity:
    found: dict[tuple[str, str], Difference | None] = {}
    for all_ours, all_theirs in pairs:
        for ours, theirs in zip(all_ours, all_theirs, strict=True):
            key = (ours["id"], ours["mode"])
            if mode in (None, ours["mode"]) and found.get(key) is None:
                found[key] = None if ours["token_ids"] == theirs["token_ids"] else _difference(ours, theirs)
    differences = tuple(difference for difference in found.values() if difference is not None)
    return Identity(len(found) - len(differences), len(found), differences)


def _difference(ours: Record, theirs: Record) -> Difference:
    both = zip(ours["token_ids"], theirs["token_ids"], strict=False)
    shorter = min(len(ours["token_ids"]), len(theirs["token_ids"]))
    position = next((index for index, (a, b) in enumerate(both) if a != b), shorter)
    given = [ours["text"], theirs["text"]]
    if None in given:
        return Difference(ours["id"], ours["mode"], position, *(None if text is None else text[:CONTINUATION] for text in given))
    texts: list[str] = given
    start = next((index for index, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    lead = texts[0][max(0, start - _LEAD) : start]
    start -= len(lead) - (max(lead.rfind(blank) for blank in " \n") + 1)
    return Difference(ours["id"], ours["mode"], position, *(text[start : start + CONTINUATION] for text in texts))
