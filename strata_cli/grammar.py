"""What a value may look like: a text that says it and a parser that enforces it.

Flags, variables and the user config share these, so a value is accepted or refused alike wherever it was written.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.config import BIAS_MAX, INT_MAX
from backends.decode.slop import DEFAULT, KNOB_NAMES, OFF, Knobs
from backends.decode.slop_tables import KNOB_MAX
from backends.decode.window import DEPTH_MAX, PCum
from backends.errors import BadValue, shown

# int() and float() also take '1_000', other scripts' digits, 'nan' and 'inf'; a setting does not.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Grammar:
    """allowed: what a user may write, in words. metavar: the same for --help, short.

    parse: text -> value; raises ValueError, whose message, if any, says more than `allowed` does.
    """

    allowed: str
    metavar: str
    parse: Callable[[str], Any]


def refuse(name: str, value: str, grammar: Grammar, reason: Exception | None = None) -> str:
    """The one line that names a bad value, where it stands and what is allowed there."""
    detail = f" ({reason})" if reason is not None and str(reason) else ""
    return f"{name}: {shown(value)} is not allowed{detail}; allowed: {grammar.allowed}"


def integer(low: int, high: int, words: Mapping[str, int | None] | None = None, allowed: str = "") -> Grammar:
    """An integer of low..high, or one of `words` with a meaning of its own."""
    special = dict(words or {})

    def parse(text: str) -> int | None:
        if text in special:
            return special[text]
        if not _INTEGER.fullmatch(text) or len(text) > 24 or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    names = "".join(f"{word} or " for word in special)
    return Grammar(allowed or f"{names}an integer from {low} to {high}", "|".join([*special, "N"]), parse)


def number(low: float, high: float) -> Grammar:
    """A decimal number of low..high."""

    def parse(text: str) -> float:
        if not _NUMBER.fullmatch(text) or not low <= float(text) <= high:
            raise ValueError
        return float(text) + 0.0  # -0.0 becomes 0.0

    return Grammar(f"a number from {low:g} to {high:g}", "X", parse)


def choice(options: Sequence[str]) -> Grammar:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in options:
            raise ValueError
        return text

    return Grammar(", ".join(options), "|".join(options), parse)


def switch() -> Grammar:
    """on or off."""
    values = {"on": True, "1": True, "off": False, "0": False}

    def parse(text: str) -> bool:
        if text not in values:
            raise ValueError
        return values[text]

    return Grammar("on, off, 1, 0", "on|off", parse)


def bit() -> Grammar:
    """0 or 1, and nothing else that could mean them."""
    values = {"0": False, "1": True}

    def parse(text: str) -> bool:
        if text not in values:
            raise ValueError
        return values[text]

    return Grammar("0, 1", "0|1", parse)


def word(allowed: str, metavar: str, none: str | None = None) -> Grammar:
    """Any text that is not blank; `none` is the word for "not set"."""

    def parse(text: str) -> str | None:
        if not text.strip():
            raise ValueError
        return None if text == none else text

    return Grammar(allowed, metavar, parse)


def folder(none: str) -> Grammar:
    """A folder, which need not exist yet. `none` is the word for "no folder"."""

    def parse(text: str) -> str | None:
        if text == none:
            return None
        path = os.path.expanduser(text)
        if not path.strip() or "\0" in path:
            raise ValueError
        if os.path.exists(path) and not os.path.isdir(path):
            raise ValueError("not a folder")
        return path

    return Grammar(f"a folder, or {none}", "FOLDER", parse)


def existing_folder() -> Grammar:
    """A folder that exists."""

    def parse(text: str) -> str:
        path = os.path.expanduser(text)
        if "\0" in path or not os.path.isdir(path):
            raise ValueError
        return path

    return Grammar("a folder that exists", "FOLDER", parse)


def existing_file(what: str, words: Mapping[str, bool | None] | None = None) -> Grammar:
    """A file that exists, or one of `words` with a meaning of its own. what: the file, in words."""
    special = dict(words or {})

    def parse(text: str) -> str | bool | None:
        if text in special:
            return special[text]
        path = os.path.expanduser(text)
        if "\0" in path or not os.path.isfile(path):
            raise ValueError("no such file")
        return path

    names = "".join(f"{word}, " for word in special)
    return Grammar(f"{names}{'or ' if special else ''}{what}", "|".join([*special, "FILE"]), parse)


def _p_cum(text: str) -> PCum:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 2, 4):
        raise ValueError(f"{len(parts)} values")
    cutoffs = [number(0, 1).parse(part) for part in parts[:2]]
    depths = [integer(0, DEPTH_MAX).parse(part) for part in parts[2:]]
    try:
        return PCum(*cutoffs, *depths)
    except BadValue:
        raise ValueError(f"d0 {depths[0]} is above d1 {depths[1]}") from None


P_CUM = Grammar("base[,deep[,d0,d1]]: base and deep numbers from 0 to 1, d0 and d1 integers, 0 <= d0 <= d1", "base[,deep[,d0,d1]]", _p_cum)


def _slop(text: str) -> Knobs:
    words = {"off": OFF, "default": DEFAULT}
    if text in words:
        return words[text]
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, amount = (part.strip() for part in item.partition("="))
        if name not in KNOB_NAMES:
            raise ValueError(f"no knob {shown(name)}" if equals else "")
        if name in found:
            raise ValueError(f"{name} is given twice")
        try:
            found[name] = number(0, KNOB_MAX).parse(amount)
        except ValueError:
            raise ValueError(f"{name} is {shown(amount)}") from None
    return Knobs(**found)


SLOP = Grammar(f"off, default, or any of {', '.join(KNOB_NAMES)}, each =0..{KNOB_MAX}, with commas", "NAME=X[,...]|default|off", _slop)


def whole_utf8(text: str) -> str:
    """The text itself; ValueError if it came from bytes that are not UTF-8 (the system hands those over as surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not UTF-8 at byte {len(text[: error.start].encode())}") from None
    return text


def bias(text: str) -> tuple[int, float]:
    """One `ID=AMOUNT`."""
    token, equals, amount = (part.strip() for part in text.partition("="))
    if not equals or not _INTEGER.fullmatch(token) or len(token) > 24 or not 0 <= int(token) <= INT_MAX:
        raise ValueError
    if amount == "-inf":
        return int(token), -math.inf
    if not _NUMBER.fullmatch(amount) or abs(float(amount)) > BIAS_MAX:
        raise ValueError
    return int(token), float(amount)


def merge_biases(pairs: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Pairs as a mapping; a token given twice is an error, since either reading of it would surprise someone."""
    merged: dict[int, float] = {}
    for token, amount in pairs:
        if token in merged:
            raise ValueError(f"token {token} is given twice")
        merged[token] = amount
    return merged


BIAS = Grammar("ID=AMOUNT, a token id and a number from -1e9 to 1e9 or -inf", "ID=AMOUNT", bias)
BIASES = Grammar(f"{BIAS.allowed}; several with commas", "ID=AMOUNT[,...]", lambda text: merge_biases([bias(item) for item in text.split(",")]))


def _stop(text: str) -> str:
    if not text:
        raise ValueError
    return whole_utf8(text)


def _stops(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        return (_stop(text),)
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not a JSON list") from None
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise ValueError("not a JSON list of texts")
    return tuple(_stop(item) for item in texts)


STOP = Grammar("a text that is not empty", "TEXT", _stop)
STOPS = Grammar('a text, or a JSON list of texts such as ["\\n\\n", "User:"]', "TEXT|JSON", _stops)
