"""One-line messages on stderr."""

from __future__ import annotations

import sys

# C0 controls become their visible pictures, DEL too, C1 controls (some terminals obey them as well) a replacement mark.
# A carriage return could hide text that is already there, and is otherwise half a line end: dropped.
_VISIBLE = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD) | {13: None}


def harmless(text: str) -> str:
    """The text with nothing in it that a terminal would obey, save tabs and newlines. Works on each character alone, so on streams."""
    return text.translate(_VISIBLE)


def complain(line: str) -> None:
    """One line on stderr. A stderr that is closed, full or gone is no reason to fail: there is nowhere left to say so."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(harmless(" ".join(line.split("\n"))) + "\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def warn(line: str) -> None:
    """A warning: the run goes on."""
    complain(f"strata: warning: {line}")
