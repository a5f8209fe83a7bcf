"""The engine's own thread, which makes all calls to the device.

The CPU runtime pins the threads it first sees to cores, and a second caller would share a core with its worker, which halves the speed. So
a caller's own threads stay as they are, and Ctrl-C reaches one that waits. Not a ThreadPoolExecutor: an interrupt while that starts its
thread leaves the interpreter waiting for it for ever at exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from backends.errors import StrataError

Args = ParamSpec("Args")
T = TypeVar("T")


class EngineThread:
    """Runs calls one after the other. `close` ends it after those already asked for."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="strata-engine", daemon=True)
        self._thread.start()

    def run(self, call: Callable[Args, T], *args: Args.args, **kwargs: Args.kwargs) -> T:
        """What the call returns or raises, from this thread. Raises StrataError when closed."""
        if threading.current_thread() is self._thread:
            return call(*args, **kwargs)
        if self._closed:
            raise StrataError("the engine is closed: open a new one")
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(job)
        return future.result()

    def close(self) -> None:
        """Waits for the calls asked for so far; later ones are refused."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()


def _serve(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it keeps its call's arguments until the next
