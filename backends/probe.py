"""What a device's OpenCL compiler takes and does, found by trial: the fast dot product, and whether it fuses multiply-adds.

In CPU shape AVX-512 VNNI is reached by naming an LLVM intrinsic. On a compiler or processor that does not know it the whole process ends,
so it is tried once in a process of its own; the answer is kept in the program cache. In GPU shape there is cl_khr_integer_dot_product,
which drivers may claim and not have; it is tried in the same way. So is what a GPU's compiler makes of a product and a sum: some fuse them
against the pragma, and then no result is what other devices give.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.program_cache import ProgramCache

if TYPE_CHECKING:
    import pyopencl as cl

VNNI, PORTABLE, PACKED = 2, 3, 4  # DOT of kernels/dot.h
APART = 0  # not a dot product: that a product and a sum are rounded apart
DOT_NAMES = {VNNI: "avx512-vnni", PORTABLE: "portable", PACKED: "dot_4x8packed"}
_SOURCES = {
    VNNI: """
typedef char c64 __attribute__((ext_vector_type(64)));
int16 vpdpbusd(int16, c64, c64) __asm__("llvm.x86.avx512.vpdpbusd.512");
kernel void f(global const int *a, global const int *b, global int *c) {
  vstore16(vpdpbusd(vload16(0, c), __builtin_astype(vload16(0, a), c64), __builtin_astype(vload16(0, b), c64)), 0, c);
}
""",
    PACKED: """
kernel void f(global const uint *a, global const uint *b, global int *c) {
  for (int i = 0; i < 16; i++) c[i] += dot_4x8packed_us_int(a[i], b[i]);
}
""",
    APART: """
#pragma OPENCL FP_CONTRACT OFF
kernel void f(global const float *a, global const float *b, global float *c) {
  for (int i = 0; i < 16; i++) c[i] = a[i] * b[i] + c[i];
}
""",
}


def language(device: cl.Device) -> list[str]:
    """The option for OpenCL C 3, which has more than 1.2, where the device's compiler knows it.

    A driver that means it as an offer names 1.2 as its version, and 3.0 in the list of all.
    """
    import pyopencl  # noqa: PLC0415

    versions = [int(number) for number in re.findall(r"OpenCL C (\d+)\.", device.opencl_c_version)]
    with contextlib.suppress(pyopencl.Error, AttributeError):  # a driver before OpenCL 3 has no list
        versions += [known.version >> 22 for known in device.opencl_c_all_versions]
    return ["-cl-std=CL3.0"] if 3 in versions else []


def probe_dot(name: str, line: str, cache: ProgramCache, dot: int = VNNI, options: Sequence[str] = ()) -> int:
    """`dot` where a trial run on the device gives the right sums, else PORTABLE. line, options: the device's, the compiler's: key the answer."""
    found = _tried(name, line, cache, dot, options)
    if found is None:
        cache.notice("whether the device's fast dot products work could not be found out; this run goes without, slower")
    return dot if found == b"exact" else PORTABLE


def fuses(name: str, line: str, cache: ProgramCache, options: Sequence[str] = ()) -> bool:
    """Whether the device's compiler fuses a product and a sum that the text keeps apart."""
    found = _tried(name, line, cache, APART, options)
    if found not in (b"exact", b"wrong"):
        cache.notice(f"whether {name}'s compiler keeps products and sums apart could not be found out; its results may not be other devices'")
    return found == b"wrong"


def _tried(name: str, line: str, cache: ProgramCache, what: int, options: Sequence[str]) -> bytes | None:
    """What a trial came to: b"exact", b"wrong" or b"failed"; None where it was not tried."""
    key = "\0".join(("trial", line, *options, _SOURCES[what]))
    known = cache.load(key)
    if known is None:
        known = _answer(name, what, options)
        if known is None:
            return None
        cache.store(key, known)
    return known


def _answer(name: str, what: int, options: Sequence[str]) -> bytes | None:
    """What a trial in a process of its own came to; None if it was stopped or never came to the trial."""
    # Without the current folder, which -c puts first: whatever lies there is none of ours.
    path = f"import sys; sys.path = [{str(Path(__file__).resolve().parent.parent)!r}, *filter(None, sys.path)]"
    command = [sys.executable, "-c", f"{path}; from backends.probe import trial; trial({name!r}, {what}, {list(options)!r})"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.split()
    if b"begun" not in said or -done.returncode in (signal.SIGINT, signal.SIGTERM, 9):  # 9: killed, for memory perhaps
        return None
    return b"failed" if done.returncode else b"exact" if said[-1] == b"exact" else b"wrong"


def trial(name: str, what: int, options: Sequence[str]) -> None:
    """Runs it on random numbers; prints "begun", then "exact" if all 16 results are right. Meant for a process of its own."""
    import pyopencl as cl  # noqa: PLC0415

    from backends.opencl import opencl_devices  # noqa: PLC0415

    device = dict(opencl_devices())[name]
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    rng = np.random.default_rng(0)
    a: NDArray[Any]
    b: NDArray[Any]
    if what == APART:
        a, b = rng.uniform(1, 2, (2, 16)).astype(np.float32)
        c, expected = -(a * b), np.zeros(16, np.float32)  # rounded once, what the product's rounding lost is left
    else:
        a, b = rng.integers(0, 256, 64, np.uint8), rng.integers(-128, 128, 64, np.int8)
        c = rng.integers(-1000, 1000, 16, np.int32)
        expected = c + (a.astype(np.int32) * b).reshape(16, 4).sum(1)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in (a, b, c)]
    print("begun", flush=True)
    cl.Program(context, _SOURCES[what]).build(list(options)).f(queue, (1,), (1,), *buffers)
    cl.enqueue_copy(queue, c, buffers[2])
    if np.array_equal(c, expected):
        print("exact")
