"""The small surface that a device API must offer, and nothing that is not called.

A kernel is named by its op file and its -D constants (`KernelSpec`); its arguments are buffers, ints and floats, all fixed when a
Plan is made: whatever changes from round to round lives in device memory. The NumPy device runs the function of the same name and
arguments in backends/reference.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel: the op file it lies in (backends/kernels/<op>.cl), its name and the op's -D constants.

    headers: files that the op file needs before it, for example the weight type's.
    """

    op: str
    kernel: str
    headers: tuple[str, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel over `groups` work-groups; args: buffers, int (int32) and float (float32)."""

    spec: KernelSpec
    args: tuple[Any, ...]
    groups: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device's memory: free now (None where the driver does not say), and in all."""

    free: int | None
    total: int

    def __str__(self) -> str:
        has = f"it has {-(-self.total >> 20)} MiB"
        return f"{has}, a tenth of them kept back" if self.free is None else f"{has}, {-(-self.free >> 20)} MiB of them free"

    @property
    def room(self) -> int:
        """Bytes that may be asked for. Where nobody says what is free, the driver and the screen have some of it."""
        return self.total - self.total // 10 if self.free is None else self.free


class Replay(ABC):
    """A recorded list of launches, which it keeps: drivers hold no reference to the buffers of a kernel's arguments."""

    kind: str

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)

    @abstractmethod
    def run(self) -> None:
        """Submits all launches in order; does not wait."""


class Device(ABC):
    """A device with one in-order queue.

    name: as in `strata devices`. units: compute units, the default number of work-groups. group: work-items of a work-group.
    lanes: values one work-item carries: 16 with group 1 is the CPU shape of the kernels, 1 the GPU shape. subnormals: whether float32 has
    them; a device that flushes them to zero does not give other devices' bits.
    """

    name: str
    line: str
    units: int
    lanes: int
    group: int
    dot: int
    subnormals: bool = True

    @abstractmethod
    def alloc(self, nbytes: int) -> Any:
        """A zeroed buffer. Raises OutOfMemory, a DeviceError."""

    @abstractmethod
    def upload(self, buffer: Any, array: NDArray[Any], offset: int = 0) -> None:
        """Copies the array's bytes to byte `offset` of the buffer; the array may change afterwards."""

    @abstractmethod
    def download(self, buffer: Any, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        """Waits for the queue and copies `count` items from byte `offset`."""

    @abstractmethod
    def compile(self, specs: Sequence[KernelSpec]) -> None:
        """Makes the kernels ready; safe to call from another thread while the device runs. Raises DeviceError."""

    @abstractmethod
    def record(self, launches: Sequence[Launch], style: str = "auto") -> Replay:
        """Makes a replay. style: "buffer" (the driver's command buffer), "queue" (launches one by one) or "auto"."""

    @abstractmethod
    def finish(self) -> None:
        """Waits until all submitted work is done. Raises DeviceError when the device failed."""

    def memory(self) -> Memory | None:
        """The device's memory; None where it is not known."""
        return None

    def zeros(self, count: int, dtype: DTypeLike = np.float32) -> Any:
        """A zeroed buffer for `count` items."""
        return self.alloc(count * np.dtype(dtype).itemsize)

    def put(self, array: NDArray[Any]) -> Any:
        """A buffer that holds the array."""
        buffer = self.alloc(array.nbytes)
        self.upload(buffer, array)
        return buffer
