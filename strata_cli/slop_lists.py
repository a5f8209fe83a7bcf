"""The lists of words behind --slop: the files that a user names, or those that come with Strata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from backends.errors import BadValue, StrataError
from strata_cli.folders import data_folder

BUNDLED = {"slop-lexicon": "slop_lexicon.txt", "slop-openers": "slop_openers.txt"}


def choose(values: Mapping[str, Any], needed: bool) -> dict[str, str | None]:
    """`DecodeConfig`'s slop_lexicon and slop_openers. values: of all settings, by key.

    needed: raises StrataError where a bundled list is to be used and is not there; otherwise there is none, which a request may still do without.
    """
    return {key.replace("-", "_"): values[key] or _bundled(name, values["data"], needed) for key, name in BUNDLED.items()}


def _bundled(name: str, data: str | None, needed: bool) -> str | None:
    try:
        path = data_folder(data) / name
    except StrataError:
        if needed:
            raise
        return None
    if path.is_file():
        return str(path)
    if needed:
        raise StrataError(f"{path}: no such file; the folder of the data files, which STRATA_DATA can name, lacks it")
    return None


def digest(path: str | None) -> str:
    """Tells whether a list is still the one it was (16 hex digits of its SHA-256); "none" without one. Raises BadValue."""
    if path is None:
        return "none"
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror}") from None
