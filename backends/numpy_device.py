"""The device without a driver: launches run the reference ops in NumPy, slowly."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from backends import reference, reference_drafts, reference_picks
from backends.device import Device, KernelSpec, Launch, Memory, Replay
from backends.errors import DeviceError, OutOfMemory
from backends.memory import host_memory
from backends.reference import NumpyBuffer

OPS: Final[dict[str, Callable[..., None]]] = {
    op.__name__: op
    for op in (
        *(reference.embed, reference.pair, reference.qkv, reference.matvec, reference.attention),
        *(reference_picks.slop_parts, reference_picks.filter, reference_picks.pick, reference_picks.accept),
        *(reference_drafts.draft_begin, reference_drafts.slop_draft, reference_drafts.draft_parts, reference_drafts.draft_pick),
    )
}


def run(spec: KernelSpec, args: tuple[Any, ...]) -> None:
    """Runs one launch: the function of the kernel's name."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        OPS[spec.kernel](spec, *args)


class NumpyReplay(Replay):
    """The launches, run when asked."""

    kind = "function calls"

    def run(self) -> None:
        for launch in self.launches:
            run(launch.spec, launch.args)


class NumpyDevice(Device):
    """Always there."""

    name = "numpy"
    units = 1
    lanes = 16  # as the CPU shape: no launch of its own for activations
    group = 1
    dot = 0
    driver = f"NumPy {np.__version__}"
    line = f"numpy: {driver}"

    @property
    def main_memory(self) -> int:
        """Bytes of main memory; 0 where the system does not say."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0

    def memory(self) -> Memory | None:
        return host_memory()

    def alloc(self, nbytes: int) -> NumpyBuffer:
        try:
            return NumpyBuffer(nbytes)
        except MemoryError as error:
            raise OutOfMemory(f"device numpy: no room for {nbytes / 2**20:.0f} MiB more of main memory") from error

    def upload(self, buffer: NumpyBuffer, array: NDArray[Any], offset: int = 0) -> None:
        buffer.data[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, buffer: NumpyBuffer, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        return buffer.data[offset : offset + count * np.dtype(dtype).itemsize].view(dtype).copy()

    def compile(self, specs: Sequence[KernelSpec]) -> None:
        for spec in specs:
            if spec.kernel not in OPS:
                raise DeviceError(f"no reference op {spec.kernel!r}")

    def record(self, launches: Sequence[Launch], style: str = "auto") -> Replay:
        if style == "buffer":
            raise DeviceError("launch=buffer: the NumPy device has no command buffers; launch=queue or auto")
        return NumpyReplay(launches)

    def finish(self) -> None:
        pass
