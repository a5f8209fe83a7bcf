"""Runs a test's own kernels over arrays, in either dialect."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda_emulator.compiler import SANITIZERS, compile_library


class OpenCL:
    """Runs the test's kernels on the CPU device."""

    def __init__(self, context: Any, text: str, options: list[str]) -> None:
        import pyopencl as cl

        self.cl, self.context, self.queue = cl, context, cl.CommandQueue(context)
        self.group = 1 if "-DLANES=16" in options else 64
        self.program = cl.Program(context, text).build([*options, f"-DGROUP={self.group}"])

    def __call__(self, name: str, *args: Any) -> None:
        """Arrays and ints; arrays get what the kernel wrote."""
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        given: list[Any] = [self.cl.Buffer(self.context, flags, hostbuf=arg) if isinstance(arg, np.ndarray) else np.int32(arg) for arg in args]
        self.cl.Kernel(self.program, name)(self.queue, (8 * self.group,), (self.group,), *given)
        for arg, buffer in zip(args, given, strict=True):
            if isinstance(arg, np.ndarray):
                self.cl.enqueue_copy(self.queue, arg, buffer)


class Emulated:
    """Runs the CUDA text of the test's kernels as C++, every shift and bound checked."""

    def __init__(self, folder: Path, text: str, options: list[str]) -> None:
        path = folder / "kernels.so"
        path.write_bytes(compile_library(text, [*options, "-DLANES=1", "-DGROUP=32"], SANITIZERS))
        self.library = ctypes.CDLL(str(path))

    def __call__(self, name: str, *args: Any) -> None:
        values = [np.array([arg.ctypes.data if isinstance(arg, np.ndarray) else arg], np.uint64) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        assert getattr(self.library, f"launch_{name}")(2, 32, pointers, 0, 0) == 0
