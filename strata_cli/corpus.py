"""The texts that a draft vocabulary is made from or measured with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backends.errors import BadValue
from strata_cli.prompt import decode_text

if TYPE_CHECKING:
    from strata_cli.vocabulary import Vocabulary

_PIECE = 1 << 20  # characters that are tokenised at a time


def count(vocabulary: Vocabulary, paths: Sequence[str], flag: str, progress: Callable[[str, float], None]) -> NDArray[np.int64]:
    """How often each token is in the files. Raises BadValue for one that cannot be read, and where all are without text."""
    counts = np.zeros(vocabulary.tokenizer.n_vocab, np.int64)
    for path in paths:
        texts = read_texts(path, flag)
        total, done = max(1, sum(map(len, texts))), 0
        for text in texts:
            for piece in _pieces(text):
                counts += vocabulary.count(piece)
                done += len(piece)
                progress("counting tokens", done / total)
    if paths and not counts.any():
        raise BadValue(f"{flag}: {', '.join(paths)}: there is no text")
    return counts


def read_texts(path: str, flag: str) -> list[str]:
    """The texts of a file: its content, or, of a .jsonl file, the "text" of each line's object (as `strata batch` writes them; errors have none).

    flag: what names the file, for messages. Raises BadValue.
    """
    where = f"{flag}: {path}"
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise BadValue(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    text = decode_text(content, where, "a corpus")
    if not path.endswith(".jsonl"):
        return [text]
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [found for number, line in lines for found in _line(line, f"{where}, line {number}")]


def _line(line: str, where: str) -> Iterator[str]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BadValue(f"{where}: not JSON; a .jsonl file has an object a line, such as `strata batch` writes") from None
    if not isinstance(found, dict) or not ("error" in found or isinstance(found.get("text"), str)):
        raise BadValue(f'{where}: not an object with "text", such as `strata batch` writes')
    text = found.get("text", "")
    # JSON can say half of a surrogate pair, which is no text.
    yield text.encode("utf-8", "replace").decode()


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that a tokenizer's memory stands, cut at line ends."""
    start = 0
    while len(text) - start > _PIECE:
        end = text.rfind("\n", start + 1, start + _PIECE)
        end = start + _PIECE if end == -1 else end
        yield text[start:end]
        start = end
    yield text[start:]
