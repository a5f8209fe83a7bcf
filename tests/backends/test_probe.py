"""The trial of the fast dot product: what it may not be misled by, and what is not kept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.kernels.source import kernel_source
from backends.opencl import INTEGER_DOT, fast_dot, opencl_devices
from backends.probe import PACKED, PORTABLE, VNNI, language, probe_dot
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


def test_in_gpu_shape_a_claim_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension nothing is tried; with it the trial decides."""
    said = [b"begun\nexact\n", b"begun\n"]
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 0, said.pop(0), b""))
    about = {"name": "GPU", "max_compute_units": 2, "platform": SimpleNamespace(name="Driver"), "driver_version": "1"}
    claims, none = (SimpleNamespace(extensions=extensions, **about) for extensions in (f"cl_khr_fp16 {INTEGER_DOT}", f"{INTEGER_DOT}_not"))
    cache: Any = ProgramCache(None)
    assert [fast_dot("gpu/0", device, True, cache) for device in (none, claims, none, claims)] == [PORTABLE, PACKED, PORTABLE, PORTABLE]
    assert said == []


def test_the_packed_dot_product_is_exact(cl_context: Any) -> None:
    """DOT 4 and plain products in GPU shape, on every pair of bytes and on random words."""
    import pyopencl as cl

    device = cl_context.devices[0]
    if INTEGER_DOT not in device.extensions.split():
        pytest.skip(f"the CPU runtime has no {INTEGER_DOT}")
    w, x, sums = dot_words()
    expected = sums + (w.view(np.uint8).astype(np.int32) * x.view(np.int8)).reshape(-1, 4).sum(1, dtype=np.int32)
    text = kernel_source(["lanes.h", "dot.h"], lanes=(1,)) + (
        "KERNEL void dots(GLOBAL int *sum, GLOBAL const uint *w, GLOBAL const uint *x) {\n"
        "size_t i = get_global_id(0); sum[i] = DOT4(sum[i], w[i], x[i]); }\n"
    )
    queue = cl.CommandQueue(cl_context)
    for dot in (PORTABLE, PACKED):
        buffers = [cl.Buffer(cl_context, cl.mem_flags.COPY_HOST_PTR, hostbuf=array) for array in (sums, w, x)]
        program = cl.Program(cl_context, text).build([*language(device.opencl_c_version), "-DLANES=1", "-DGROUP=128", f"-DDOT={dot}"])
        program.dots(queue, w.shape, None, *buffers)
        out = np.empty_like(sums)
        cl.enqueue_copy(queue, out, buffers[0])
        assert np.array_equal(out, expected)


def dot_words() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(unsigned bytes, signed bytes, sums) in 32-bit words: each pair of bytes at each of the four places, beside random ones."""
    rng = np.random.default_rng(2)
    w, x = rng.integers(0, 256, (4, 65536, 4), np.uint8), rng.integers(-128, 128, (4, 65536, 4), np.int8)
    pairs = np.arange(65536)
    for place in range(4):
        w[place, :, place], x[place, :, place] = pairs % 256, pairs // 256 - 128
    return w.view(np.uint32).ravel(), x.view(np.uint32).ravel(), rng.integers(-(2**24), 2**24, 4 * 65536, np.int32)
