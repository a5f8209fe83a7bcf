"""The progress bar: only on a terminal, only after a while, and gone without a trace."""

from __future__ import annotations

import io
import sys

import pytest

from strata_cli.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    # Not a fixture: pytest puts its own stderr in place between a fixture and the test.
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_long_wait_shows_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with Progress(patience=3600) as progress:
        progress("loading", 0.5)
        assert terminal.getvalue() == ""
        progress._show()  # what the timer calls
        progress("compiling", 2.0)
    shown = terminal.getvalue()
    assert "loading" in shown and "compiling" in shown
    progress("prefill", 0.5)
    progress._show()
    assert terminal.getvalue() == shown


def test_the_timer_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    with Progress(patience=0) as progress:
        progress._timer.join()
        assert "working" in terminal.getvalue()


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(patience=0) as progress:
        progress("loading", 0.5)
        progress._show()
    assert stream.getvalue() == ""


def test_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with Progress(patience=0) as progress:
        progress._show()
    assert terminal.getvalue() == ""
