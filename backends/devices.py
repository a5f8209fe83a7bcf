"""Which devices there are, and the one that a configuration means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.config import DecodeConfig
from backends.device import Device
from backends.errors import BadValue, DeviceError

if TYPE_CHECKING:
    import pyopencl as cl


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

    found: list[DeviceInfo] = []
    for name, device in _opencl_devices():
        runs = name.startswith("cpu")
        details = {"kernels": "CPU shape, 16 lanes"} if runs else {"kernels": "none yet: this version has no kernels in GPU shape"}
        if runs:
            from backends.command_buffer import supports_command_buffer  # noqa: PLC0415
            from backends.opencl import device_line  # noqa: PLC0415
            from backends.probe import DOT_NAMES, probe_dot  # noqa: PLC0415
            from backends.program_cache import ProgramCache  # noqa: PLC0415

            details |= {
                "fast dot": DOT_NAMES[probe_dot(name, device_line(name, device), ProgramCache(cache_dir))],
                "launch": "queue (command buffer: STRATA_LAUNCH=buffer)" if supports_command_buffer(device) else "queue",
                "submissions per round": "1",
            }
        driver = f"{device.platform.name.strip()} {device.driver_version.strip()}"
        default = runs and not any(info.default for info in found)
        found.append(DeviceInfo(name, "opencl", device.name.strip(), driver, device.max_compute_units, device.global_mem_size, default, details))
    reference = NumpyDevice()
    found.append(DeviceInfo("numpy", "numpy", "NumPy reference, slow", reference.driver, 1, reference.memory, not any(i.default for i in found)))
    return found


def missing() -> list[str]:
    """What is missing for the devices one would expect, and the command that gets it; a line each."""
    from backends.opencl import INSTALL_HINT, opencl_devices  # noqa: PLC0415

    try:
        found = opencl_devices()
    except DeviceError as error:
        return [str(error)]
    return [] if any(name.startswith("cpu") for name, _ in found) else [f"no OpenCL CPU runtime; {INSTALL_HINT}"]


def open_device(config: DecodeConfig, notices: list[str]) -> Device:
    """The device that backend and device mean. Raises DeviceError, or BadValue for a name that no device has."""
    from backends.numpy_device import NumpyDevice  # noqa: PLC0415

    if config.backend == "numpy" or (config.backend == "auto" and config.device == "numpy"):
        if config.device not in (None, "numpy"):
            raise BadValue(f"device: {config.device!r} is not allowed with backend numpy; allowed: numpy")
        return NumpyDevice()
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


def _opencl_devices() -> list[tuple[str, cl.Device]]:
    from backends.opencl import opencl_devices  # noqa: PLC0415

    try:
        return opencl_devices()
    except DeviceError:
        return []
