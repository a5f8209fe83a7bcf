"""What OpenCL drivers do beside what they should: errors that are not of memory, command buffers refused, free memory unsaid, subnormals flushed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backends.command_buffer
from backends.config import DecodeConfig
from backends.device import KernelSpec, Launch, Memory, Replay
from backends.devices import list_devices, open_device
from backends.errors import DeviceError, OutOfMemory
from backends.memory import Need, check_room
from backends.opencl import OpenCLDevice, device_line, opencl_devices
from tests.backends import test_device_bits
from tests.backends.test_device_bits import numbers
from tests.backends.test_math import BOUNDS
from tests.conftest import skip_or_fail
from tests.gpu_check.weights import TEXT

GPU = 4  # CL_DEVICE_TYPE_GPU
COUNT = 4096
SPEC = KernelSpec(TEXT, "copy")


class Card:
    """The CPU runtime's device with another's answers, a GPU's unless others are given."""

    def __init__(self, device: Any, **about: Any) -> None:
        self._device = device
        self.__dict__.update({"type": GPU, **about})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


@pytest.fixture
def gpu(cache_dir: str) -> OpenCLDevice:
    """A device whose memory and launches are treated as a GPU's."""
    device = open_device(DecodeConfig(backend="opencl", kernel_shape="gpu", cache_dir=cache_dir), [])
    assert isinstance(device, OpenCLDevice)
    device.compile([SPEC])  # by the driver, which knows no other device
    device.device = Card(device.device)  # type: ignore[assignment]
    return device


def error(code: int) -> Exception:
    """The driver's error of that code."""
    import pyopencl as cl

    record = cl._cl._ErrorRecord(cl.status_code.to_string(code, "code %d"), code, "clCall")
    return cl.RuntimeError(record)  # type: ignore[no-any-return]


def failing(code: int) -> Callable[..., Any]:
    """A call that fails with the driver's code."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error(code)

    return fail


ALLOCATION, RESOURCES, HOST_MEMORY, QUEUE, DEVICE, SIZE = -4, -5, -6, -36, -33, -61
WAITED = -14  # what was waited for has failed


@pytest.mark.parametrize("call", ["Buffer", "enqueue_fill_buffer"])
@pytest.mark.parametrize(
    ("code", "memory"),
    [(ALLOCATION, True), (RESOURCES, True), (HOST_MEMORY, True), (SIZE, True), (QUEUE, False), (DEVICE, False), (-9999, False)],
)
def test_only_errors_of_memory_are_called_so(gpu: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, call: str, code: int, memory: bool) -> None:
    monkeypatch.setattr(f"pyopencl.{call}", failing(code))
    with pytest.raises(DeviceError, match="no room for 1 MiB more" if memory else "device cpu failed: .*the driver needs a restart$") as raised:
        gpu.alloc(1 << 20)
    assert isinstance(raised.value, OutOfMemory) == memory and "\n" not in str(raised.value)


@pytest.mark.parametrize(("code", "status", "memory"), [(RESOURCES, 0, True), (WAITED, ALLOCATION, True), (WAITED, -9999, False), (QUEUE, 0, False)])
def test_memory_that_is_handed_out_late(gpu: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, code: int, status: int, memory: bool) -> None:
    """A driver that promises and fails when the buffer is first used fails in the allocation, not in a launch."""
    event = SimpleNamespace(wait=failing(code), command_execution_status=status)
    monkeypatch.setattr("pyopencl.enqueue_fill_buffer", lambda *args: event)
    with pytest.raises(DeviceError, match="no room for 1 MiB more" if memory else "device cpu failed") as raised:
        gpu.alloc(1 << 20)
    assert isinstance(raised.value, OutOfMemory) == memory


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (ALLOCATION, OutOfMemory, "no room"),
        (RESOURCES, DeviceError, "it may be out of memory"),
        (QUEUE, DeviceError, "INVALID_COMMAND_QUEUE - clCall; if it"),
    ],
)
def test_what_a_launch_fails_of(gpu: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[DeviceError], text: str) -> None:
    replay = copying(gpu, "queue")[0]
    monkeypatch.setattr(replay, "_enqueue", failing(code))
    with pytest.raises(DeviceError, match=text) as raised:
        replay.run()
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("style", "kinds"), [("auto", ("command buffer", "queue")), ("queue", ("queue", "queue")), ("buffer", ("command buffer",) * 2)]
)
def test_launch_styles(gpu: OpenCLDevice, style: str, kinds: tuple[str, str]) -> None:
    """On a GPU and on a CPU: what is asked for by name is what there is."""
    if not backends.command_buffer.supports_command_buffer(gpu.device):
        skip_or_fail("the CPU runtime has no command buffers")
    found = [copying(gpu, style)[0].kind]
    gpu.device = opencl_devices()[0][1]
    assert (*found, copying(gpu, style)[0].kind) == kinds


@pytest.mark.parametrize(("code", "kind"), [(ALLOCATION, OutOfMemory), (HOST_MEMORY, OutOfMemory), (RESOURCES, DeviceError), (-59, DeviceError)])
def test_what_a_command_buffer_fails_of(gpu: OpenCLDevice, driver: Driver, code: int, kind: type[DeviceError]) -> None:
    replay = copying(gpu, "buffer")[0]
    replay._enqueue = lambda *args: code  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match=f"clEnqueueCommandBufferKHR, OpenCL error {code}") as raised:
        replay.run()
    assert type(raised.value) is kind


def test_free_memory(gpu: OpenCLDevice) -> None:
    """AMD's drivers say it, in KiB; of others only the whole is known."""
    whole = gpu.device.global_mem_size
    assert gpu.memory() == Memory(None, whole)
    for said in ([3 << 10, 1 << 10], 3 << 10):
        gpu.device = Card(gpu.device, extensions="cl_khr_fp16 cl_amd_device_attribute_query", global_free_memory_amd=said)  # type: ignore[assignment]
        assert gpu.memory() == Memory(3 << 20, whole)
    gpu.device = Card(opencl_devices()[0][1], extensions="cl_amd_device_attribute_query")  # type: ignore[assignment]
    assert gpu.memory() == Memory(None, whole)  # it is listed, and the driver has no answer


def test_a_tenth_is_kept_back_where_nobody_says_what_is_free(gpu: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    need = Need(weights=700 << 20, state=100 << 20, work=50 << 20, ctx=4096)
    for memory, fits in ((Memory(None, 1000 << 20), True), (Memory(None, 900 << 20), False), (Memory(900 << 20, 900 << 20), True)):
        monkeypatch.setattr(OpenCLDevice, "memory", lambda self, memory=memory: memory)
        for loaded in (False, True):
            if fits:
                check_room(gpu, need, loaded)
                continue
            with pytest.raises(OutOfMemory, match=r"it has 900 MiB, a tenth of them kept back; --ctx \d+ fits") as raised:
                check_room(gpu, need, loaded)
            assert int(str(raised.value).rpartition("--ctx ")[2].split()[0]) <= (810 - 750) * 4096 // 100


def test_a_gpu_that_cannot_be_used_is_listed_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.opencl.opencl_devices", lambda: [("gpu/0", Card(opencl_devices()[0][1], extensions=""))])
    monkeypatch.setattr("backends.devices._gpu_infos", list)
    for reason in ("it fuses", ""):
        monkeypatch.setattr("backends.opencl.unusable", lambda *args, reason=reason: reason)
        assert list_devices()[0].details.get("cannot run a model", "") == reason


def test_flushed_subnormals_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the line that says which device it was, and in a notice."""
    name, device = opencl_devices()[0]
    assert "subnormals" not in device_line(name, device)
    flushing: Any = Card(device, single_fp_config=6)
    assert device_line(name, flushing).endswith(", flushes subnormals)")
    monkeypatch.setattr("pyopencl.Context", lambda devices: None)
    monkeypatch.setattr("pyopencl.CommandQueue", lambda context: None)
    monkeypatch.setattr("backends.probe.fuses", lambda *args: False)
    notices: list[str] = []
    assert not OpenCLDevice(name, flushing, "portable", None, notices).subnormals
    assert notices == [f"device {name} flushes float32 subnormals to zero: its results may differ from other devices' in their last bits"]
    assert OpenCLDevice(name, device, "portable", None, notices).subnormals and len(notices) == 1


def test_a_device_that_flushes_subnormals(cache_dir: str) -> None:
    """Is held to everything else: the CPU runtime, told to flush. That it does shows where it is held to subnormals too."""
    device, inputs = open_device(DecodeConfig(backend="opencl", kernel_shape="gpu", cache_dir=cache_dir), []), numbers()
    assert isinstance(device, OpenCLDevice) and device.subnormals
    device._standard = [*device._standard, "-cl-denorms-are-zero"]
    with pytest.raises(AssertionError):
        test_device_bits.test_fma(device, inputs)
    device.subnormals = False
    test_device_bits.test_fma(device, inputs)
    for name in BOUNDS:
        test_device_bits.test_math(device, name, inputs)


def copying(device: OpenCLDevice, style: str) -> tuple[Replay, Any, Any]:
    """A replay that copies one buffer to another, and both."""
    source, target = device.put(np.arange(COUNT, dtype=np.uint32)), device.zeros(COUNT, np.uint32)
    return device.record([Launch(SPEC, (source, target, COUNT), 3)], style), source, target


class Driver:
    """The CPU runtime's command buffers by the letter of the extension, as PoCL has them: one is not enqueued again before it is done, unless
    it was made so, and it follows the pointer to an event.
    """

    def __init__(self, calls: dict[str, Any], overlaps: bool) -> None:
        self.calls, self.overlaps = calls, overlaps
        self.refuses = self.pending = self.simultaneous = False
        self.events = self.waits = 0

    def functions(self) -> dict[str, Any]:
        """In place of the driver's."""
        own = {"clCreateCommandBufferKHR": self._create, "clEnqueueCommandBufferKHR": self._enqueue, "clWaitForEvents": self._wait}
        return {**self.calls, **own, "clReleaseEvent": self._release}

    def _create(self, count: int, queues: Any, flags: Any, code: int) -> int | None:
        if self.refuses:
            ctypes.c_int.from_address(code).value = -59
            return None
        self.simultaneous = flags is not None and list(flags) == [0x1293, 1, 0]
        assert self.simultaneous == self.overlaps
        handle: int = self.calls["clCreateCommandBufferKHR"](count, queues, flags, code)
        return handle

    def _enqueue(self, *args: Any) -> int:
        assert args[5]
        if self.pending and not self.simultaneous:
            return -59
        self.pending = True
        self.events += 1
        code: int = self.calls["clEnqueueCommandBufferKHR"](*args)
        return code

    def _wait(self, *args: Any) -> int:
        self.pending, self.waits = False, self.waits + 1
        code: int = self.calls["clWaitForEvents"](*args)
        return code

    def _release(self, event: Any) -> int:
        self.events -= 1
        code: int = self.calls["clReleaseEvent"](event)
        return code


@pytest.fixture(params=[True, False], ids=["overlaps", "waits"])
def driver(request: pytest.FixtureRequest, gpu: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> Driver:
    if not backends.command_buffer.supports_command_buffer(gpu.device):
        skip_or_fail("the CPU runtime has no command buffers")
    calls = backends.command_buffer._calls(gpu.device.platform.int_ptr)
    assert calls is not None
    made = Driver(calls, request.param)
    functions = made.functions()
    monkeypatch.setattr(backends.command_buffer, "_calls", lambda platform: functions)
    monkeypatch.setattr(backends.command_buffer, "_may_overlap", lambda device: request.param)
    return made


def test_command_buffers_run_again_before_they_are_done(gpu: OpenCLDevice, driver: Driver) -> None:
    replay, source, target = copying(gpu, "auto")
    assert replay.kind == "command buffer"
    for value in range(4):
        gpu.upload(source, np.full(COUNT, value, np.uint32))
        for _ in range(3):
            replay.run()
        assert (gpu.download(target, np.uint32, COUNT) == value).all()
    assert driver.waits == (0 if driver.overlaps else 11)
    assert driver.events == 1
    del replay
    assert driver.events == 0  # nothing is kept of a run


def test_a_command_buffer_that_is_refused(gpu: OpenCLDevice, driver: Driver) -> None:
    """Is none with `auto`; an error where it is asked for."""
    driver.refuses = True
    replay, _, target = copying(gpu, "auto")
    assert replay.kind == "queue"
    replay.run()
    assert gpu.download(target, np.uint32, COUNT).tolist() == list(range(COUNT))
    with pytest.raises(DeviceError, match="clCreateCommandBufferKHR, OpenCL error -59; STRATA_LAUNCH=queue"):
        copying(gpu, "buffer")


@pytest.mark.parametrize(("capabilities", "code", "overlaps"), [(0x4, 0, True), (0xF, 0, True), (0xB, 0, False), (0x4, -30, False)])
def test_whether_a_command_buffer_may_overlap_is_asked(monkeypatch: pytest.MonkeyPatch, capabilities: int, code: int, overlaps: bool) -> None:
    def get(device: int, name: int, size: int, value: int, returned: None) -> int:
        assert (device, name, size) == (5, 0x12A9, 8)
        ctypes.c_uint64.from_address(value).value = capabilities
        return code

    monkeypatch.setattr(backends.command_buffer, "_loader", lambda: SimpleNamespace(clGetDeviceInfo=get))
    assert backends.command_buffer._may_overlap(5) == overlaps
