"""How far a batch is: a bar on a terminal, else a line now and then; at the end the statistics."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from strata_cli.messages import complain

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE_S = 60.0


class BatchProgress:
    """Counts what this run makes; the clock starts when it is made. before: requests that earlier runs finished; errors: among those.

    bar: whether a terminal may show one. patience: seconds between lines where there is none.
    """

    def __init__(self, total: int, before: int, errors: int, quiet: bool, bar: bool = True, patience: float = PATIENCE_S) -> None:
        self.total, self.before, self.done, self.errors, self.tokens = total, before, before, errors, 0
        self._quiet, self._patience = quiet, patience
        self._started = self._said = time.perf_counter()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        if bar and not quiet and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._show()

    def __enter__(self) -> BatchProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def add_tokens(self, count: int) -> None:
        """Tokens of the request that is running."""
        self.tokens += count
        self._update()

    def finish_request(self, error: bool) -> None:
        """A result was written."""
        self.done += 1
        self.errors += error
        self._update()
        if self._bar is None and not self._quiet and time.perf_counter() - self._said >= self._patience:
            self._said = time.perf_counter()
            complain(f"{self.done} of {self.total} requests, {self._errors()}, {self._rate()}, {self._left()} left")

    def statistics(self, seed: int) -> str:
        """The line that ends a run. Tokens and rate are this run's alone."""
        before = f" ({self.before} of them before)" if self.before else ""
        return f"{self.done} requests{before}, {self._errors()}, {self.tokens} tokens, {self._rate()}, seed {seed}"

    def _errors(self) -> str:
        return f"{self.errors} error{'' if self.errors == 1 else 's'}"

    def _rate(self) -> str:
        return f"{self.tokens / max(time.perf_counter() - self._started, 1e-9):.1f} tok/s"

    def _left(self) -> str:
        """The time that the rest takes if it goes on as this run did so far."""
        made = self.done - self.before
        if not made:
            return "-:--"
        seconds = int((time.perf_counter() - self._started) / made * (self.total - self.done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds >= 3600 else f"{seconds // 60}:{seconds % 60:02}"

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        # The redirections would send what is printed meanwhile through rich; stdout is the results' alone.
        console = Console(stderr=True)
        self._bar = RichProgress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False, refresh_per_second=4)
        self._task = self._bar.add_task("", total=self.total, completed=self.done)
        self._bar.start()
        self._update()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, description=f"{self._errors()}, {self._rate()}, {self._left()} left")
