"""What a model needs of a device's memory, and the one line that says so where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import DTypeLike, NDArray

from backends.device import Device, KernelSpec, Launch, Memory, Replay
from backends.errors import DeviceError, OutOfMemory

if TYPE_CHECKING:
    from backends.model.llama import Llama
    from backends.model.mtp import Drafter
    from backends.plan import Sizes
    from backends.slop_masks import ClassMasks

MEMINFO = Path("/proc/meminfo")
CTX_STEP = 64  # contexts are suggested in whole KV blocks


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: weights, the state of one sequence of `ctx` positions (its KV cache), work buffers."""

    weights: int
    state: int
    work: int
    ctx: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.state + self.work

    def __str__(self) -> str:
        parts = f"weights {mebibytes(self.weights)}, KV cache for --ctx {self.ctx}: {mebibytes(self.state)}, work buffers {mebibytes(self.work)}"
        return f"{parts}: {mebibytes(self.total)} in all"

    def remedy(self, room: int | None) -> str:
        """The flag that makes it fit into `room` bytes; None where it is not known what there is."""
        if room is None:
            return "a smaller --ctx, or a smaller model or quantisation, needs less"
        fits = (room - self.weights - self.work) * self.ctx // self.state // CTX_STEP * CTX_STEP
        if fits < CTX_STEP:
            return "a smaller model or a smaller quantisation needs less"
        return f"--ctx {fits} fits" if fits < self.ctx else "a smaller --ctx needs less"


def need_of(
    device: Device, model: Llama, drafter: Drafter | None, rows: int, groups: int, ctx: int, slop: ClassMasks | None = None, slop_drafts: bool = False
) -> Need:
    """What a sequence of `ctx` positions needs on the device, work buffers for `rows` rows and `groups` work-groups included.

    slop: class masks, where the slop policy acts; slop_drafts: drafts see it too.
    """
    from backends.plan import DraftWorkspace, SlopBuffers, Workspace  # noqa: PLC0415  it imports the models, which import the devices

    sizes: Sizes = model.sizes
    work, state = _Meter(device), _Meter(device)
    Workspace(work, sizes, rows, groups, ctx)
    model.claim_state(state, ctx)
    weights = model.weight_bytes()
    if drafter is not None:
        DraftWorkspace(work, drafter.sizes, rows, groups, ctx)
        drafter.claim_state(state, ctx)
        weights += drafter.weight_bytes()
    if slop is not None:
        whole = drafter is None or drafter.vocabulary is None  # such a head has the model's masks
        SlopBuffers.make(
            work, model.shape.vocab, lambda head: None if head and whole else work.put(slop.padded(head)), slop_drafts and drafter is not None
        )
    return Need(weights, state.nbytes, work.nbytes, ctx)


def check_room(device: Device, need: Need, loaded: bool = False) -> None:
    """Raises OutOfMemory where it cannot fit, before minutes of loading. loaded: the weights are among what is not free any more."""
    memory = device.memory()
    if memory is None:
        return
    room = memory.room + (need.weights if loaded and memory.free is not None else 0)
    if need.total > room:
        raise OutOfMemory(f"device {device.name}: no room: {need}; {memory}", need.remedy(room))


@contextmanager
def explained(device: Device, need: Need) -> Iterator[None]:
    """Puts what is needed in all into an error of memory that ran out; weights that are loaded by then are part of it."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory(f"main memory ran out: {need}", need.remedy(None)) from error
    except OutOfMemory as error:
        memory = device.memory()
        has = f"; {memory}" if memory is not None else ""
        raise OutOfMemory(f"{error.reason}: {need}{has}", need.remedy(memory.total if memory is not None else None)) from error


def host_memory() -> Memory | None:
    """Main memory, swap included; None where the system does not say."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        found = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        return Memory(found["MemAvailable"] + found["SwapFree"], found["MemTotal"] + found["SwapTotal"])
    except (OSError, KeyError, ValueError, IndexError):
        return None


def mebibytes(nbytes: int) -> str:
    """Rounded up, so that what is there never looks like nothing."""
    return f"{-(-nbytes >> 20)} MiB"


class _Meter(Device):
    """Counts the bytes that are asked for and keeps none of them."""

    def __init__(self, device: Device) -> None:
        self.name, self.line, self.units, self.lanes, self.group, self.dot = "meter", "meter", device.units, device.lanes, device.group, device.dot
        self.nbytes = 0

    def alloc(self, nbytes: int) -> None:
        self.nbytes += max(nbytes, 64)

    def upload(self, buffer: Any, array: NDArray[Any], offset: int = 0) -> None:
        pass

    def download(self, buffer: Any, dtype: DTypeLike, count: int, offset: int = 0) -> NDArray[Any]:
        raise DeviceError("nothing to read: this only counts bytes")

    def compile(self, specs: Sequence[KernelSpec]) -> None:
        pass

    def record(self, launches: Sequence[Launch], style: str = "auto") -> Replay:
        raise DeviceError("nothing to run: this only counts bytes")

    def finish(self) -> None:
        pass
