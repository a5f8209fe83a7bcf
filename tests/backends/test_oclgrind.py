"""Every kernel in GPU shape under Oclgrind, an OpenCL device simulator that reports data races and accesses out of bounds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.test_slop_rows import VOCAB
from tests.conftest import skip_or_fail
from tests.tiny import write_tiny_llama

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIBRARIES = ("/usr/lib/oclgrind/liboclgrind-rt-icd.so", "/usr/lib/x86_64-linux-gnu/liboclgrind-rt-icd.so", "/usr/local/lib/liboclgrind-rt-icd.so")
MODELS = {
    "q4_1": {"weight_type": "Q4_1", "embd_type": "Q8_0", "n_embd": 96, "n_head": 3, "n_head_kv": 1, "head_dim": 32, "n_ff": 160, "n_vocab": 103},
    "q4_0": {"weight_type": "Q4_0", "n_embd": 64, "n_head": 4, "n_head_kv": 2, "head_dim": 16, "n_ff": 96, "tied": False},
    "f32": {"weight_type": "F32", "n_embd": 64, "n_head": 1, "n_head_kv": 1, "head_dim": 64, "n_ff": 96},
}


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that names Oclgrind's driver alone."""
    found = next((path for path in LIBRARIES if Path(path).exists()), None)
    if found is None or shutil.which("oclgrind") is None:
        skip_or_fail("oclgrind is not installed: apt-get install oclgrind")
    assert found is not None
    folder = tmp_path_factory.mktemp("vendors")
    (folder / "oclgrind.icd").write_text(found + "\n")
    return folder


@pytest.mark.parametrize("name", list(MODELS))
def test_no_races_and_no_stray_accesses(vendors: Path, tmp_path: Path, name: str) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, ctx=128, seed=3, nextn=True, **MODELS[name])
    done = watched(vendors, "-m", "tests.backends.oclgrind_run", str(model))
    assert done.stdout.split() == ["agrees"], done.stdout + done.stderr[:3000]
    assert done.stderr == "", done.stderr[:3000]


def test_the_slop_policys_rows(vendors: Path, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_vocab=VOCAB, n_layer=1, ctx=64, nextn=True)
    done = watched(vendors, "-m", "tests.backends.oclgrind_slop", str(model))
    assert done.stdout.split() == ["agrees"], done.stdout + done.stderr[:3000]
    assert done.stderr == "", done.stderr[:3000]


def test_it_would_notice(vendors: Path) -> None:
    """A race and a stray access of a kernel of our own are reported."""
    done = watched(vendors, "-c", FAULTY)
    assert "race" in done.stderr.lower(), done.stderr[:3000]
    assert "Invalid write" in done.stderr, done.stderr[:3000]


FAULTY = """
import numpy as np, pyopencl as cl
from backends.opencl import opencl_devices
context = cl.Context([opencl_devices()[0][1]])
queue = cl.CommandQueue(context)
program = cl.Program(context, '''kernel void f(global int *a) {
  volatile local int shared_[1];
  shared_[0] = (int)get_local_id(0);
  a[get_global_id(0)] = shared_[0];
}''').build()
buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 8)
program.f(queue, (4,), (4,), buffer)
queue.finish()
"""


def watched(vendors: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with Oclgrind as its only OpenCL driver."""
    environment = os.environ | {"OCL_ICD_VENDORS": str(vendors), "OCLGRIND_DATA_RACES": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
