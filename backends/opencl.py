"""OpenCL devices through PyOpenCL: the CPU runtime that a plain install brings, and what other drivers offer.

Driver variables are set here and nowhere else, before pyopencl is imported; a user's own setting wins.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from backends.device import Device, KernelSpec, Launch, Memory, Replay
from backends.errors import DeviceError, OutOfMemory
from backends.kernels.source import kernel_source
from backends.memory import host_memory
from backends.program_cache import ProgramCache

if TYPE_CHECKING:
    import pyopencl as cl

HUGE_PAGE = 2 << 20
GPU_GROUP = 128  # work-items of a work-group in GPU shape: a multiple of 64, so of every wave's size and of a KV block's cells
COMMON_HEADERS = ("tables.h", "lanes.h")
INTEGER_DOT = "cl_khr_integer_dot_product"
INSTALL_HINT = "pip install intel-opencl-rt intel-cmplr-lib-rt"


@cache
def set_up_driver() -> str:
    """Lets the loader find the CPU runtime installed beside this Python, next to the drivers the system names.

    The loader knows only the system's folder, or the one folder that OCL_ICD_VENDORS names, so ours names both. The CPU runtime's own
    settings pin its threads to cores: unpinned, or with two on one core, a step takes 10 to 100 times as long.

    Returns why the runtime is not named: a user's own setting, no place for the folder; empty where it is or is not installed.
    """
    if not hasattr(os, "sched_getaffinity") or 1 < (os.cpu_count() or 1) == len(os.sched_getaffinity(0)):
        # Where the process may use only some processors (taskset) or there is but one, the runtime ignores them, with lines on stderr.
        os.environ.setdefault("DPCPP_CPU_CU_AFFINITY", "close")
        os.environ.setdefault("DPCPP_CPU_PLACES", "cores")
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # backends/program_cache.py says why
    for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"):
        if os.environ.get(name):
            return f"{name} is set to {os.environ[name]!r}, so what that names is all that is found"
    if sys.platform == "win32":
        library = Path(sys.prefix) / "Library" / "bin" / "intelocl64.dll"
        if library.exists():
            os.environ["OCL_ICD_FILENAMES"] = str(library)
        return ""
    library = Path(sys.prefix) / "lib" / "libintelocl.so"
    if not library.exists():
        return ""
    vendors = None
    try:
        vendors = Path(tempfile.mkdtemp(prefix="strata-icd-"))
        (vendors / "intel-cpu.icd").write_text(f"{library}\n")
        for icd in Path("/etc/OpenCL/vendors").glob("*.icd"):
            if "libintelocl" not in icd.read_text(errors="replace"):
                (vendors / icd.name).write_text(icd.read_text())
        os.environ["OCL_ICD_VENDORS"] = str(vendors)
        import pyopencl  # noqa: PLC0415  the loader reads the folder once, at the first call

        pyopencl.get_platforms()
    except OSError as error:
        return f"the CPU runtime could not be named in a temporary folder ({error})"
    except Exception:  # noqa: BLE001  found again, with its message, by whoever opens a device
        return ""
    finally:
        os.environ.pop("OCL_ICD_VENDORS", None)  # processes started from here look for themselves
        if vendors is not None:
            shutil.rmtree(vendors, ignore_errors=True)
    return ""


def opencl_devices() -> list[tuple[str, cl.Device]]:
    """(name, device) of all OpenCL devices: cpu, cpu-2, ... (the bundled runtime first), gpu/0, gpu/1, ...

    Raises DeviceError where there is no loader or no driver.
    """
    unnamed = set_up_driver()
    try:
        import pyopencl as cl  # noqa: PLC0415  driver variables first
    except ImportError as error:
        raise DeviceError(f"pyopencl cannot be imported ({error}); pip install pyopencl") from error
    # The CPU runtime writes a build log for every program; the warning that pyopencl makes of it is no news to a user.
    warnings.filterwarnings("ignore", category=cl.CompilerWarning)
    _share_invokers()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(f"no OpenCL driver found ({error}); {unnamed or INSTALL_HINT}") from error
    found: list[tuple[str, cl.Device]] = []
    cpus = gpus = 0
    for platform in sorted(platforms, key=lambda p: not p.name.startswith("Intel(R) OpenCL")):
        try:
            devices = platform.get_devices()
        except cl.Error:
            continue
        for device in devices:
            if device.type & cl.device_type.CPU:
                cpus += 1
                found.append(("cpu" if cpus == 1 else f"cpu-{cpus}", device))
            elif device.type & cl.device_type.GPU:
                found.append((f"gpu/{gpus}", device))
                gpus += 1
    return found


@functools.cache
def _share_invokers() -> None:
    """Has pyopencl write and compile the Python wrapper of a kernel once, not for each of a plan's kernel objects.

    Its own cache of wrappers goes off with the one on disk; without either a plan of 150 launches takes a third of a second more.
    """
    from pyopencl import invoker  # noqa: PLC0415

    make = getattr(invoker, "_generate_enqueue_and_set_args_module", None)
    if make is not None:  # else this version has other ways
        invoker._generate_enqueue_and_set_args_module = functools.cache(make)


def device_line(name: str, device: cl.Device) -> str:
    """The device as `strata devices` prints it; equal lines give equal bits. One that flushes subnormals says so: it may give others."""
    import pyopencl as cl  # noqa: PLC0415

    driver = f"{device.platform.name.strip()} {device.driver_version.strip()}"
    flushes = "" if device.single_fp_config & cl.device_fp_config.DENORM else ", flushes subnormals"
    return f"opencl {name}: {device.name.strip()} ({device.max_compute_units} units, {driver}{flushes})"


def fast_dot(name: str, device: cl.Device, gpu: bool, cache: ProgramCache) -> int:
    """The dot product (DOT of kernels/dot.h) that a trial found to work for the kernels' shape, CPU or GPU."""
    from backends.probe import PACKED, PORTABLE, VNNI, language, probe_dot  # noqa: PLC0415

    if gpu and INTEGER_DOT not in device.extensions.split():
        return PORTABLE
    return probe_dot(name, device_line(name, device), cache, PACKED if gpu else VNNI, language(device))


def _standard(device: cl.Device, gpu: bool, dot: int) -> list[str]:
    """The compiler's options for the kernels' shape, where they need more than OpenCL C 1.2.

    In CPU shape for prefetches, whose builtin takes a generic pointer; a GPU's waves hide the wait for memory without them.
    """
    from backends.probe import PACKED, language  # noqa: PLC0415

    if gpu:
        return language(device) if dot == PACKED else []
    return [*language(device), "-DSTRATA_PREFETCH"] if language(device) else []


def unusable(name: str, device: cl.Device, dot: int, cache: ProgramCache) -> str:
    """Why the device cannot run a model, empty where it can. dot: of its kernels. No CPU's compiler is asked."""
    import pyopencl as cl  # noqa: PLC0415

    from backends.probe import fuses  # noqa: PLC0415

    if device.type & cl.device_type.CPU or not fuses(name, device_line(name, device), cache, _standard(device, True, dot)):
        return ""
    return "its OpenCL compiler fuses products with sums although the kernels forbid it: its texts would not be those of other devices"


@contextlib.contextmanager
def _failures_of(name: str) -> Iterator[None]:
    """Turns the driver's errors into DeviceError."""
    import pyopencl as cl  # noqa: PLC0415

    try:
        yield
    except cl.Error as error:
        first = str(error).strip().partition("\n")[0]
        # Drivers may hand out memory only when it is first used.
        if error.code in (cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE, cl.status_code.OUT_OF_HOST_MEMORY):
            raise OutOfMemory(f"device {name}: no room ({first})") from error
        # Which may be memory, or a kernel that went astray: the driver does not say.
        perhaps = "it may be out of memory, of which a smaller --ctx or model needs less; " if error.code == cl.status_code.OUT_OF_RESOURCES else ""
        raise DeviceError(f"device {name} failed: {first}; {perhaps}if it goes on failing, the driver needs a restart") from error


def _is_no_room(error: cl.Error, first_use: cl.Event | None) -> bool:
    """Whether an error of an allocation, or of waiting for its first use, means that there is no room."""
    import pyopencl as cl  # noqa: PLC0415

    codes, code = cl.status_code, error.code
    if first_use is not None and code == codes.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
        with contextlib.suppress(cl.Error):
            code = first_use.command_execution_status  # why what was waited for failed
    return code in (codes.MEM_OBJECT_ALLOCATION_FAILURE, codes.OUT_OF_RESOURCES, codes.OUT_OF_HOST_MEMORY, codes.INVALID_BUFFER_SIZE)


class OpenCLBuffer:
    """Device memory. host: the memory itself where the device is the CPU."""

    __slots__ = ("handle", "host", "nbytes")

    def __init__(self, handle: cl.Buffer, host: NDArray[np.uint8] | None, nbytes: int) -> None:
        self.handle, self.host, self.nbytes = handle, host, nbytes


def _host_memory(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed memory, aligned to huge pages and asking for them when it is large: weights then miss the TLB far less."""
    align = HUGE_PAGE if nbytes >= HUGE_PAGE else mmap.PAGESIZE
    size = -(-nbytes // align) * align
    # Private: the kernel gives shared mappings, Python's default, no huge pages.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, size + align, **private)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % align
    if align == HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return array[start : start + size]


class QueueReplay(Replay):
    """Launches one by one through the in-order queue."""

    kind = "queue"

    def __init__(self, launches: Sequence[Launch], name: str, queue: cl.CommandQueue, kernels: Sequence[cl.Kernel], group: int) -> None:
        import pyopencl as cl  # noqa: PLC0415

        super().__init__(launches)
        self._enqueue, self._name, self._queue = cl.enqueue_nd_range_kernel, name, queue
        self._calls = [(kernel, (launch.groups * group,), (group,)) for kernel, launch in zip(kernels, launches, strict=True)]

    def run(self) -> None:
        enqueue, queue = self._enqueue, self._queue
        with _failures_of(self._name):
            for kernel, size, local in self._calls:
                enqueue(queue, kernel, size, local)


class OpenCLDevice(Device):
    """One OpenCL device. instructions: "auto" uses what the probe found, "portable" nothing beyond OpenCL C. shape: of the kernels, "cpu",
    "gpu" or what the device is ("auto").
    """

    def __init__(
        self,
        name: str,
        device: cl.Device,
        instructions: str = "auto",
        cache_dir: str | None = None,
        notices: list[str] | None = None,
        shape: str = "auto",
    ) -> None:
        import pyopencl as cl  # noqa: PLC0415

        from backends.probe import PORTABLE  # noqa: PLC0415

        gpu = shape == "gpu" or (shape == "auto" and not device.type & cl.device_type.CPU)
        self.name, self.device = name, device
        self.lanes, self.group = (1, GPU_GROUP) if gpu else (16, 1)
        self.subnormals = bool(device.single_fp_config & cl.device_fp_config.DENORM)
        self.line = device_line(name, device) + (", kernels in GPU shape" if gpu else "")
        self.units = device.max_compute_units
        self._cache = ProgramCache(cache_dir, notices)
        self.dot = fast_dot(name, device, gpu, self._cache) if instructions == "auto" else PORTABLE
        try:
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context)
        except cl.Error as error:
            # The CPU runtime fails so, and says no more, when its own path has a blank in it.
            reason = f"; the CPU runtime does not start from a path with a blank in it: {sys.prefix!r}" if " " in sys.prefix else ""
            raise DeviceError(f"device {name} cannot be opened: {error}{reason}") from error
        self._standard = _standard(device, gpu, self.dot)
        reason = unusable(name, device, self.dot, self._cache)
        if reason:
            raise DeviceError(f"device {name} cannot run a model: {reason}")
        if not self.subnormals and notices is not None:
            notices.append(f"device {name} flushes float32 subnormals to zero: its results may differ from other devices' in their last bits")
        self._programs: dict[tuple[Any, ...], cl.Program] = {}
        self._building: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    def alloc(self, nbytes: int) -> OpenCLBuffer:
        import pyopencl as cl  # noqa: PLC0415

        nbytes, first_use = max(nbytes, 64), None
        try:
            if not self.device.type & cl.device_type.CPU:
                handle = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
                # Waited for: drivers may hand out memory only when it is first used, and here it is clear what failed.
                first_use = cl.enqueue_fill_buffer(self._queue, handle, np.zeros(1, np.uint8), 0, nbytes)
                first_use.wait()
                return OpenCLBuffer(handle, None, nbytes)
            host = _host_memory(nbytes)
            return OpenCLBuffer(cl.Buffer(self._context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host), host, nbytes)
        except (OSError, MemoryError, cl.Error) as error:
            if isinstance(error, cl.Error) and not _is_no_room(error, first_use):
                with _failures_of(self.name):
                    raise
            limit = self.device.max_mem_alloc_size
            most = f", its driver gives at most {limit >> 20} MiB at once" if nbytes > limit else ""
            raise OutOfMemory(f"device {self.name}: no room for {nbytes / 2**20:.0f} MiB more ({error}){most}") from error

    def memory(self) -> Memory | None:
        import pyopencl as cl  # noqa: PLC0415

        if self.device.type & cl.device_type.CPU:
            return host_memory()
        free = None
        if "cl_amd_device_attribute_query" in self.device.extensions.split():
            with contextlib.suppress(cl.Error):
                # KiB; the largest piece follows where the driver knows that too.
                free = int(np.ravel(self.device.global_free_memory_amd)[0]) << 10
        return Memory(free, self.device.global_mem_size)

    def upload(self, buffer: OpenCLBuffer, array: NDArray[Any], offset: int = 0) -> None:
        import pyopencl as cl  # noqa: PLC0415

        with _failures_of(self.name):
            cl.enqueue_copy(self._queue, buffer.handle, np.ascontiguousarray(array), dst_offset=offset, is_blocking=True)

    def download(self, buffer: OpenCLBuffer, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        import pyopencl as cl  # noqa: PLC0415

        out = np.empty(count, dtype)
        with _failures_of(self.name):
            cl.enqueue_copy(self._queue, out, buffer.handle, src_offset=offset, is_blocking=True)
        return out

    def compile(self, specs: Sequence[KernelSpec]) -> None:
        for spec in specs:
            self._program(spec)

    def record(self, launches: Sequence[Launch], style: str = "auto") -> Replay:
        import pyopencl as cl  # noqa: PLC0415

        from backends.command_buffer import CommandBufferReplay, supports_command_buffer  # noqa: PLC0415

        kernels = [self._kernel(launch) for launch in launches]
        supported = supports_command_buffer(self.device)
        if style == "buffer" and not supported:
            raise DeviceError(f"launch=buffer: device {self.name}'s driver has no command buffers; launch=queue or auto")
        # On a CPU the driver submits a command buffer no faster than we enqueue its launches, and reads back after it more slowly
        # (docs/benchmarks.md), so "auto" takes the queue there.
        if style == "queue" or (style == "auto" and (self.device.type & cl.device_type.CPU or not supported)):
            return QueueReplay(launches, self.name, self._queue, kernels, self.group)
        try:
            return CommandBufferReplay(launches, self.name, self.device, self._queue, kernels, self.group)
        except DeviceError:  # the driver offers them and refuses this one
            if style == "buffer":
                raise
            return QueueReplay(launches, self.name, self._queue, kernels, self.group)

    def finish(self) -> None:
        with _failures_of(self.name):
            self._queue.finish()

    def _kernel(self, launch: Launch) -> cl.Kernel:
        import pyopencl as cl  # noqa: PLC0415

        kernel = cl.Kernel(self._program(launch.spec), launch.spec.kernel)
        kernel.set_args(*(a.handle if isinstance(a, OpenCLBuffer) else np.int32(a) if isinstance(a, int) else np.float32(a) for a in launch.args))
        return kernel

    def _program(self, spec: KernelSpec) -> cl.Program:
        key = (spec.op, spec.headers, spec.constants)
        with self._lock:
            lock = self._building.setdefault(key, threading.Lock())
        with lock:
            if key not in self._programs:
                source = kernel_source([*COMMON_HEADERS, *spec.headers, f"{spec.op}.cl"], lanes=(1, 16) if self.lanes == 16 else (1,))
                options = [
                    f"-DLANES={self.lanes}",
                    f"-DGROUP={self.group}",
                    f"-DDOT={self.dot}",
                    *self._standard,
                    *(f"-D{name}={value}" for name, value in spec.constants),
                ]
                self._programs[key] = self._cache.build(self._context, self.device, self.line, source, options)
            return self._programs[key]
