"""Where a round's time goes: each kind of launch alone, replayed many times.

Not by the API's events: between launches that a host submits one by one, they also count the host's time, and inside a recorded graph there
are none. A replay of all launches of one kind has neither fault; what it lacks is what the others leave in the caches. Of a model that the
caches hold, its bandwidth is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from backends.device import Device, Launch, Replay
from backends.engine import Engine
from backends.model.llama import Llama
from backends.model.matrix import Matrix
from backends.model.weights import WEIGHT_TYPES
from backends.sequence import Rules, SequenceState

SECONDS, REPEATS, MOST_RUNS = 0.02, 3, 100
QUEUED = 16  # replays at a time: some drivers slow down when more wait
ROLES = {"qkv": "query, key, value", "output": "attention output", "gate_up": "feed-forward up", "down": "feed-forward down", "head": "head"}
COUNTED = ("matvec", "qkv")  # kernels that read a whole matrix


def matrices(thing: Any, name: str = "") -> Iterator[tuple[str, Matrix]]:
    """(role, matrix) of all that a model holds, wherever it holds them: a matrix's role is named after the attribute."""
    if isinstance(thing, Matrix):
        yield ROLES.get(name, name), thing
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from matrices(part, name)
    elif type(thing).__module__.startswith("backends.model."):
        names = [field.name for field in fields(thing)] if is_dataclass(thing) else list(vars(thing)) if hasattr(thing, "__dict__") else []
        for attribute in sorted(names, key=lambda n: n == "embedding"):  # which may be the head too, and then is read as that
            yield from matrices(getattr(thing, attribute), attribute)


def matrix_bytes(matrix: Matrix) -> int:
    """Bytes of the matrix on the device."""
    return matrix.row_blocks * WEIGHT_TYPES[matrix.type].row_block_bytes(matrix.columns // 32)


def kinds(model: Llama, launches: Sequence[Launch]) -> dict[str, tuple[list[Launch], int]]:
    """Launches by kind, and the bytes of weights those of a kind read: a mat-vec's kind is its matrix's role, others' the op."""
    known = list(matrices(model))
    found: dict[str, tuple[list[Launch], int]] = {}
    for launch in launches:
        kind, nbytes = launch.spec.op.partition("_")[0], 0
        if launch.spec.kernel in COUNTED:
            # Whatever else its arguments are, a matrix is its buffer followed by its first line.
            pairs = list(zip(launch.args, launch.args[1:], strict=False))
            kind, nbytes = next((r, matrix_bytes(m)) for r, m in known if any(a is m.buffer and b == m.lines for a, b in pairs))
        elif launch.spec.op == "pick":
            kind = launch.spec.kernel
        made, total = found.get(kind, ([], 0))
        found[kind] = ([*made, launch], total + nbytes)
    return found


def weight_bytes(model: Llama, launches: Sequence[Launch]) -> int:
    """Bytes of weights a round reads."""
    return sum(nbytes for _, nbytes in kinds(model, launches).values())


def profile(engine: Engine, sequence: SequenceState, launches: Sequence[Launch], position: int) -> list[dict[str, Any]]:
    """Per kind of launch: how many a round has, their milliseconds together, the bytes they read from memory and GB/s (1e9 bytes).

    position: of the one row that the table holds; attention reads the cells up to it. The engine's thread must make the call.
    """
    device, shape = engine.device, engine.model.shape

    def reset() -> None:
        sequence.start(Rules(sequence.ctx, ignore_end=True))
        sequence.set_window([5], position)

    cells = shape.layers * shape.kv_heads * shape.head_dim * 4 * (position + 1)  # a key and a value of halves each
    rows = []
    for kind, (own, nbytes) in kinds(engine.model, launches).items():
        read = nbytes if kind != "attention" else cells
        seconds = replay_seconds(device, device.record(own, engine.config.launch), reset)
        rows.append({"kind": kind, "launches": len(own), "ms": 1e3 * seconds, "bytes": read, "gb_s": read / seconds / 1e9 if read else None})
    return sorted(rows, key=lambda row: -float(row["ms"]))


def replay_seconds(device: Device, replay: Replay, reset: Callable[[], None]) -> float:
    """Seconds of one run, the best of a few times many. reset: sets the tables anew, since accepting moves the row on at every run."""

    def timed(count: int) -> float:
        reset()
        device.finish()
        begun = time.perf_counter()
        for number in range(1, count + 1):
            replay.run()
            if number % QUEUED == 0:
                device.finish()
        device.finish()
        return time.perf_counter() - begun

    once = max(timed(1), 1e-7)
    count = max(1, min(MOST_RUNS, int(SECONDS / once)))
    return min(timed(count) for _ in range(REPEATS)) / count
