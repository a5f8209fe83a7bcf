"""A pytest plugin: what became of each test, a line of JSON each as it ends, and an end in time.

    python -m pytest -p tests.gpu_check.pytest_log --log-to FILE --stop-after SECONDS [--done FILE: tests that ran before, a JSON list] ...

A line has "test", "outcome" (passed, failed, skipped) and "why"; a file that cannot be imported, or skips itself, is a test of its name. A
last line has "unrun": tests that did not run, and "stopped": whether that was for want of time.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest


class Log:
    """Writes the lines."""

    def __init__(self, path: Path, seconds: float, done: frozenset[str]) -> None:
        self._done = done
        self._file = path.open("a", encoding="utf-8")
        self._end = time.monotonic() + seconds
        self._left, self._stopped = 0, False
        self._session: pytest.Session | None = None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self._done]
        items[:] = [item for item in items if item.nodeid not in self._done]
        config.hook.pytest_deselected(items=done)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._session, self._left = session, len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._log(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        if report.when == "teardown" and report.outcome == "skipped":
            return
        self._log(report)

    def _log(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        why = ""
        if report.outcome != "passed":
            longrepr: Any = report.longrepr
            crash = getattr(longrepr, "reprcrash", None)
            # Of a traceback that is only text the end says most.
            why = crash.message if crash is not None else longrepr[-1] if isinstance(longrepr, tuple) else str(longrepr)[-400:]
        self._write({"test": report.nodeid or "a file of tests", "outcome": report.outcome, "why": " ".join(str(why).split())[:500]})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._left -= 1
        if self._left and self._session is not None and time.monotonic() > self._end:
            self._session.shouldstop, self._stopped = "no time left", True

    def pytest_sessionfinish(self) -> None:
        self._write({"unrun": self._left, "stopped": self._stopped})
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--log-to", metavar="FILE")
    parser.addoption("--stop-after", metavar="SECONDS", type=float)
    parser.addoption("--done", metavar="FILE", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--done")
    done = frozenset(json.loads(file.read_text(encoding="utf-8")) if file else ())
    config.pluginmanager.register(Log(Path(config.getoption("--log-to")), config.getoption("--stop-after"), done))
