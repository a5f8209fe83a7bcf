"""The requests of a batch: JSON lines, each checked by itself, so that a bad one spoils no other."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.config import Request, Tune
from backends.decode.slop import Knobs
from backends.errors import BadValue
from strata_cli.environment import BY_KEY, nearest
from strata_cli.grammar import SLOP, bias, merge_biases, refuse
from strata_cli.options import GENERATION, Settings
from strata_cli.output import wait_for

STDIN = "-"
_BLANKS = b" \t\r\n"
_DIGITS = 40  # of an integer: more than any value here has, and few enough for Python to read


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank. number: as editors count. id: None where it has none that can be used."""

    number: int
    id: str | int | None
    content: bytes

    @property
    def digest(self) -> str:
        """Tells whether the line is still the one it was, byte for byte without the blanks around it (16 hex digits)."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    def request(self, settings: Settings, seed: int) -> Request:
        """The generation it asks for, in a batch with this seed. Raises BadValue."""
        found = _object(self.content)
        _id(found)
        for key in found:
            if key not in _KEYS:
                raise BadValue(_unknown(key, _KEYS))
        for key, value in found.items():
            allowed, fits = _KEYS[key]
            if not fits(value):
                raise BadValue(f"{key}: {_shown(value)} is not allowed; allowed: {allowed}")
        if ("prompt" in found) == ("messages" in found):
            raise BadValue("prompt and messages are both given; leave one out" if "prompt" in found else "prompt or messages is missing")
        if found.get("raw") and "messages" in found:
            raise BadValue("raw: it leaves out the chat template, which messages need; leave one out")
        if "prompt" in found and not found["prompt"].strip():
            raise BadValue("the prompt is empty")
        slop = _slop(found["slop"]) if "slop" in found else None
        if slop is not None and slop.active and settings.lists_missing:
            raise BadValue(f"slop: {settings.lists_missing}")
        return Request(
            prompt=found.get("prompt"),
            messages=_messages(found["messages"]) if "messages" in found else None,
            system=found.get("system"),
            raw=found.get("raw", False),
            seed=found.get("seed", request_seed(seed, self.id)),
            slop=slop,
            tune=_tune(found.get("strata_tune", {})),
            **dict(settings.generation) | {key: _READ.get(key, _number)(found[key]) for key in GENERATION if key in found},
        )


def request_seed(seed: int, name: str | int | None) -> int:
    """A request's own seed: the first 8 bytes, most significant first, of the SHA-256 of the JSON text `[seed,id]` without blanks, in ASCII."""
    text = json.dumps([seed, name], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


def read_lines(source: str) -> list[Line]:
    """The lines of a file, or of standard input for `-`. Raises BadValue, also where two have the same id."""
    content = (_read_stdin() if source == STDIN else _read_file(source)).removeprefix(b"\xef\xbb\xbf")
    lines: list[Line] = []
    numbers: dict[str | int, int] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        text = line.strip(_BLANKS)
        if not text:
            continue
        try:
            name = _id(_object(text, whole=False))
        except BadValue:
            name = None  # what is wrong stands in its result
        lines.append(Line(number, name, text))
        if name is not None and numbers.setdefault(name, number) != number:
            raise BadValue(f"{source_name(source)}: lines {numbers[name]} and {number} have the same id {_shown(name)}; each needs its own")
    return lines


def source_name(source: str) -> str:
    """What messages call it."""
    return "standard input" if source == STDIN else source


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a NUL character
        raise BadValue(f"{path!r}: {error}") from None


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise BadValue("standard input: it is closed")
    wait_for(sys.stdin)
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise BadValue(f"standard input: {error.strerror}") from None


def _object(content: bytes, whole: bool = True) -> dict[str, Any]:
    """The JSON object of a line. Raises BadValue; whole: also for what is wrong inside it, where the rest can still be told."""
    faults: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                faults.append(f"the key {_shown(key)} is given twice")
            found[key] = math.nan if key in found else value  # neither of the two; for an id it means that there is none
        return found

    def constant(name: str) -> float:
        faults.append(f"{name} is not allowed; allowed: JSON's numbers")
        return math.nan

    def integer(digits: str) -> int | float:
        if len(digits) <= _DIGITS:
            return int(digits)
        faults.append(f"an integer of {len(digits)} digits is not allowed; allowed: up to {_DIGITS}")
        return math.nan

    try:
        text = content.decode()
        found = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=integer)
    except UnicodeDecodeError as error:
        raise BadValue(f"not UTF-8 at byte {error.start} of the line (0x{content[error.start]:02x})") from None
    except json.JSONDecodeError as error:
        raise BadValue(f"not JSON: {error.msg} at character {error.colno} of the line") from None
    except RecursionError:
        raise BadValue("not JSON that can be read: it is nested too deeply") from None
    if not isinstance(found, dict):
        raise BadValue(f'not a JSON object: {_shown(found)}; allowed: {{"id": ..., "prompt": ...}}')
    if whole and faults:
        raise BadValue(faults[0])
    return found


def _id(found: Mapping[str, Any]) -> str | int:
    if "id" not in found:
        raise BadValue("id is missing")
    name = found["id"]
    if _is_integer(name) or (_is_text(name) and name):
        return name  # type: ignore[no-any-return]
    raise BadValue(f"id: {_shown(name)} is not allowed; allowed: a text of valid Unicode that is not empty, or an integer")


def _messages(items: list[Any]) -> tuple[Mapping[str, str], ...]:
    for item in items:
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("role", "content")):
            raise BadValue(f'messages: {_shown(item)} is not allowed; allowed: objects with "role" and "content", both texts')
        for key in item:
            if key not in ("role", "content"):
                raise BadValue(_unknown(key, ("role", "content"), "messages: "))
    return tuple(items)


def _slop(text: str) -> Knobs:
    try:
        knobs: Knobs = SLOP.parse(text.strip())
    except ValueError as reason:
        raise BadValue(refuse("slop", text, SLOP, reason)) from None
    return knobs


def _tune(found: dict[str, Any]) -> Tune:
    for key, value in found.items():
        if key not in Tune.__slots__:
            raise BadValue(_unknown(key, Tune.__slots__, "strata_tune: "))
        if not _is_number(value):
            raise BadValue(f"strata_tune.{key}: {_shown(value)} is not allowed; allowed: a number from 0 to 1")
    return Tune(**found)


def _biases(found: dict[str, Any]) -> dict[int, float]:
    items = []
    for token, amount in found.items():
        # A JSON number may be too large for Python's and become an infinity, which here would ban the token.
        if not (_is_number(amount) and math.isfinite(amount)) and amount != "-inf":
            raise BadValue(f'logit_bias of token {_shown(token)}: {_shown(amount)} is not allowed; allowed: a number from -1e9 to 1e9, or "-inf"')
        try:
            items.append((bias(f"{token}=0")[0], -math.inf if amount == "-inf" else amount))
        except ValueError:
            raise BadValue(f"logit_bias: {_shown(token)} is not allowed; allowed: token ids") from None
    try:
        return merge_biases(items)
    except ValueError as error:
        raise BadValue(f"logit_bias: {error}") from None


def _unknown(key: str, known: Any, where: str = "") -> str:
    near = nearest(key, known)
    return f"{where}unknown key {_shown(key)}; " + (f"nearest: {near}" if near else f"known: {', '.join(known)}")


def _shown(value: Any) -> str:
    """A JSON value for a message: on one line and not too long."""
    try:
        text = json.dumps(value, ensure_ascii=not _is_text(value))
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= 80 else text[:77] + "..."


def _number(value: float) -> float:
    return value if isinstance(value, int) else value + 0.0  # -0.0 becomes 0.0


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_stop(value: object) -> bool:
    return all(_is_text(text) and text for text in (value if isinstance(value, list) else [value]))


# What a key may hold: in words, and as a check of its kind; `Request` checks the rest.
_TEXT = ("a text of valid Unicode", _is_text)
_KEYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "id": ("a text or an integer", lambda value: True),
    "prompt": _TEXT,
    "messages": ('a list such as [{"role": "user", "content": "Hello"}]', lambda value: isinstance(value, list) and len(value) > 0),
    "system": _TEXT,
    "raw": ("true, false", _is_switch),
    **{
        key: (BY_KEY[key.replace("_", "-")].grammar.allowed, _is_integer if key in ("max_new", "top_k", "repeat_last_n") else _is_number)
        for key in GENERATION
    },
    "logit_bias": ('an object of token ids and amounts, such as {"1234": -100}', lambda value: isinstance(value, dict)),
    "stop": ("a text that is not empty, or a list of such", _is_stop),
    "ignore_eos": ("true, false", _is_switch),
    "slop": (SLOP.allowed, _is_text),
    "seed": ("an integer from 0 to 2**64-1", _is_integer),
    "strata_tune": (f"an object with {', '.join(Tune.__slots__)}", lambda value: isinstance(value, dict)),
}
# How the keys that are no numbers become fields of `Request`; a bool is an int here.
_READ: dict[str, Callable[[Any], Any]] = {"logit_bias": _biases, "stop": lambda value: (value,) if isinstance(value, str) else tuple(value)}
