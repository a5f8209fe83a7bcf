"""Draft vocabularies: choosing their tokens by a corpus, and saying what is in one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.errors import BadValue, StrataError
from backends.model.gguf import GGUFFile
from backends.model.tokenizer import Tokenizer
from strata_cli.scripts import CONTROL, KINDS, script_of

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's whole vocabulary: its tokenizer, and by id the kind of each token (one of `KINDS`)."""

    tokenizer: Tokenizer
    kinds: Sequence[str]

    @classmethod
    def of(cls, model: Path) -> Vocabulary:
        """That of a model file, whose weights stay unread. Raises ModelError."""
        tokenizer = Tokenizer.from_gguf(GGUFFile.open(model))
        kinds = [CONTROL if tokenizer.is_control(token) else script_of(tokenizer.token_bytes(token)) for token in range(tokenizer.n_vocab)]
        return cls(tokenizer, kinds)

    def count(self, text: str) -> Ids:
        """How often each token is in a text."""
        return np.bincount(self.tokenizer.encode(text, special=False), minlength=self.tokenizer.n_vocab)

    def needed(self, scripts: Collection[str], base: Ids) -> Ids:
        """The ids that are in whatever the corpus says: END ids, control tokens, those of the scripts, and those of `base`. Ascending."""
        wanted = {CONTROL, *scripts}
        # A token that adds nothing to text is never written, unless it is a control token.
        of_kinds = [token for token, kind in enumerate(self.kinds) if kind in wanted and (kind == CONTROL or self.tokenizer.token_bytes(token))]
        return np.unique(np.concatenate([base, np.array(of_kinds, np.int64), np.array(sorted(self.tokenizer.end_ids), np.int64)]))

    def report(self, ids: Ids, counts: Ids | None) -> dict[str, Any]:
        """What is in a draft vocabulary, and with the counts of a text, which share of it: JSON values."""
        kinds = [self.kinds[token] for token in ids]
        end_ids, inside = sorted(self.tokenizer.end_ids), set(ids.tolist())
        return {
            "ids": len(ids),
            "n_vocab": self.tokenizer.n_vocab,
            "scripts": {kind: kinds.count(kind) for kind in KINDS if kind in kinds},
            "end_ids": [token for token in end_ids if token in inside],
            "end_ids_missing": [token for token in end_ids if token not in inside],
            "coverage": None if counts is None else _coverage(ids, counts),
        }


def choose(counts: Ids, needed: Ids, size: int | None, coverage: float | None) -> Ids:
    """`needed`, and of the other tokens the most frequent ones (of equal ones the lowest ids), ascending.

    size: so many ids in all, or fewer where the corpus has no more. coverage: as few as hold this part of the corpus. Neither: all that occur.
    Raises BadValue where the needed ones alone are more than size.
    """
    if size is not None and len(needed) > size:
        raise BadValue(f"--size: {size} is not allowed; allowed: at least {len(needed)}, the ids that are always in (END, control, --script, --base)")
    rest = counts.copy()
    rest[needed] = 0
    order = np.lexsort((np.arange(len(rest)), -rest))
    order = order[: np.count_nonzero(rest)]
    if size is not None:
        order = order[: size - len(needed)]
    elif coverage is not None:
        held = counts[needed].sum() + np.concatenate([[0], np.cumsum(rest[order])])
        order = order[: int(np.searchsorted(held, coverage * counts.sum()))]
    return np.union1d(needed, order)


def write(ids: Ids, path: str) -> None:
    """Puts a draft vocabulary at `path`, whole or not at all. Raises StrataError."""
    target = Path(path)
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = file.name
            file.write(ids.astype("<i4").tobytes())
        os.chmod(temporary, 0o666 & ~_umask())  # a temporary file is for its owner alone
        os.replace(temporary, target)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise StrataError(f"-o: cannot write {path}: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _coverage(ids: Ids, counts: Ids) -> dict[str, Any]:
    tokens, covered = int(counts.sum()), int(counts[ids].sum())
    return {"tokens": tokens, "covered": covered, "share": round(covered / tokens, 6) if tokens else None}
