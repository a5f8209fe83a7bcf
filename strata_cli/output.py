"""Results on stdout: streaming text, JSON, tables; and the statistics line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from backends.config import Result
from backends.errors import StrataError
from strata_cli.messages import harmless


class Unwritable(StrataError):
    """stdout takes no more: a full disk, a closed descriptor."""


def wait_for(stream: Any) -> None:
    """Make reads and writes wait. Whoever started this may have left the other kind, whose reads end early and whose writes lose text."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, no descriptor, or a system without the two kinds
        os.set_blocking(stream.fileno(), True)


def write_stdout(text: str) -> None:
    """Write and flush. A terminal gets no character it would obey. Raises Unwritable; BrokenPipeError if the reader left."""
    stdout = sys.stdout
    if stdout is None:
        raise Unwritable("cannot write to stdout: it is closed")
    wait_for(stdout)
    try:
        stdout.write(harmless(text) if stdout.isatty() else text)
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if sys.platform == "win32" and error.errno == errno.EINVAL:  # how a gone reader looks there
            raise BrokenPipeError from None
        raise Unwritable(f"cannot write to stdout: {error.strerror}") from None


def write_json(value: Any) -> None:
    """One JSON value on one line."""
    write_stdout(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def write_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: wrapped to the width of a terminal, else one row a line in aligned columns."""
    if sys.stdout is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for index, title in enumerate(header):
            table.add_column(title, no_wrap=index == 0, overflow="fold")  # names stay whole, values whole but on several lines
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        Console().print(table)
        return
    lines = [[" ".join(cell.split("\n")) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    write_stdout("".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines))


def rate(tokens: int, milliseconds: float) -> float | None:
    """Tokens per second; None where there is nothing to divide."""
    return tokens * 1000 / milliseconds if tokens > 0 and milliseconds > 0 else None


def prompt_rate(result: Result) -> float | None:
    """The speed of prefill, which runs all prompt tokens but the last (the first round runs that one)."""
    return rate(result.prompt_tokens - 1, result.timings.prefill_ms)


def decode_rate(result: Result) -> float | None:
    """The speed of the rounds."""
    return rate(len(result.token_ids), result.timings.decode_ms)


def statistics(result: Result, max_new: int) -> str:
    """The line that ends a run; parts with nothing to say are left out."""
    spec = result.speculation
    parts = []
    for name, speed in (("prompt", prompt_rate(result)), ("decode", decode_rate(result))):
        if speed is not None:
            parts.append(f"{name} {speed:.1f} tok/s")
    if spec.drafted:
        parts.append(f"drafts accepted {spec.accepted} of {spec.drafted} ({100 * spec.accepted / spec.drafted:.1f}%)")
    if spec.rounds:
        parts.append(f"{len(result.token_ids) / spec.rounds:.2f} tokens per round")
    parts.append(f"seed {result.seed}")
    endings = {
        "length": f"stopped at --max-new {max_new}",
        "context": f"stopped at the end of the context, --ctx {result.ctx}",
        "interrupted": f"interrupted after {len(result.token_ids)} tokens",
        "error": f"failed after {len(result.token_ids)} tokens",
    }
    if result.finish_reason in endings:
        parts.append(endings[result.finish_reason])
    return ", ".join(parts)


def result_object(result: Result) -> dict[str, Any]:
    """A result as JSON values: what a batch writes for each request, and the most of what --json prints."""
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.token_ids),
            "total_tokens": result.prompt_tokens + len(result.token_ids),
        },
        "speculation": {
            "rounds": result.speculation.rounds,
            "drafted": result.speculation.drafted,
            "accepted": result.speculation.accepted,
            "by_position": [list(pair) for pair in result.speculation.by_position],
        },
        "timings": {
            "prefill_ms": _rounded(result.timings.prefill_ms),
            "decode_ms": _rounded(result.timings.decode_ms),
            "prompt_tok_s": _rounded(prompt_rate(result)),
            "decode_tok_s": _rounded(decode_rate(result)),
        },
    }


def as_object(result: Result, load_ms: float, settings: dict[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    found = result_object(result)
    return {**found, "timings": {"load_ms": _rounded(load_ms), **found["timings"]}, "settings": settings}


def json_biases(biases: Mapping[int, float]) -> dict[str, Any]:
    """Biases as JSON has them, which knows no infinity."""
    return {str(token): "-inf" if amount == float("-inf") else amount for token, amount in biases.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
