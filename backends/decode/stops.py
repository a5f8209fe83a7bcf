"""Stop texts in a stream: text is given out as soon as no stop text can begin in it, and nothing from a stop text on."""

from __future__ import annotations

from collections.abc import Iterable

from backends.errors import BadValue


class StopMatcher:
    """Finds the first of several stop texts in a text that comes in pieces.

    The text is scanned character by character, so the result does not depend on how it is cut into pieces: the stop text
    that is complete first ends the stream; where several are complete at the same character, the one that began first.
    """

    __slots__ = ("_failures", "_held", "_matched", "_stopped", "_stops")

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises BadValue for an empty stop text."""
        # Longest first: of the stops that end at one character it is the one that began first.
        self._stops = sorted(set(stops), key=len, reverse=True)
        if "" in self._stops:
            raise BadValue("stop: '' is not allowed; allowed: texts that are not empty")
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # per stop: how many of its first characters the text so far ends with
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found; from then on no more text is given out."""
        return self._stopped

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; the text that is now known to come before any stop text, and whether one was found."""
        if self._stopped:
            return "", True
        if not self._stops:
            return text, False
        buffer = self._held + text
        for index, char in enumerate(text, len(self._held)):
            for which, stop in enumerate(self._stops):
                matched, failure = self._matched[which], self._failures[which]
                while matched and stop[matched] != char:
                    matched = failure[matched - 1]
                self._matched[which] = matched = matched + (stop[matched] == char)
                if matched == len(stop):
                    self._stopped, self._held = True, ""
                    return buffer[: index + 1 - len(stop)], True
        keep = max(self._matched)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], False

    def flush(self) -> str:
        """The text that was held back, once no more text comes."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held


def _failure_table(stop: str) -> list[int]:
    """Per length - 1 of a prefix of `stop`: its longest proper prefix that is also its suffix (Knuth, Morris, Pratt 1977)."""
    table = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = table[length - 1]
        length += stop[index] == stop[length]
        table[index] = length
    return table
