"""NVIDIA and AMD GPUs through CuPy: the kernels in GPU shape, in the CUDA dialect, which HIP shares.

The kernels do not go through CuPy's RawModule: it adds -ftz=true to the compiler's options, and flushed subnormals are other bits than
every other device gives. Its compiler binding is called directly instead, and programs are kept in our own cache.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from backends.cuda_driver import cupy_hint, wheel_for
from backends.device import Device, KernelSpec, Launch, Memory, Replay
from backends.errors import DeviceError, OutOfMemory
from backends.kernels.source import kernel_source
from backends.program_cache import ProgramCache

GROUP = 128
HEADERS = ("tables.h", "lanes.h")
BASE_DOT, BYTE_DOT = 3, 4  # kernels/dot.h
BYTE_DOT_FROM = 61  # compute capability with dp4a
# AMD's signed byte dot product; from gfx11 on there is one of unsigned by signed bytes. The compiler has the last word (prelude_cuda.h).
SDOT4_ON = {"gfx906", "gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx1011", "gfx1012", *(f"gfx103{i}" for i in range(7))}
SUDOT4_ON = ("gfx11", "gfx12")
# Compute capabilities that NVRTC compiles for, by its version: for a CuPy whose binding does not ask it.
COMPILES_FOR = {
    (12, 0): (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90),
    (12, 8): (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120),
    (12, 9): (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121),
    (13, 0): (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121),
}
# A fused multiply-add is only what the text calls fma; nothing is flushed; every division and root is rounded correctly. hiprtc's own headers
# are written for its default, C++17.
NVRTC_OPTIONS = ("--std=c++14", "-DLANES=1", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
HIPRTC_OPTIONS = ("-std=c++17", "-DLANES=1", "-ffp-contract=off", "-fno-fast-math")


def load_cupy() -> Any:
    """The cupy module. Raises DeviceError, which says which wheel is missing."""
    try:
        return importlib.import_module("cupy")  # slow, and not part of a plain install
    except ImportError as error:
        raise DeviceError(f"CuPy cannot be imported ({_import_reason(error)}); {cupy_hint()}") from error


def cuda_devices(cupy: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, properties) of the GPUs that CuPy sees: cuda/0, cuda/1, ... or hip/0, ... Raises DeviceError without a driver."""
    runtime = cupy.cuda.runtime
    api = "hip" if runtime.is_hip else "cuda"
    try:
        return [(f"{api}/{i}", runtime.getDeviceProperties(i)) for i in range(runtime.getDeviceCount())]
    except RuntimeError as error:
        raise DeviceError(f"CuPy finds no {api.upper()} driver ({error}); {cupy_hint()}") from error


def unusable(cupy: Any, properties: dict[str, Any]) -> str:
    """Why the compiler makes no code for the card, with what would; empty where it does. Raises DeviceError where there is no compiler."""
    if cupy.cuda.runtime.is_hip:
        return ""
    version, capability = compiler_version(cupy), 10 * properties["major"] + properties["minor"]
    if any(known <= capability for known in compiles_for(cupy)):
        return ""
    return f"{model_name(properties)} is older than CUDA {version[0]} knows; {wheel_for(capability)}"


def compiler_version(cupy: Any) -> tuple[int, ...]:
    """NVRTC's, or hiprtc's. Raises DeviceError where CuPy finds none: a wheel without [ctk], and no CUDA toolkit."""
    try:
        return tuple(cupy.cuda.nvrtc.getVersion())
    except (RuntimeError, ImportError, OSError) as error:
        raise DeviceError(f"CuPy finds no compiler ({_first_line(error)}); {cupy_hint()}") from error


def compiles_for(cupy: Any) -> tuple[int, ...]:
    """The compute capabilities that NVRTC makes machine code for, in order."""
    try:
        return tuple(sorted(cupy.cuda.nvrtc.getSupportedArchs()))
    except (AttributeError, RuntimeError):  # RuntimeError: it is there, and its library too old for it
        version = compiler_version(cupy)
        return COMPILES_FOR[max((known for known in COMPILES_FOR if known <= version), default=min(COMPILES_FOR))]


def model_name(properties: dict[str, Any]) -> str:
    """What the maker calls the device."""
    return _text(properties["name"])


def architecture(cupy: Any, properties: dict[str, Any]) -> str:
    """sm_86 and the like, or AMD's gfx name."""
    return _text(properties["gcnArchName"]) if cupy.cuda.runtime.is_hip else f"sm_{properties['major']}{properties['minor']}"


def byte_dot(architecture: str) -> str:
    """The instruction for dot products of bytes: dp4a, sdot4 or sudot4; "portable" where there is none."""
    if architecture.startswith("sm_"):
        return "dp4a" if int(architecture[3:]) >= BYTE_DOT_FROM else "portable"
    processor = architecture.partition(":")[0]  # what follows are its features, such as xnack-
    if processor.startswith(SUDOT4_ON):
        return "sudot4"
    return "sdot4" if processor in SDOT4_ON else "portable"


def driver_line(cupy: Any) -> str:
    """The driver's and the compiler's versions."""
    runtime, compiler = cupy.cuda.runtime, ".".join(map(str, compiler_version(cupy)))
    version = runtime.driverGetVersion()
    if runtime.is_hip:
        return f"HIP {version}, hiprtc {compiler}"
    return f"CUDA {version // 1000}.{version % 1000 // 10}, NVRTC {compiler}"


def _text(value: Any) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()


class CudaBuffer:
    """Device memory; pointer: CuPy's, which holds it."""

    __slots__ = ("nbytes", "pointer")

    def __init__(self, pointer: Any, nbytes: int) -> None:
        self.pointer, self.nbytes = pointer, nbytes


class StreamReplay(Replay):
    """Launches one by one through the in-order stream."""

    kind = "queue"

    def __init__(self, launches: Sequence[Launch], device: CudaDevice, functions: Sequence[Any]) -> None:
        super().__init__(launches)
        self._device = device
        self._calls = [(function, (launch.groups,), _arguments(launch)) for function, launch in zip(functions, launches, strict=True)]

    def run(self) -> None:
        with self._device.calls() as stream:
            self.submit(stream)

    def submit(self, stream: Any) -> None:
        """Puts the launches on the stream."""
        for function, grid, args in self._calls:
            function(grid, (GROUP,), args, 0, stream)


class GraphReplay(Replay):
    """All launches in one CUDA graph, captured from the stream: a round is one submission."""

    kind = "CUDA graph"

    def __init__(self, launches: Sequence[Launch], device: CudaDevice, graph: Any) -> None:
        super().__init__(launches)
        self._device, self._graph = device, graph

    def run(self) -> None:
        with self._device.calls() as stream:
            self._graph.launch(stream)


def _arguments(launch: Launch) -> tuple[Any, ...]:
    # CuPy takes a Python number for 64 bits.
    return tuple(np.uint64(a.pointer.ptr) if isinstance(a, CudaBuffer) else np.int32(a) if isinstance(a, int) else np.float32(a) for a in launch.args)


class CudaDevice(Device):
    """One GPU. cupy: the module. instructions: "portable" leaves the byte dot product unused."""

    def __init__(
        self,
        cupy: Any,
        name: str,
        properties: dict[str, Any],
        instructions: str = "auto",
        cache_dir: str | None = None,
        notices: list[str] | None = None,
    ) -> None:
        self._cupy, self.name = cupy, name
        self._hip: bool = cupy.cuda.runtime.is_hip
        self._architecture = architecture(cupy, properties)
        self._capability = 0 if self._hip else 10 * properties["major"] + properties["minor"]
        self.units: int = properties["multiProcessorCount"]
        self.lanes, self.group = 1, GROUP
        self.dot = BYTE_DOT if instructions == "auto" and byte_dot(self._architecture) != "portable" else BASE_DOT
        self._cache = ProgramCache(cache_dir, notices)
        self._modules: dict[tuple[Any, ...], Any] = {}
        self._building: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()
        try:
            reason = unusable(cupy, properties)
            self.line = f"{self.api} {name}: {model_name(properties)} ({self.units} units, {self._architecture}, {driver_line(cupy)})"
            self._device = cupy.cuda.Device(int(name.rpartition("/")[2]))
            with self._device:
                self._stream = cupy.cuda.Stream(non_blocking=True)
        except (RuntimeError, ImportError, OSError) as error:
            raise DeviceError(f"device {name} cannot be opened: {_first_line(error)}; {cupy_hint()}") from error
        if reason:
            raise DeviceError(f"device {name}: {reason}")

    @property
    def api(self) -> str:
        """The backend's name: cuda or hip."""
        return "hip" if self._hip else "cuda"

    @contextmanager
    def calls(self) -> Iterator[Any]:
        """Makes the device this thread's, gives its stream and names the device in what fails."""
        try:
            with self._device, self._stream:
                yield self._stream
        except RuntimeError as error:  # all of CuPy's errors but those of memory
            raise DeviceError(f"device {self.name} failed: {_first_line(error)}; if it goes on failing, the driver needs a restart") from error

    def alloc(self, nbytes: int) -> CudaBuffer:
        nbytes = max(nbytes, 64)
        try:
            with self.calls() as stream:
                pointer = self._cupy.cuda.alloc(nbytes)
                pointer.memset_async(0, nbytes, stream)
        except MemoryError as error:
            raise OutOfMemory(f"device {self.name}: {self._no_room(nbytes)}") from error
        return CudaBuffer(pointer, nbytes)

    def memory(self) -> Memory | None:
        try:
            with self._device:
                free, total = self._cupy.cuda.runtime.memGetInfo()
                free += self._cupy.get_default_memory_pool().free_bytes()  # CuPy keeps what was freed, for the next buffer
        except RuntimeError:
            return None
        return Memory(free, total)

    def upload(self, buffer: CudaBuffer, array: NDArray[Any], offset: int = 0) -> None:
        data = np.ascontiguousarray(array)
        with self.calls() as stream:
            (buffer.pointer + offset).copy_from_host_async(ctypes.c_void_p(data.ctypes.data), data.nbytes, stream)
            stream.synchronize()  # the copy may still read the array

    def download(self, buffer: CudaBuffer, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        out = np.empty(count, dtype)
        with self.calls() as stream:
            (buffer.pointer + offset).copy_to_host_async(ctypes.c_void_p(out.ctypes.data), out.nbytes, stream)
            stream.synchronize()
        return out

    def compile(self, specs: Sequence[KernelSpec]) -> None:
        for spec in specs:
            self._function(spec)

    def record(self, launches: Sequence[Launch], style: str = "auto") -> Replay:
        replay = StreamReplay(launches, self, [self._function(launch.spec) for launch in launches])
        # On HIP only where it is asked for: a path that nothing has tried, and CuPy 14 no longer stops.
        if style == "queue" or (self._hip and style != "buffer"):
            return replay
        try:
            return GraphReplay(launches, self, self._captured(replay))
        except DeviceError as error:
            if style == "buffer":
                raise DeviceError(f"launch=buffer: device {self.name} records no graphs ({error}); launch=queue or auto") from error
            return replay

    def finish(self) -> None:
        with self.calls() as stream:
            stream.synchronize()

    def _captured(self, replay: StreamReplay) -> Any:
        with self.calls() as stream:
            stream.begin_capture()
            try:
                replay.submit(stream)
            except BaseException:
                stream.end_capture()
                raise
            return stream.end_capture()

    def _no_room(self, nbytes: int) -> str:
        memory = self.memory()
        if memory is None or memory.free is None:
            return f"no room for {_mebibytes(nbytes)} more"
        return f"no room for {_mebibytes(nbytes)} more: {_mebibytes(memory.free)} of {_mebibytes(memory.total)} are free"

    def _function(self, spec: KernelSpec) -> Any:
        key = (spec.op, spec.headers, spec.constants)
        with self._lock:
            lock = self._building.setdefault(key, threading.Lock())
        with lock, self.calls():
            if key not in self._modules:
                module = self._cupy.cuda.Module()
                module.load(self._code(spec))
                self._modules[key] = module
            return self._modules[key].get_function(spec.kernel)

    def _code(self, spec: KernelSpec) -> bytes:
        """The program as machine code, from the cache or compiled."""
        source = kernel_source([*HEADERS, *spec.headers, f"{spec.op}.cl"], "cuda")
        target, is_machine_code = self._target()
        defines = [f"-D{name}={value}" for name, value in (("GROUP", GROUP), ("DOT", self.dot), *spec.constants)]
        options = (*(HIPRTC_OPTIONS if self._hip else NVRTC_OPTIONS), *defines, *target)
        key = "\0".join((self.line, *options, source))
        code = self._cache.load(key)
        if code is None:
            code = self._compiled(f"{spec.op}.cu", source, options, is_machine_code)
            self._cache.store(key, code)
        return code

    def _target(self) -> tuple[tuple[str, ...], bool]:
        """The compiler's option for this device, and whether machine code comes of it: a device that the compiler does not know gets PTX."""
        if self._hip:
            return (f"--offload-arch={self._architecture}",), False  # hiprtc hands out machine code where NVRTC does PTX
        known = compiles_for(self._cupy)
        if self._capability in known:
            return (f"--gpu-architecture=sm_{self._capability}",), True
        # The driver makes machine code of PTX for an older card.
        return (f"--gpu-architecture=compute_{max(older for older in known if older <= self._capability)}",), False

    def _compiled(self, file: str, source: str, options: tuple[str, ...], is_machine_code: bool) -> bytes:
        nvrtc = self._cupy.cuda.nvrtc
        program = nvrtc.createProgram(source, file, (), ())
        try:
            nvrtc.compileProgram(program, options)
            code: bytes = nvrtc.getCUBIN(program) if is_machine_code else nvrtc.getPTX(program)
            return code
        except RuntimeError as error:
            raise DeviceError(f"a kernel does not compile on {self.line}: {nvrtc.getProgramLog(program).strip() or error}") from error
        finally:
            nvrtc.destroyProgram(program)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _import_reason(error: BaseException) -> str:
    """What went wrong, of CuPy's page of text between rulers."""
    text = str(error)
    _, _, original = text.partition("Original error:")
    lines = [line.strip() for line in (original or text).splitlines()]
    return next((line for line in lines if line.strip("=")), type(error).__name__)


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:.0f} MiB"
