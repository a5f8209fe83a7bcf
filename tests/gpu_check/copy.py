"""How fast the device copies from its own memory to its own memory: the measure of bandwidth that everything else is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from backends.cuda import CudaBuffer, CudaDevice
from backends.device import Device, KernelSpec, Launch
from backends.opencl import OpenCLDevice
from tests.gpu_check.weights import TEXT

MOST = 1 << 30  # bytes: far more than any cache holds
GROUPS_PER_UNIT = 32
REPEATS, SECONDS = 5, 0.1


def copy_bandwidth(device: Device, nbytes: int = MOST) -> dict[str, Any]:
    """GB/s (1e9 bytes, those read and those written both counted) of the driver's copy and of a kernel's; "gb_s" is the faster one.

    nbytes: of each of two buffers, less where a quarter of the memory is less.
    """
    memory = device.memory()
    if memory is not None:
        nbytes = min(nbytes, (memory.total if memory.free is None else memory.free) // 4)
    nbytes = nbytes // 4096 * 4096
    source, target = device.alloc(nbytes), device.alloc(nbytes)
    spec = KernelSpec(TEXT, "copy")
    device.compile([spec])
    kernel = device.record([Launch(spec, (source, target, nbytes // 4), device.units * GROUPS_PER_UNIT)])
    ways = {"kernel_gb_s": kernel.run, "driver_gb_s": _driver_copy(device, source, target, nbytes)}
    found: dict[str, Any] = {name: 2 * nbytes / best_seconds(device, run) / 1e9 for name, run in ways.items()}
    return {"gb_s": max(found.values()), **found, "bytes": nbytes}


def best_seconds(device: Device, run: Callable[[], None]) -> float:
    """Seconds of one run, the best of a few times many: only that is the device's own speed."""
    run()
    device.finish()
    count, best = 1, float("inf")
    while True:
        begun = time.perf_counter()
        for _ in range(count):
            run()
        device.finish()
        took = time.perf_counter() - begun
        if took >= SECONDS / REPEATS:
            break
        count *= 2
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(count):
            run()
        device.finish()
        best = min(best, (time.perf_counter() - begun) / count)
    return best


def _driver_copy(device: Device, source: Any, target: Any, nbytes: int) -> Callable[[], None]:
    if isinstance(device, OpenCLDevice):
        import pyopencl as cl

        def enqueue() -> None:
            cl.enqueue_copy(device._queue, target.handle, source.handle, byte_count=nbytes)

        return enqueue
    assert isinstance(device, CudaDevice) and isinstance(target, CudaBuffer)

    def run() -> None:
        with device.calls() as stream:
            target.pointer.copy_from_device_async(source.pointer, nbytes, stream)

    return run
