"""The trial of the fast dot product: what it may not be misled by, and what is not kept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.opencl import opencl_devices
from backends.probe import PORTABLE, VNNI, probe_dot
from backends.program_cache import ProgramCache


def test_the_current_folder_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = probe_dot("cpu", "line", ProgramCache(None))
    assert dict(opencl_devices())["cpu"]
    for name in ("backends", "numpy", "pyopencl", "random", "subprocess", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    notices: list[str] = []
    assert probe_dot("cpu", "line", ProgramCache(None, notices)) == expected
    assert notices == []


@pytest.mark.parametrize(
    ("code", "out", "expected", "kept"),
    [
        (0, b"begun\nexact\n", VNNI, True),
        (0, b"begun\n", PORTABLE, True),  # wrong sums
        (-6, b"begun\n", PORTABLE, True),  # the driver's compiler gave up
        (-2, b"begun\n", PORTABLE, False),  # Ctrl-C
        (-9, b"begun\n", PORTABLE, False),  # no memory
        (1, b"", PORTABLE, False),  # never came to the trial
        (None, b"begun\n", PORTABLE, False),  # took too long
    ],
)
def test_only_an_answer_is_kept(code: int | None, out: bytes, expected: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        if code is None:
            raise subprocess.TimeoutExpired(command, 120)
        return subprocess.CompletedProcess(command, code, out, b"")

    monkeypatch.setattr(subprocess, "run", run)
    notices: list[str] = []
    assert probe_dot("cpu", "line", ProgramCache(str(tmp_path), notices)) == expected
    assert bool(list(tmp_path.iterdir())) == kept
    assert len(notices) == (not kept)
