"""The part of CuPy that backends/cuda.py calls, over the emulator: `FakeCupy()` is the module.

A stream runs nothing before it is synchronised, as a driver may, so that a host which does not wait reads old data. Memory lies between
guards that are checked then. `faults` makes calls fail as drivers do.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.cuda_emulator.compiler import ADDRESS_SANITIZER, SANITIZERS, WORDS, compile_library

GUARD, FILL = 256, 0xA5
C = ctypes.CDLL(None)
C.posix_memalign.argtypes, C.free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t), (ctypes.c_void_p,)
KINDS = {np.uint64: "p", np.int32: "i", np.float32: "f"}


class CUDARuntimeError(RuntimeError):
    """As CuPy's: all but errors of memory are RuntimeErrors."""


class NVRTCError(RuntimeError):
    """As CuPy's: the message is the error's name, the compiler's messages are in the program's log."""


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


@dataclass
class FakeCupy:
    """The module. capabilities: of each device. memory: bytes of a device. architecture: AMD's name of it.

    order: in which threads run between barriers, and blocks: 0 as they are numbered, 1 backwards, else shuffled with that seed. sanitize,
    address: checks of bounds within a thread; of buffers and shared arrays too, in a process with AddressSanitizer. trace: (kernel,
    checksum of all buffers after it) of every launch. barriers: (kernel, line) of the barriers that were come to; without_barrier: the
    one that does nothing. cache: folder for compiled libraries. architectures: what the compiler says that it knows; None: a CuPy that does
    not ask it. faults: names of calls that fail: getDeviceCount, begin_capture, Stream, synchronize, nvrtc, libnvrtc (no compiler is found).
    """

    capabilities: Sequence[tuple[int, int]] = ((8, 6),)
    memory: int = 1 << 30
    nvrtc_version: tuple[int, int] = (12, 9)
    is_hip: bool = False
    architecture: bytes = b"gfx1030"
    architectures: Sequence[int] | None = None
    order: int = 0
    sanitize: bool = False
    address: bool = False
    trace: list[tuple[str, int]] | None = None
    barriers: set[tuple[str, int]] = field(default_factory=set)
    without_barrier: tuple[str, int] = ("", 0)
    cache: Path | None = None
    faults: set[str] = field(default_factory=set)
    launches: int = 0
    graphs: int = 0

    def __post_init__(self) -> None:
        self.used = 0
        self.live: dict[_Memory, None] = {}  # in the order in which they were made
        self.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 0)
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                is_hip=self.is_hip,
                getDeviceCount=self._device_count,
                getDeviceProperties=self._properties,
                driverGetVersion=lambda: 12090,
                memGetInfo=lambda: (self.memory - self.used, self.memory),
            ),
            nvrtc=_Compiler(self),
            alloc=lambda nbytes: Pointer(_Memory(self, nbytes)),
            Device=_Device,
            Stream=self._stream,
            Module=lambda: Module(self),
        )

    def fail(self, call: str) -> None:
        """Fails where `faults` says so."""
        if call in self.faults:
            raise CUDARuntimeError(f"cudaErrorUnknown: {call} was made to fail")

    def _stream(self, non_blocking: bool) -> Stream:
        self.fail("Stream")
        return Stream(self, non_blocking)

    def _device_count(self) -> int:
        self.fail("getDeviceCount")
        return len(self.capabilities)

    def _properties(self, index: int) -> dict[str, Any]:
        major, minor = self.capabilities[index]
        named = {"name": b"Emulated GPU", "gcnArchName": self.architecture}
        return {**named, "major": major, "minor": minor, "multiProcessorCount": 4, "totalGlobalMem": self.memory}


class _Device:
    def __init__(self, index: int) -> None:
        self.id = index

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *details: object) -> None:
        pass


class _Memory:
    """Device memory between two guards; full of FILL, as nobody promises zeros. AddressSanitizer puts guards of its own."""

    def __init__(self, cupy: FakeCupy, nbytes: int) -> None:
        if cupy.used + nbytes > cupy.memory:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes:,} bytes")
        self.nbytes, self._cupy = nbytes, cupy
        self._exact: ctypes.c_void_p | None = None
        if cupy.address:
            self._exact = ctypes.c_void_p()
            assert C.posix_memalign(ctypes.byref(self._exact), GUARD, nbytes) == 0
            self.data, self.start = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self._exact.value)), 0
            self.data[:] = FILL
        else:
            self.data = np.full(nbytes + 3 * GUARD, FILL, np.uint8)
            self.start = GUARD + -(self.data.ctypes.data + GUARD) % GUARD
        cupy.used += nbytes
        cupy.live[self] = None

    def checksum(self, before: int) -> int:
        """Of the memory's bytes, and of what is before it."""
        return zlib.crc32(self.data[self.start : self.start + self.nbytes], before)

    def check(self) -> None:
        """Raises where something was written beside the memory."""
        if (self.data[: self.start] != FILL).any() or (self.data[self.start + self.nbytes :] != FILL).any():
            raise CUDARuntimeError("cudaErrorIllegalAddress: something was written beside a buffer")

    def free(self) -> None:
        """Gives the room back."""
        self._cupy.used -= self.nbytes
        del self._cupy.live[self]
        if self._exact is not None:
            C.free(self._exact)


class Pointer:
    """A place in device memory; the memory is free once no pointer into it is left."""

    def __init__(self, memory: _Memory, offset: int = 0, owner: Pointer | None = None) -> None:
        self.memory, self.offset, self._owner = memory, offset, owner
        self.ptr = memory.data.ctypes.data + memory.start + offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.memory, self.offset + offset, self)

    def __del__(self) -> None:
        if self._owner is None:
            self.memory.free()

    def memset_async(self, value: int, nbytes: int, stream: Stream) -> None:
        stream.submit(lambda: ctypes.memset(self._range(nbytes), value, nbytes))

    def copy_from_host_async(self, host: ctypes.c_void_p, nbytes: int, stream: Stream) -> None:
        stream.submit(lambda: ctypes.memmove(self._range(nbytes), host, nbytes))

    def copy_to_host_async(self, host: ctypes.c_void_p, nbytes: int, stream: Stream) -> None:
        stream.submit(lambda: ctypes.memmove(host, self._range(nbytes), nbytes))

    def copy_from_device_async(self, source: Pointer, nbytes: int, stream: Stream) -> None:
        stream.submit(lambda: ctypes.memmove(self._range(nbytes), source._range(nbytes), nbytes))

    def _range(self, nbytes: int) -> int:
        if not 0 <= self.offset <= self.offset + nbytes <= self.memory.nbytes:
            raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")
        return self.ptr


class Stream:
    """Work in order, run when somebody waits for it."""

    def __init__(self, cupy: FakeCupy, non_blocking: bool) -> None:
        assert non_blocking
        self._cupy, self._work = cupy, list[Callable[[], Any]]()
        self._captured: list[Callable[[], Any]] | None = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def submit(self, work: Callable[[], Any], capturable: bool = False) -> None:
        """Adds work, to the graph where one is being captured."""
        if self._captured is None:
            self._work.append(work)
        elif capturable:
            self._captured.append(work)
        else:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")

    def synchronize(self) -> None:
        if self._captured is not None:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
        self._cupy.fail("synchronize")
        work, self._work = self._work, []
        for step in work:
            step()
        for memory in self._cupy.live:
            memory.check()

    def begin_capture(self) -> None:
        self._cupy.fail("begin_capture")  # on HIP too CuPy 14 captures; before it, it refused
        self._captured = []

    def end_capture(self) -> Graph:
        steps, self._captured = self._captured, None
        assert steps is not None
        self._cupy.graphs += 1
        return Graph(tuple(steps))


class Graph:
    """Captured work."""

    def __init__(self, steps: Sequence[Callable[[], Any]]) -> None:
        self._steps = steps

    def launch(self, stream: Stream) -> None:
        for step in self._steps:
            stream.submit(step)


class _Compiler:
    """cupy.cuda.nvrtc."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self._programs: dict[int, dict[str, Any]] = {}

        if cupy.architectures is not None:
            self.getSupportedArchs = self._architectures

    def _architectures(self) -> tuple[int, ...]:
        if self._cupy.is_hip:
            raise RuntimeError("HIP does not support getSupportedArchs")
        assert self._cupy.architectures is not None
        return tuple(self._cupy.architectures)

    def getVersion(self) -> tuple[int, int]:
        if "libnvrtc" in self._cupy.faults:
            raise RuntimeError("CuPy failed to load libnvrtc.so.12: OSError: libnvrtc.so.12: cannot open shared object file")
        return self._cupy.nvrtc_version

    def createProgram(self, source: str, name: str, headers: Sequence[str], include_names: Sequence[str]) -> int:
        assert name.endswith(".cu") and not headers and not include_names
        handle = max(self._programs, default=0) + 1
        self._programs[handle] = {"source": source, "log": ""}
        return handle

    def compileProgram(self, handle: int, options: Sequence[str]) -> None:
        program = self._programs[handle]
        assert isinstance(options, tuple)
        if self._cupy.is_hip:
            assert {"-ffp-contract=off", "-std=c++17"} <= set(options)
        else:
            assert {"--fmad=false", "--ftz=false"} <= set(options) and any(option.startswith("--gpu-architecture=") for option in options)
        if "nvrtc" in self._cupy.faults:
            program["log"] = "embed.cl(3): error: made to fail\n"
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")
        defines = [option for option in options if option.startswith("-D")]
        try:
            program["code"] = self._library(program["source"], defines)
        except ValueError as error:
            program["log"] = str(error)
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)") from error

    def getCUBIN(self, handle: int) -> bytes:
        code: bytes = self._programs[handle]["code"]
        return code

    getPTX = getCUBIN

    def getProgramLog(self, handle: int) -> str:
        log: str = self._programs[handle]["log"]
        return log

    def destroyProgram(self, handle: int) -> None:
        del self._programs[handle]

    def _library(self, source: str, defines: Sequence[str]) -> bytes:
        checks, folder = ADDRESS_SANITIZER if self._cupy.address else SANITIZERS if self._cupy.sanitize else (), self._cupy.cache
        if folder is None:
            return compile_library(source, defines, checks)
        text = "\0".join([source, *defines, *checks, WORDS.read_text(encoding="utf-8")])
        path = folder / f"emulated-{hashlib.sha256(text.encode()).hexdigest()[:40]}.so"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(compile_library(source, defines, checks))
            part.replace(path)
        return path.read_bytes()


class Module:
    """A loaded library."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy

    def load(self, code: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
            file.write(code)
        self._library = ctypes.CDLL(file.name)
        os.unlink(file.name)  # it stays mapped

    def get_function(self, name: str) -> Callable[..., None]:
        signature, run = getattr(self._library, f"signature_{name}"), getattr(self._library, f"launch_{name}")
        signature.restype = ctypes.c_char_p
        kinds, cupy, reached = signature().decode(), self._cupy, self._library.reached_barrier

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int, stream: Stream) -> None:
            assert len(grid) == len(block) == 1 and 0 < grid[0] < 1 << 31 and 0 < block[0] <= 1024 and shared_mem == 0
            given = "".join(KINDS[type(value)] for value in args)
            if given != kinds:
                raise CUDARuntimeError(f"cudaErrorInvalidValue: {name} takes {kinds}, was given {given}")
            values = [np.array([value]) for value in args]
            pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))

            def step(values: Sequence[Any] = values) -> None:
                cupy.launches += 1
                line = run(grid[0], block[0], pointers, cupy.order, cupy.without_barrier[1] if cupy.without_barrier[0] == name else 0)
                if line:
                    raise CUDARuntimeError(f"cudaErrorLaunchFailure: not all threads of {name} reached the barrier in line {line}")
                if cupy.trace is not None:
                    cupy.barriers |= {(name, line) for line in iter(map(reached, count()).__next__, 0)}
                    checksum = 0
                    for memory in cupy.live:
                        checksum = memory.checksum(checksum)
                    cupy.trace.append((name, checksum))

            stream.submit(step, capturable=True)

        return launch
