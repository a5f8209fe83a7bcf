"""The prompts of `strata bench`: sets of the data folder, files, texts; and the document that fills a context."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.errors import BadValue, StrataError
from strata_cli.environment import nearest
from strata_cli.prompt import check_utf8

KINDS = ("story", "code", "explanation", "math", "list", "advice")
SETS = (*KINDS, "persona", "coding", "control")
KEYS = ("id", "kind", "prompt", "system")
DOCUMENT = "walk.txt"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message, with a system message or without. kind: what it is counted with."""

    id: str
    kind: str
    prompt: str
    system: str | None = None


def collect(names: Sequence[str], texts: Sequence[str], folder: str | None) -> list[Prompt]:
    """The prompts of `names` (sets, several with commas, or files) and `texts`; those of KINDS if there are neither.

    folder: as STRATA_DATA has it. Raises BadValue; StrataError without the data files.
    """
    prompts = [prompt for name in names for prompt in _named(name, folder)]
    prompts += [Prompt(f"prompt-{number}", "prompt", _text("--prompt", text)) for number, text in enumerate(texts, 1)]
    if not prompts:
        prompts = [prompt for kind in KINDS for prompt in _set(kind, folder)]
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise BadValue(f"--prompts: the id {prompt.id!r} is there twice; ids must differ")
        seen.add(prompt.id)
    return prompts


def document(folder: str | None) -> str:
    """The text that --depth fills a context with. Raises StrataError without the data files."""
    path = _data_file(folder, "documents", DOCUMENT)
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        raise StrataError(f"{path}: it is empty, so there is nothing that --depth could fill a context with")
    return text


def _named(name: str, folder: str | None) -> list[Prompt]:
    if os.path.isfile(name):
        return _file(Path(name))
    words = [word.strip() for word in name.split(",")]
    for word in words:
        if word not in SETS:
            near = nearest(word, SETS)
            raise BadValue(
                f"--prompts: {word!r} is neither a prompt set nor a file"
                + (f"; nearest: {near}" if near else "")
                + f"; allowed: {', '.join(SETS)}, or a file"
            )
    return [prompt for word in words for prompt in _set(word, folder)]


def _set(name: str, folder: str | None) -> list[Prompt]:
    return _file(_data_file(folder, "prompts", f"{name}.jsonl"))


def _data_file(folder: str | None, *parts: str) -> Path:
    from strata_cli.folders import data_folder

    path = data_folder(folder).joinpath(*parts)
    if not path.is_file():
        raise StrataError(f"{path}: no such file; the folder of the data files, which STRATA_DATA can name, lacks it")
    return path


def _file(path: Path) -> list[Prompt]:
    """A .jsonl file is a prompt a line; any other is one prompt."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadValue(f"--prompts: {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadValue(f"--prompts: {path}: not UTF-8 at byte {error.start}") from None
    if path.suffix != ".jsonl":
        return [Prompt(path.name, path.stem, _text(f"--prompts: {path}", content.removesuffix("\n").removesuffix("\r")))]
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise BadValue(f"--prompts: {path}: holds no prompt")
    return [_line(f"--prompts: {path}, line {number}", line, f"{path.stem}-{number}", path.stem) for number, line in lines]


def _line(where: str, line: str, name: str, kind: str) -> Prompt:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise BadValue(f"{where}: not JSON") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadValue(f"{where}: not a JSON object of texts; allowed: {', '.join(KEYS)}")
    for key in found:
        if key not in KEYS:
            raise BadValue(f"{where}: {key!r} is no key; allowed: {', '.join(KEYS)}")
    system = found.get("system")
    return Prompt(
        id=found.get("id") or name,
        kind=found.get("kind") or kind,
        prompt=_text(where, found.get("prompt", "")),
        system=None if system is None else check_utf8(where, system),
    )


def _text(where: str, text: str) -> str:
    if not text.strip():
        raise BadValue(f"{where}: the prompt is empty")
    return check_utf8(where, text)
