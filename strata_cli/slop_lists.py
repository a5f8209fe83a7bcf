"""The lists of words behind --slop: the files that a user names, or those that come with Strata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from backends.errors import BadValue, StrataError
from strata_cli.folders import data_folder

BUNDLED = {"slop-lexicon": "slop_lexicon.txt", "slop-openers": "slop_openers.txt"}


def find(values: Mapping[str, Any]) -> tuple[dict[str, str | None], str | None]:
    """`DecodeConfig`'s slop_lexicon and slop_openers, and why one that comes with Strata is not there (None: all are). values: of all settings,
    by key. Whoever lets the policy act refuses to go on without the lists: it would lower next to nothing, and not say so.
    """
    lists: dict[str, str | None] = {}
    missing: list[str] = []
    for key, name in BUNDLED.items():
        try:
            lists[key.replace("-", "_")] = values[key] or _bundled(name, values["data"])
        except StrataError as error:
            lists[key.replace("-", "_")] = None
            missing.append(str(error))
    return lists, missing[0] if missing else None


def choose(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The same for a command that cannot do without. Raises StrataError."""
    lists, missing = find(values)
    if missing:
        raise StrataError(missing)
    return lists


def _bundled(name: str, data: str | None) -> str:
    path = data_folder(data) / name
    if path.is_file():
        return str(path)
    raise StrataError(f"{path}: no such file; the folder of the data files, which STRATA_DATA can name, lacks it")


def digest(path: str | None) -> str:
    """Tells whether a list is still the one it was (16 hex digits of its SHA-256); "none" without one. Raises BadValue."""
    if path is None:
        return "none"
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror}") from None
