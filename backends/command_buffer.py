"""Replays through cl_khr_command_buffer: a round is one enqueue. pyopencl has no binding for it, so the calls go through ctypes.

Intel's CPU runtime (2026.2) keeps about 2 KB for every command of every run until the process ends: one more reason why "auto" takes the
queue on a CPU.

Source: the OpenCL extension specification, cl_khr_command_buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from backends.device import Launch, Replay
from backends.errors import DeviceError, OutOfMemory

if TYPE_CHECKING:
    import pyopencl as cl

_POINTER, _UINT, _INT = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int
_CAPABILITIES, _SIMULTANEOUS_USE = 0x12A9, 0x4  # CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR and its bit: may be enqueued again while it runs
_NO_ROOM = (-4, -6)  # CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY: drivers may hand out memory only when it is first used
_FLAGS, _SIMULTANEOUS = 0x1293, 1  # CL_COMMAND_BUFFER_FLAGS_KHR: what a buffer that shall be must say when it is made


@cache
def _loader() -> ctypes.CDLL:
    import pyopencl  # noqa: PLC0415

    # The wheel links its loader in, a source build uses the system's: either way it is in the process.
    return ctypes.CDLL(pyopencl._cl.__file__)


@cache
def _calls(platform: int) -> dict[str, Any] | None:
    loader = _loader()
    if not hasattr(loader, "clGetExtensionFunctionAddressForPlatform"):
        return None
    lookup = loader.clGetExtensionFunctionAddressForPlatform
    lookup.restype, lookup.argtypes = _POINTER, [_POINTER, ctypes.c_char_p]
    signatures = {
        "clCreateCommandBufferKHR": (_POINTER, _UINT, _POINTER, _POINTER, _POINTER),
        "clFinalizeCommandBufferKHR": (_INT, _POINTER),
        "clEnqueueCommandBufferKHR": (_INT, _UINT, _POINTER, _POINTER, _UINT, _POINTER, _POINTER),
        "clCommandNDRangeKernelKHR": (
            _INT,
            _POINTER,
            _POINTER,
            _POINTER,
            _POINTER,
            _UINT,
            _POINTER,
            _POINTER,
            _POINTER,
            _UINT,
            _POINTER,
            _POINTER,
            _POINTER,
        ),
        "clReleaseCommandBufferKHR": (_INT, _POINTER),
    }
    calls = {}
    for name, signature in signatures.items():
        address = lookup(platform, name.encode())
        if not address:
            return None
        calls[name] = ctypes.CFUNCTYPE(*signature)(address)
    loader.clWaitForEvents.argtypes, loader.clReleaseEvent.argtypes = [_UINT, _POINTER], [_POINTER]
    return calls | {"clWaitForEvents": loader.clWaitForEvents, "clReleaseEvent": loader.clReleaseEvent}


def _may_overlap(device: int) -> bool:
    """Whether the device's command buffers may be enqueued again before they are done."""
    get, value = _loader().clGetDeviceInfo, ctypes.c_uint64()
    get.argtypes = [_POINTER, _UINT, ctypes.c_size_t, _POINTER, _POINTER]
    return not get(device, _CAPABILITIES, 8, ctypes.addressof(value), None) and bool(value.value & _SIMULTANEOUS_USE)


def supports_command_buffer(device: cl.Device) -> bool:
    """Whether the driver offers the extension and its functions can be reached."""
    return "cl_khr_command_buffer " in device.extensions + " " and _calls(device.platform.int_ptr) is not None


class CommandBufferReplay(Replay):
    """All launches in one command buffer. Raises DeviceError when the driver refuses one."""

    kind = "command buffer"

    def __init__(
        self, launches: Sequence[Launch], name: str, device: cl.Device, queue: cl.CommandQueue, kernels: Sequence[cl.Kernel], group: int
    ) -> None:
        super().__init__(launches)
        self._name = name
        calls = _calls(device.platform.int_ptr)
        assert calls is not None
        error = _INT()
        self._kernels, self._queue = kernels, queue
        self._calls, self._event = calls, _POINTER()
        self._enqueue = calls["clEnqueueCommandBufferKHR"]
        self._overlaps = _may_overlap(device.int_ptr)
        flags = (ctypes.c_uint64 * 3)(_FLAGS, _SIMULTANEOUS, 0) if self._overlaps else None
        self._handle = calls["clCreateCommandBufferKHR"](1, (_POINTER * 1)(queue.int_ptr), flags, ctypes.addressof(error))
        self._check(error.value, "clCreateCommandBufferKHR")
        local = (ctypes.c_size_t * 1)(group)
        for kernel, launch in zip(kernels, launches, strict=True):
            size = (ctypes.c_size_t * 1)(launch.groups * group)
            code = calls["clCommandNDRangeKernelKHR"](
                self._handle, None, None, kernel.int_ptr, 1, None, ctypes.addressof(size), ctypes.addressof(local), 0, None, None, None
            )
            self._check(code, "clCommandNDRangeKernelKHR")
        self._check(calls["clFinalizeCommandBufferKHR"](self._handle), "clFinalizeCommandBufferKHR")

    def run(self) -> None:
        if self._event and not self._overlaps:
            self._check(self._calls["clWaitForEvents"](1, ctypes.addressof(self._event)), "clWaitForEvents")
        self._forget()
        # With an event, although the queue is in order: there are drivers that follow the pointer without asking whether it is one.
        self._check(self._enqueue(0, None, self._handle, 0, None, ctypes.addressof(self._event)), "clEnqueueCommandBufferKHR")

    def _forget(self) -> None:
        if self._event:
            self._calls["clReleaseEvent"](self._event)
            self._event = _POINTER()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._forget()
            self._calls["clReleaseCommandBufferKHR"](self._handle)

    def _check(self, code: int, call: str) -> None:
        if code in _NO_ROOM:
            raise OutOfMemory(f"device {self._name}: no room ({call}, OpenCL error {code})")
        if code:
            raise DeviceError(f"device {self._name} failed: {call}, OpenCL error {code}; STRATA_LAUNCH=queue does without command buffers")
