"""The trial of the fast dot product: what it may not be misled by, and what is not kept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backends.probe
from backends.errors import DeviceError
from backends.kernels.source import kernel_source
from backends.opencl import INTEGER_DOT, OpenCLDevice, _standard, fast_dot, opencl_devices, unusable
from backends.probe import APART, PACKED, PORTABLE, VNNI, fuses, language, probe_dot, trial
from backends.program_cache import ProgramCache
from tests.conftest import skip_or_fail


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


@pytest.mark.parametrize(
    ("code", "out", "expected", "notices", "kept"),
    [
        (0, b"begun\nexact\n", False, 0, True),
        (0, b"begun\n", True, 0, True),
        (1, b"begun\n", False, 1, True),  # it does not compile, which is another failure
        (-9, b"begun\n", False, 1, False),
        (1, b"", False, 1, False),
    ],
)
def test_a_gpu_that_fuses_is_refused(
    code: int, out: bytes, expected: bool, notices: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the trial's results are those of a fused multiply-add; a CPU's compiler is not asked."""
    import pyopencl as cl

    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, code, out, b""))
    said: list[str] = []
    cache = ProgramCache(str(tmp_path), said)
    gpu: Any = card(type=cl.device_type.GPU)
    assert bool(unusable("gpu/0", gpu, PORTABLE, cache)) == expected
    assert (len(said), bool(list(tmp_path.iterdir()))) == (notices, kept)
    assert unusable("cpu", dict(opencl_devices())["cpu"], PORTABLE, cache) == "" and len(said) == notices
    if expected:
        monkeypatch.setattr("backends.opencl.unusable", lambda *args: "it fuses")
        with pytest.raises(DeviceError, match="^device cpu cannot run a model: it fuses$"):
            OpenCLDevice("cpu", dict(opencl_devices())["cpu"])


def test_the_trial_tells_a_fused_product_and_sum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not fuses("cpu", "line", ProgramCache(None), ["-cl-std=CL3.0"])
    trial("cpu", APART, [])
    assert capsys.readouterr().out.split() == ["begun", "exact"]
    text = backends.probe._SOURCES[APART]
    fused = text.replace("a[i] * b[i] + c[i]", "fma(a[i], b[i], c[i])")
    assert fused != text and "FP_CONTRACT OFF" in text
    monkeypatch.setitem(backends.probe._SOURCES, APART, fused)
    trial("cpu", APART, [])
    assert capsys.readouterr().out.split() == ["begun"]


def card(**about: Any) -> SimpleNamespace:
    """What is asked of a device's driver, a GPU's with OpenCL C 1.2."""
    named = {"name": "GPU", "max_compute_units": 2, "platform": SimpleNamespace(name="Driver"), "driver_version": "1", "single_fp_config": 7}
    return SimpleNamespace(**{**named, "opencl_c_version": "OpenCL C 1.2 ", "extensions": "", **about})


def versions(*numbers: tuple[int, int]) -> list[SimpleNamespace]:
    """As the driver's list of all its OpenCL C's."""
    return [SimpleNamespace(name="OpenCL C", version=major << 22 | minor << 12) for major, minor in numbers]


@pytest.mark.parametrize(
    ("about", "known"),
    [
        ({"opencl_c_version": "OpenCL C 3.0 "}, True),
        ({"opencl_c_version": "OpenCL C 1.2 ", "opencl_c_all_versions": versions((1, 0), (1, 2), (3, 0))}, True),  # Intel's GPUs
        ({"opencl_c_version": "OpenCL C 1.2 ", "opencl_c_all_versions": versions((1, 2))}, False),
        ({"opencl_c_version": "OpenCL C 1.2 "}, False),
        ({"opencl_c_version": "OpenCL C 2.0 AMD", "opencl_c_all_versions": versions((2, 0))}, False),
    ],
)
def test_opencl_c_3_is_used_where_it_is_offered(about: dict[str, Any], known: bool) -> None:
    """In GPU shape only for the dot product that needs it, and never with the prefetch builtin, which needs generic pointers."""
    device: Any = card(**about)
    standard = ["-cl-std=CL3.0"] if known else []
    assert language(device) == standard
    assert _standard(device, True, PACKED) == standard
    assert _standard(device, True, PORTABLE) == []
    assert _standard(device, False, PORTABLE) == ([*standard, "-DSTRATA_PREFETCH"] if known else [])


def test_the_language_is_part_of_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found with OpenCL C 1.2 says nothing of OpenCL C 3."""
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 0, b"begun\nexact\n", b""))
    for options in ([], ["-cl-std=CL3.0"]):
        probe_dot("gpu/0", "line", ProgramCache(str(tmp_path)), PACKED, options)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("standard", "used"), [("CL3.0", True), ("CL1.2", False)])
def test_prefetches_need_generic_pointers(cl_context: Any, standard: str, used: bool) -> None:
    """The CPU runtime gets the builtin; OpenCL C without the generic address space compiles, and goes without."""
    import pyopencl as cl

    text = kernel_source([], lanes=(1,)) + (
        "#define TEXT_OF(x) #x\n#define TEXT(x) TEXT_OF(x)\n"
        "KERNEL void f(GLOBAL const int *a, GLOBAL int *b) { PREFETCH(a); b[0] = sizeof(TEXT(PREFETCH(a))); }\n"
    )
    queue, out = cl.CommandQueue(cl_context), np.zeros(16, np.int32)
    buffer = cl.Buffer(cl_context, cl.mem_flags.READ_WRITE, 64)
    cl.Program(cl_context, text).build([f"-cl-std={standard}", "-DSTRATA_PREFETCH"]).f(queue, (1,), None, buffer, buffer)
    cl.enqueue_copy(queue, out, buffer)
    assert (out[0] > 1) == used
    assert "-DSTRATA_PREFETCH" in _standard(cl_context.devices[0], False, PORTABLE)


def test_in_gpu_shape_a_claim_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension nothing is tried; with it the trial decides."""
    said = [b"begun\nexact\n", b"begun\n"]
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 0, said.pop(0), b""))
    claims, none = (card(extensions=extensions) for extensions in (f"cl_khr_fp16 {INTEGER_DOT}", f"{INTEGER_DOT}_not"))
    cache: Any = ProgramCache(None)
    assert [fast_dot("gpu/0", device, True, cache) for device in (none, claims, none, claims)] == [PORTABLE, PACKED, PORTABLE, PORTABLE]
    assert said == []


def test_the_packed_dot_product_is_exact(cl_context: Any) -> None:
    """DOT 4 and plain products in GPU shape, on every pair of bytes and on random words."""
    import pyopencl as cl

    device = cl_context.devices[0]
    if INTEGER_DOT not in device.extensions.split():
        skip_or_fail(f"the CPU runtime has no {INTEGER_DOT}")
    w, x, sums = dot_words()
    expected = sums + (w.view(np.uint8).astype(np.int32) * x.view(np.int8)).reshape(-1, 4).sum(1, dtype=np.int32)
    text = kernel_source(["lanes.h", "dot.h"], lanes=(1,)) + (
        "KERNEL void dots(GLOBAL int *sum, GLOBAL const uint *w, GLOBAL const uint *x) {\n"
        "size_t i = get_global_id(0); sum[i] = DOT4(sum[i], w[i], x[i]); }\n"
    )
    queue = cl.CommandQueue(cl_context)
    for dot in (PORTABLE, PACKED):
        buffers = [cl.Buffer(cl_context, cl.mem_flags.COPY_HOST_PTR, hostbuf=array) for array in (sums, w, x)]
        program = cl.Program(cl_context, text).build([*language(device), "-DLANES=1", "-DGROUP=128", f"-DDOT={dot}"])
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
