"""`--trace`: a JSON line for every round, as it goes."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from types import TracebackType

from backends.config import RoundTrace
from backends.errors import BadValue, StrataError


class Trace:
    """Writes what it is called with to a file, a line each, flushed. Raises BadValue where that cannot be written, later StrataError.

    reads: files of this run, none of which may be it.
    """

    def __init__(self, path: str, reads: Sequence[str | os.PathLike[str] | None]) -> None:
        self._path, self._round = path, 0
        try:
            for other in reads:
                if other is not None and os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other):
                    raise BadValue(f"--trace: {path}: this run reads that file; name another")
            self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115  # it stays open for the run
        except (OSError, ValueError) as error:  # ValueError: a NUL character
            raise BadValue(f"--trace: {path}: {getattr(error, 'strerror', None) or error}") from None

    def __call__(self, made: RoundTrace) -> None:
        self._round += 1
        line = {
            "round": self._round,
            "depth": made.depth,
            "rows": made.rows,
            "tokens": list(made.tokens),
            "accepted": max(0, len(made.tokens) - 1),
            "drafts": list(made.drafts),
            "probabilities": [_number(value) for value in made.probabilities],
            "product": _number(made.product),
            "threshold": made.threshold,
            "kept": made.kept,
            "next_depth": made.next_depth,
            "ms": round(made.ms, 3),
        }
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise StrataError(f"--trace: cannot write {self._path}: {error.strerror}") from None

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # what is left in its buffer could not be written, which has been said
            self._file.close()


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
