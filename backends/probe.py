"""Which fast dot product a device's OpenCL compiler takes.

In CPU shape AVX-512 VNNI is reached by naming an LLVM intrinsic. On a compiler or processor that does not know it the whole process ends,
so it is tried once in a process of its own; the answer is kept in the program cache. In GPU shape there is cl_khr_integer_dot_product,
which drivers may claim and not have; it is tried in the same way.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from backends.program_cache import ProgramCache

VNNI, PORTABLE, PACKED = 2, 3, 4  # DOT of kernels/dot.h
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
}


def language(c_version: str) -> list[str]:
    """The option for OpenCL C 3, which has more than 1.2, where the device's compiler knows it."""
    return ["-cl-std=CL3.0"] if "OpenCL C 3" in c_version else []


def probe_dot(name: str, line: str, cache: ProgramCache, dot: int = VNNI) -> int:
    """`dot` where a trial run on the device gives the right sums, else PORTABLE. line: the device's, keys the cached answer."""
    key = f"trial\0{line}\0{_SOURCES[dot]}"
    known = cache.load(key)
    if known is None:
        known = _answer(name, dot)
        if known is None:
            cache.notice("whether the device's fast dot products work could not be found out; this run goes without, slower")
            return PORTABLE
        cache.store(key, known)
    return dot if known == b"exact" else PORTABLE


def _answer(name: str, dot: int) -> bytes | None:
    """What a trial in a process of its own says, b"exact" or b"portable"; None if it was stopped or never came to the trial."""
    # Without the current folder, which -c puts first: whatever lies there is none of ours.
    path = f"import sys; sys.path = [{str(Path(__file__).resolve().parent.parent)!r}, *filter(None, sys.path)]"
    command = [sys.executable, "-c", f"{path}; from backends.probe import trial; trial({name!r}, {dot})"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.split()
    if b"begun" not in said or -done.returncode in (signal.SIGINT, signal.SIGTERM, 9):  # 9: killed, for memory perhaps
        return None
    return b"exact" if done.returncode == 0 and said[-1] == b"exact" else b"portable"


def trial(name: str, dot: int) -> None:
    """Runs the dot product on random bytes; prints "begun", then "exact" if all 16 sums are right. Meant for a process of its own."""
    import pyopencl as cl  # noqa: PLC0415

    from backends.opencl import opencl_devices  # noqa: PLC0415

    device = dict(opencl_devices())[name]
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, 64, np.uint8), rng.integers(-128, 128, 64, np.int8)
    c = rng.integers(-1000, 1000, 16, np.int32)
    expected = c + (a.astype(np.int32) * b).reshape(16, 4).sum(1)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in (a, b, c)]
    print("begun", flush=True)
    cl.Program(context, _SOURCES[dot]).build(language(device.opencl_c_version)).f(queue, (1,), (1,), *buffers)
    cl.enqueue_copy(queue, c, buffers[2])
    if np.array_equal(c, expected):
        print("exact")
