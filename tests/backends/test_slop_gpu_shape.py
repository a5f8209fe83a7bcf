"""The slop policy in GPU shape, on the CPU runtime or on --device, and by the reference: one text, that of the CPU shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.config import Result
from tests.backends.test_drafts import rule, same_but_for_rounds
from tests.backends.test_slop import REQUESTS, STRONG, opened, run, write_files

PLACES: dict[str, dict[str, Any]] = {"gpu": {"backend": "opencl", "kernel_shape": "gpu"}, "numpy": {"backend": "numpy"}}
NEW = 20
ARMS = [(5, False, 3), (8, True, 0)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return write_files(tmp_path_factory.mktemp("slop"))


@pytest.fixture(scope="module")
def texts(files: tuple[Path, str], cache_dir: str) -> Iterator[dict[str, Result]]:
    """Of the CPU shape; these random weights leave no pick so near a tie that another shape's last bits turn it."""
    with opened(files, {"backend": "opencl"}, cache_dir, mtp=False, spec=None) as plain:
        yield {name: run(plain, replace(request, slop=STRONG, max_new=NEW)) for name, request in REQUESTS.items()}


def test_one_text(files: tuple[Path, str], place: dict[str, Any], cache_dir: str, texts: dict[str, Result]) -> None:
    with opened(files, place, cache_dir) as engine:
        for spec, seen, corrupt in ARMS:
            rule(engine, spec)
            engine.config = replace(engine.config, mtp_slop=seen)
            for name, request in REQUESTS.items():
                made = run(engine, replace(request, slop=STRONG, max_new=NEW, corrupt=corrupt))
                assert same_but_for_rounds(made, texts[name]), (spec, seen, corrupt, name)
