"""The texts that a draft vocabulary is made from or measured with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backends.errors import BadValue
from strata_cli.prompt import read_file, read_stdin

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
            for piece in pieces(text):
                counts += vocabulary.count(piece)
                done += len(piece)
                progress("counting tokens", done / total)
    if paths and not counts.any():
        raise BadValue(f"{flag}: {', '.join(paths)}: there is no text")
    return counts


def read_texts(path: str, flag: str) -> list[str]:
    """The texts of a file, or of standard input for -: its content, or, of a .jsonl file, the "text" of each line's object (as `strata batch`
    writes them; errors have none).

    flag: what names the file, for messages. Raises BadValue.
    """
    where = f"{flag}: {path}"
    text = read_stdin("a corpus") if path == "-" else read_file(path, where, "a corpus")
    if not path.lower().endswith(".jsonl"):
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
    if isinstance(text := found.get("text"), str):
        # JSON can say half of a surrogate pair, which is no text.
        yield text.encode("utf-8", "replace").decode()


def pieces(text: str) -> Iterator[str]:
    """The text in pieces that a tokenizer's memory stands, cut at line ends."""
    start = 0
    while len(text) - start > _PIECE:
        end = text.rfind("\n", start + 1, start + _PIECE)
        end = start + _PIECE if end == -1 else end
        yield text[start:end]
        start = end
    yield text[start:]
