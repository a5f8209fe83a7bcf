"""Stop texts in streams, against a plain search over the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.decode.stops import StopMatcher
from backends.errors import BadValue


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the first stop: grow the text by a character at a time until it ends with one, the longest."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end - max(map(len, hits))], True
    return text, False


def streamed(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher, out, stopped = StopMatcher(stops), "", False
    for piece in pieces:
        safe, now = matcher.push(piece)
        assert not (stopped and safe)
        stopped = stopped or now
        out += safe
        assert now == stopped == matcher.stopped
    return out + matcher.flush(), stopped


TEXTS = st.text(alphabet="ab\n", max_size=8)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_equals_a_search_over_the_whole_text(pieces: list[str], stops: list[str]) -> None:
    assert streamed(pieces, stops) == naive("".join(pieces), stops)


@given(st.lists(TEXTS, max_size=8), STOPS)
def test_holds_back_exactly_what_may_begin_a_stop(pieces: list[str], stops: list[str]) -> None:
    matcher, seen, out = StopMatcher(stops), "", ""
    for piece in pieces:
        safe, stopped = matcher.push(piece)
        seen, out = seen + piece, out + safe
        if stopped:
            return
        starts = [n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])]
        assert len(seen) - len(out) == max(starts, default=0)


@pytest.mark.parametrize(
    ("pieces", "stops", "wanted"),
    [
        (["hello world"], [], ("hello world", False)),
        (["hello wor", "ld and"], ["world"], ("hello ", True)),
        (["hello wor", "k"], ["world"], ("hello work", False)),
        (["hello wor"], ["world"], ("hello wor", False)),  # flushed
        (["aab"], ["ab"], ("a", True)),
        (["abababc"], ["ababc"], ("ab", True)),
        (["xEND"], ["END", "xEND"], ("", True)),  # complete at the same character: the one that began first
        (["ab", "cd"], ["abcd", "bc"], ("a", True)),  # complete first
        (["a\n", "\nb"], ["\n\n"], ("a", True)),
        (["é😀", "!"], ["😀!"], ("é", True)),
        (["stop"], ["stop"], ("", True)),
    ],
)
def test_examples(pieces: list[str], stops: list[str], wanted: tuple[str, bool]) -> None:
    assert streamed(pieces, stops) == wanted


def test_nothing_after_a_stop() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", True)
    assert matcher.push("more") == ("", True) and matcher.flush() == ""


def test_empty_stop_is_refused() -> None:
    with pytest.raises(BadValue, match="stop"):
        StopMatcher(["a", ""])


def test_long_stops_stay_linear() -> None:
    matcher = StopMatcher(["a" * 20000 + "b"])
    assert matcher.push("a" * 50000) == ("a" * 30000, False)
    assert matcher.push("b") == ("", True)
