"""A progress bar on a terminal's stderr for waits of over a second."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE_S = 1.0


class Progress:
    """Called with (stage, fraction 0..1), from any thread; shows a bar once `PATIENCE_S` have passed, and none after `close`.

    A timer shows it, not a call: a driver's compiler may be silent for many seconds.
    """

    def __init__(self, patience: float = PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._closed = sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb"
        self._stage, self._fraction = "working", 0.0
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._timer = threading.Timer(patience, self._show)
        self._timer.daemon = True
        if not self._closed:
            self._timer.start()

    def __call__(self, stage: str, fraction: float) -> None:
        with self._lock:
            self._stage, self._fraction = stage, min(max(fraction, 0.0), 1.0)
            self._update()

    def close(self) -> None:
        """Take the bar away; calls after this do nothing."""
        with self._lock:
            self._closed = True
            self._timer.cancel()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        with self._lock:
            if self._closed:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            # The redirections would send what is printed meanwhile through rich; stdout is the result's alone.
            self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
            self._task = self._bar.add_task(self._stage, total=1.0)
            self._bar.start()
            self._update()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=self._stage, completed=self._fraction)
