"""The kernels under the emulator's checks: AddressSanitizer's bounds, and the order of threads, which no result may depend on.

`python -m tests.backends.test_emulated_checks` says of every barrier whether it would be missed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import backends.cuda
import backends.model.attention
from tests.conftest import skip_or_fail
from tests.cuda_emulator.compiler import address_sanitizer, system_compiler
from tests.cuda_emulator.fake_cupy import FakeCupy
from tests.cuda_emulator.run_model import exercise
from tests.tiny import write_tiny_llama

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODELS = {
    "q4_1": {"weight_type": "Q4_1", "embd_type": "Q8_0", "n_embd": 96, "n_head": 3, "n_head_kv": 1, "head_dim": 32, "n_ff": 160, "n_vocab": 103},
    "q4_0": {"weight_type": "Q4_0", "n_embd": 64, "n_head": 4, "n_head_kv": 2, "head_dim": 16, "n_ff": 96, "tied": False},
    "f32": {"weight_type": "F32", "n_embd": 64, "n_head": 1, "n_head_kv": 1, "head_dim": 64, "n_ff": 96},
}
LAUNCHED = {"embed", "activate", "qkv", "attention", "attention_parts", "attention_merge", "matvec", "filter", "pick", "accept"}
LAUNCHED |= {"pair", "draft_begin", "draft_parts", "draft_pick", "slop_parts", "slop_draft"}
ORDERS = (0, 1, 2, 3)  # as numbered, backwards, two shuffles: of any two threads, either comes first at times


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if system_compiler() is None:
        skip_or_fail("the emulator needs a C++ compiler")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `exercise` sets is put back."""
    monkeypatch.setattr(backends.cuda, "load_cupy", backends.cuda.load_cupy)
    monkeypatch.setattr(backends.model.attention, "CHUNK", backends.model.attention.CHUNK)


def written(folder: Path, name: str) -> Path:
    return write_tiny_llama(folder / "tiny.gguf", n_layer=1, ctx=128, seed=3, nextn=True, **MODELS[name])


def traced(model: Path, cache: Path, order: int, without_barrier: tuple[str, int] = ("", 0)) -> FakeCupy:
    """A device that has run everything, and noted what each launch left in memory."""
    fake = FakeCupy(cache=cache, order=order, trace=[], without_barrier=without_barrier)
    exercise(model, fake)
    return fake


@pytest.mark.parametrize("name", list(MODELS))
def test_no_kernels_result_depends_on_the_order_of_threads(name: str, tmp_path: Path, cache_dir: str) -> None:
    """All of memory is the same after every launch, whichever thread comes first between barriers and whichever work-group does."""
    model = written(tmp_path, name)
    expected = traced(model, Path(cache_dir), 0).trace
    assert expected is not None
    assert {kernel for kernel, _ in expected} >= LAUNCHED
    for order in ORDERS[1:]:
        found = traced(model, Path(cache_dir), order).trace
        assert found is not None and len(found) == len(expected)
        assert next((pair for pair in zip(expected, found, strict=True) if pair[0] != pair[1]), None) is None, order


def missed(model: Path, cache: Path) -> Iterator[tuple[str, int, bool]]:
    """(kernel, line, whether the order of threads then shows) for every barrier, with that one taken away."""
    for kernel, line in sorted(traced(model, cache, 0).barriers):
        traces = []
        for order in ORDERS:
            try:
                traces.append(traced(model, cache, order, (kernel, line)).trace)
            except Exception as error:  # noqa: BLE001  a race can give tokens or positions that do not exist
                traces.append([(str(error), order)])
        yield kernel, line, any(trace != traces[0] for trace in traces)


def test_a_missing_barrier_would_be_noticed(tmp_path: Path, cache_dir: str) -> None:
    """In every kernel that has any. Not each one: between two barriers there may be nothing to keep apart in so small a model."""
    found = list(missed(written(tmp_path, "q4_1"), Path(cache_dir)))
    assert {kernel for kernel, _, noticed in found if noticed} == {kernel for kernel, _, _ in found} >= {"matvec", "qkv", "activate", "pick"}
    assert sum(noticed for _, _, noticed in found) > len(found) / 2


@pytest.fixture(scope="module")
def sanitizer() -> str:
    path = address_sanitizer()
    if path is None:
        skip_or_fail("the C++ compiler brings no libasan")
    assert path is not None
    return path


def sanitized(sanitizer: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with AddressSanitizer's library in front. Python frees nothing at its end, so leaks are not looked for."""
    environment = os.environ | {"LD_PRELOAD": sanitizer, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize("name", list(MODELS))
def test_no_stray_access(sanitizer: str, name: str, tmp_path: Path, cache_dir: str) -> None:
    done = sanitized(sanitizer, "-m", "tests.cuda_emulator.run_model", str(written(tmp_path, name)), cache_dir)
    assert (done.stdout.split(), done.stderr) == (["agrees"], ""), done.stdout + done.stderr[:3000]


FAULTY = """
import sys
from pathlib import Path
import numpy as np
from backends.kernels.source import kernel_source
from tests.cuda_emulator.fake_cupy import FakeCupy, Module, Stream
text = kernel_source(["lanes.h"], "cuda") + '''
DEVICE __attribute__((noinline)) int taken(LOCAL int *shared, int i) { BARRIER(); return shared[i]; }
KERNEL void f(int *a, int at, int shared_at) {
  LOCAL_ARRAY int shared[64];
  shared[local_id()] = local_id();
  int x = taken(shared, local_id() == 5 ? shared_at : local_id());
  BARRIER();
  if (WRITES) a[local_id() == 7 ? at : local_id()] = x;
  else if (a[local_id() == 7 ? at : local_id()] == -1) a[0] = x;
}
'''
writes, at, shared_at = map(int, sys.argv[1:4])
fake = FakeCupy(address=True, cache=Path(sys.argv[4]))
module, stream, a = Module(fake), Stream(fake, True), fake.cuda.alloc(300)
module.load(fake.cuda.nvrtc._library(text, ["-DGROUP=64", f"-DWRITES={writes}"]))
module.get_function("f")((2,), (64,), (np.uint64(a.ptr), np.int32(at), np.int32(shared_at)), 0, stream)
stream.synchronize()
print("done")
"""


@pytest.mark.parametrize(
    ("writes", "at", "shared_at", "found"),
    [
        (1, 74, 63, ""),
        (0, 74, 63, ""),
        (1, 75, 63, r"heap-buffer-overflow.*\nWRITE of size 4"),
        (0, 75, 63, r"heap-buffer-overflow.*\nREAD of size 4"),
        (0, -1, 63, r"heap-buffer-overflow.*\nREAD of size 4"),
        (0, 74, 64, r"global-buffer-overflow.*\nREAD of size 4"),
    ],
)
def test_a_stray_access_would_be_noticed(sanitizer: str, writes: int, at: int, shared_at: int, found: str, cache_dir: str) -> None:
    """A buffer's first and last element are found to be right, those beside them not; a shared array's guard is behind it."""
    done = sanitized(sanitizer, "-c", FAULTY, str(writes), str(at), str(shared_at), cache_dir)
    if found:
        assert re.search(found, done.stderr), done.stderr[:3000]
        assert done.returncode != 0 and done.stdout == ""
    else:
        assert (done.stdout, done.stderr) == ("done\n", "")


def main() -> None:
    """Prints a line for every barrier."""
    with tempfile.TemporaryDirectory() as folder:
        for kernel, line, noticed in missed(written(Path(folder), "q4_1"), ROOT / "build" / "test-cache"):
            print(f"{kernel:20} line {line:4}: {'noticed' if noticed else 'not noticed'}")


if __name__ == "__main__":
    main()
