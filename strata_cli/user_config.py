"""The user config: a TOML file whose keys are the flags' names, between the environment and the defaults."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Any

from backends.errors import BadValue
from strata_cli.environment import BY_KEY, SHARED_KEYS, nearest
from strata_cli.grammar import refuse


def read(path: str) -> dict[str, Any]:
    """The file's settings by key, parsed; none if there is no file. Raises BadValue."""
    return {key: parse(path, key, value) for key, value in load(path).items()}


def load(path: str) -> dict[str, Any]:
    """The file's keys and values as TOML has them; keys are known to exist. Raises BadValue."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):  # opening one would wait for a writer
            raise BadValue(f"{path}: is a pipe; the user config must be a readable TOML file")
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror}; the user config must be a readable TOML file") from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values: dict[str, Any] = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: not UTF-8 at byte {error.start}; the user config must be a UTF-8 TOML file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadValue(f"{path}: not TOML: {error}") from None
    for key in values:
        if key not in BY_KEY:
            match = SHARED_KEYS.get(key) or nearest(key, BY_KEY)
            raise BadValue(f"{path}: {key!r} is not a key; " + (f"nearest: {match}" if match else f"allowed: {', '.join(BY_KEY)}"))
    return values


def parse(path: str, key: str, value: Any) -> Any:
    """The parsed value of one key. Raises BadValue."""
    where = f"{path}: {key}"
    text = as_text(key, value)
    if text is None:
        raise BadValue(refuse(where, str(value), BY_KEY[key].grammar))
    try:
        return BY_KEY[key].grammar.parse(text)
    except ValueError as reason:
        # As the file has it: a TOML true is no "on" where neither is allowed.
        raise BadValue(refuse(where, str(value).lower() if isinstance(value, bool) else text, BY_KEY[key].grammar, reason)) from None


def as_text(key: str, value: Any) -> str | None:
    """A TOML value as the variable would be written, so that one parser judges both; None if no variable could say it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        return repr(value)
    if key == "stop":
        # Through JSON even for one text: as a variable its blanks would be trimmed and a leading [ would be read.
        texts = [value] if isinstance(value, str) else value
        return json.dumps(texts) if isinstance(texts, list) and all(isinstance(item, str) for item in texts) else None
    if key == "logit-bias" and isinstance(value, dict) and all(isinstance(amount, (int, float)) for amount in value.values()):
        return ",".join(f"{token}={amount!r}" for token, amount in value.items())
    return value if isinstance(value, str) else None
