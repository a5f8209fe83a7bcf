"""NVIDIA's run-time compiler without a GPU: CUDA text to machine code, and what each kernel needs of a multiprocessor.

The library is the PyPI wheel's. The needs are its assembler's own report, which --ptxas-options=-v puts into the compiler's log.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

REPORT = "--ptxas-options=-v"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel needs: registers, bytes of local memory (arrays that are indexed, calls) and of spills a thread, shared bytes a block."""

    registers: int
    local: int
    spilled: int
    shared: int


@cache
def library() -> Any:
    """The compiler in the wheel nvidia-cuda-nvrtc-cu12."""
    import nvidia.cuda_nvrtc as wheel

    folder = Path(next(iter(wheel.__path__)))
    found = [path for pattern in ("lib/libnvrtc.so.*", "bin/nvrtc64_*.dll") for path in sorted(folder.glob(pattern)) if "alt" not in path.name]
    return ctypes.CDLL(str(found[0]))


def architectures() -> tuple[int, ...]:
    """The compute capabilities that the compiler knows."""
    count = ctypes.c_int()
    assert library().nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    found = (ctypes.c_int * count.value)()
    assert library().nvrtcGetSupportedArchs(found) == 0
    return tuple(found)


def compile_cubin(source: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Machine code and the compiler's log. Raises ValueError with the log where the text does not compile."""
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"strata.cu", 0, None, None) == 0
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        if failed:
            raise ValueError(log.value.decode())
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw, log.value.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def usage(log: str) -> dict[str, Usage]:
    """What each kernel needs, from the log of a compilation with REPORT."""
    found = {}
    for part in log.split("Compiling entry function ")[1:]:
        numbers = [
            re.search(pattern, part)
            for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame", r"(\d+) bytes spill stores", r"(\d+) bytes smem|\Z")
        ]
        # A kernel without shared memory has no "smem"; without the rest, this is no report.
        if not all(numbers):
            raise ValueError(f"not an assembler's report: {part}")
        found[part.split("'")[1]] = Usage(*(int(match[1] or 0) for match in numbers if match))
    return found
