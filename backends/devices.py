"""Which devices there are, and the one that a configuration means: `auto` takes a CUDA or HIP GPU, then the OpenCL CPU runtime, NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.config import DecodeConfig
from backends.device import Device
from backends.errors import BadValue, DeviceError

if TYPE_CHECKING:
    import pyopencl as cl

GPU_BACKENDS = ("cuda", "hip")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as `strata devices` shows it. memory: bytes. default: what `auto` takes."""

    name: str
    backend: str
    description: str
    driver: str
    units: int
    memory: int
    default: bool
    details: dict[str, str] = field(default_factory=dict)


def list_devices(cache_dir: str | None = None) -> list[DeviceInfo]:
    """All devices, the default first among those that can run a model."""
    from backends.numpy_device import NumpyDevice  # noqa: PLC0415  numpy takes a tenth of a second to import
    from backends.opencl import fast_dot, unusable  # noqa: PLC0415
    from backends.probe import DOT_NAMES  # noqa: PLC0415
    from backends.program_cache import ProgramCache  # noqa: PLC0415

    found = _gpu_infos()
    for name, device in _opencl_devices():
        runs = name.startswith("cpu")
        details = {"kernels": "CPU shape, 16 lanes"} if runs else {"kernels": "GPU shape, which no GPU has run yet: --device names it"}
        dot = fast_dot(name, device, not runs, ProgramCache(cache_dir))
        details["fast dot"] = DOT_NAMES[dot]
        if reason := unusable(name, device, dot, ProgramCache(cache_dir)):
            details["cannot run a model"] = reason
        if runs:
            from backends.command_buffer import supports_command_buffer  # noqa: PLC0415

            details |= {
                "launch": "queue (command buffer: STRATA_LAUNCH=buffer)" if supports_command_buffer(device) else "queue",
                "submissions per round": "1",
            }
        driver = f"{device.platform.name.strip()} {device.driver_version.strip()}"
        default = runs and not any(info.default for info in found)
        found.append(DeviceInfo(name, "opencl", device.name.strip(), driver, device.max_compute_units, device.global_mem_size, default, details))
    reference = NumpyDevice()
    found.append(DeviceInfo("numpy", "numpy", "NumPy reference, slow", reference.driver, 1, reference.main_memory, not any(i.default for i in found)))
    return found


def missing() -> list[str]:
    """What is missing for the devices one would expect, and the command that gets it; a line each."""
    from backends.opencl import INSTALL_HINT, opencl_devices  # noqa: PLC0415

    lines = gpu_trouble()
    try:
        found = opencl_devices()
    except DeviceError as error:
        return [*lines, str(error)]
    return lines if any(name.startswith("cpu") for name, _ in found) else [*lines, f"no OpenCL CPU runtime; {INSTALL_HINT}"]


def gpu_trouble() -> list[str]:
    """Why cards that there is a driver for do not run a model by CuPy, a line each; without a driver there is no card to expect."""
    from backends.cuda import unusable  # noqa: PLC0415
    from backends.cuda_driver import cupy_hint, gpu_driver  # noqa: PLC0415

    if not gpu_driver():
        return []
    try:
        cupy, found = _gpus()
    except DeviceError as error:
        return [str(error)]
    if not found:
        return [f"CuPy finds no GPU, though a driver has one; {cupy_hint()}"]
    reasons = ((name, unusable(cupy, properties)) for name, properties in found)
    return [f"{name}: {reason}" for name, reason in reasons if reason]


def open_device(config: DecodeConfig, notices: list[str]) -> Device:
    """The device that backend and device mean. Raises DeviceError, or BadValue for a name that no device has."""
    from backends.numpy_device import NumpyDevice  # noqa: PLC0415

    if config.backend == "numpy" or (config.backend == "auto" and config.device == "numpy"):
        if config.device not in (None, "numpy"):
            raise BadValue(f"device: {config.device!r} is not allowed with backend numpy; allowed: numpy")
        return NumpyDevice()
    gpu = _open_gpu(config, notices)
    if gpu is not None:
        return gpu
    from backends.opencl import OpenCLDevice, opencl_devices  # noqa: PLC0415

    try:
        found = opencl_devices()
    except DeviceError as error:
        if config.backend == "auto" and config.device is None:
            notices.append(f"{error}; running on NumPy, slowly")
            return NumpyDevice()
        raise
    usable = [(name, device) for name, device in found if name == config.device or (config.device is None and name.startswith("cpu"))]
    if not usable:
        names = ", ".join(name for name, _ in found) or "none"
        if config.device is not None:
            if config.backend == "opencl":
                raise BadValue(f"device: {config.device!r} is not allowed with backend opencl; allowed: {names}")
            raise BadValue(f"device: {config.device!r} is not allowed; allowed: {names}, numpy")
        if config.backend == "auto":
            notices.append(f"no OpenCL CPU runtime among the devices ({names}); running on NumPy, slowly; strata devices says what is missing")
            return NumpyDevice()
        raise DeviceError(f"no OpenCL CPU runtime among the devices ({names}); strata devices says what is missing")
    name, device = usable[0]
    return OpenCLDevice(name, device, config.instructions, config.cache_dir, notices, config.kernel_shape)


def _open_gpu(config: DecodeConfig, notices: list[str]) -> Device | None:
    """The CUDA or HIP device that the configuration means; None where it means another or, with `auto`, there is none."""
    from backends.cuda import CudaDevice  # noqa: PLC0415
    from backends.cuda_driver import gpu_driver  # noqa: PLC0415

    named = config.device is not None and config.device.startswith(tuple(f"{api}/" for api in GPU_BACKENDS))
    wanted = config.backend in GPU_BACKENDS or (config.backend == "auto" and named)
    if config.kernel_shape == "cpu" and wanted:
        raise BadValue("kernel_shape: 'cpu' is not allowed on a GPU; allowed: auto, gpu")
    if not wanted and (config.backend != "auto" or config.device is not None or config.kernel_shape == "cpu"):
        return None
    try:
        cupy, found = _gpus()
        usable = [(name, properties) for name, properties in found if config.backend in ("auto", name.partition("/")[0])]
        if not usable and wanted:
            raise DeviceError(f"no {config.backend if config.backend != 'auto' else config.device} device; strata devices says what there is")
    except DeviceError as error:
        if wanted:
            raise
        if gpu_driver():
            notices.append(f"{error}; not running on the GPU")
        return None
    meant = [(name, properties) for name, properties in usable if config.device in (None, name)]
    for number, (name, properties) in enumerate(meant):
        try:
            device = CudaDevice(cupy, name, properties, config.instructions, config.cache_dir, notices)
        except DeviceError as error:
            if wanted and number + 1 == len(meant):
                raise
            notices.append(f"{error}; not running on it")
            continue
        if not wanted:
            notices.append(f"running on {name}: no GPU has tested this version yet; --backend opencl runs on the processor")
        return device
    if wanted:
        raise BadValue(f"device: {config.device!r} is not allowed with backend {config.backend}; allowed: {', '.join(name for name, _ in usable)}")
    return None


def _gpus() -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    """CuPy and the GPUs it sees. Raises DeviceError, also where it has no compiler for them."""
    from backends.cuda import compiler_version, cuda_devices, load_cupy  # noqa: PLC0415

    cupy = load_cupy()
    found = cuda_devices(cupy)
    if found:
        compiler_version(cupy)
    return cupy, found


def _gpu_infos() -> list[DeviceInfo]:
    from backends.cuda import GROUP, architecture, byte_dot, driver_line, model_name, unusable  # noqa: PLC0415

    try:
        cupy, found = _gpus()
        driver = driver_line(cupy) if found else ""
    except (DeviceError, RuntimeError, ImportError, OSError):
        return []
    infos: list[DeviceInfo] = []
    for name, properties in found:
        kind = architecture(cupy, properties)
        details = {
            "kernels": f"GPU shape, work-groups of {GROUP}",
            "architecture": kind,
            "fast dot": byte_dot(kind),
            "launch": "queue" if cupy.cuda.runtime.is_hip else "CUDA graph",  # as CudaDevice.record
            "submissions per round": "1" if not cupy.cuda.runtime.is_hip else "one a launch",
        }
        reason = unusable(cupy, properties)
        if reason:
            details = {"cannot run a model": reason}
        api, description = name.partition("/")[0], model_name(properties)
        units, memory = properties["multiProcessorCount"], properties["totalGlobalMem"]
        default = not reason and not any(info.default for info in infos)
        infos.append(DeviceInfo(name, api, description, driver, units, memory, default, details))
    return infos


def _opencl_devices() -> list[tuple[str, cl.Device]]:
    from backends.opencl import opencl_devices  # noqa: PLC0415

    try:
        return opencl_devices()
    except DeviceError:
        return []
