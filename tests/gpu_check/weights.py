"""Random weights that are made on the device: gigabytes in the time a kernel takes to write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from unittest import mock

import numpy as np

from backends.device import Device, KernelSpec, Launch
from backends.model.gguf import Tensor
from backends.model.matrix import LINE, Arena, Matrix
from backends.model.weights import ROWS, WEIGHT_TYPES, repacked_bytes

TEXT = (Path(__file__).parent / "gpu_check").as_posix()  # an absolute name stands for itself in the kernels' folder
FILL = KernelSpec(TEXT, "fill")
GROUPS = 4096
# Per type: the codes' mean and deviation, when all bytes are equally likely, as the kernels count them (offset taken off), and 16-bit fields.
CODES = {"Q4_0": (-0.5, 4.6098, 1), "Q4_1": (7.5, 4.6098, 2), "Q8_0": (-0.5, 73.9, 1)}


@contextmanager
def random_weights() -> Iterator[None]:
    """Models that are loaded meanwhile get random matrices in the places of their own, whose bytes are never read.

    A weight's deviation is 1/sqrt(columns), so that a product keeps its input's size and logits stay numbers; Q4_1 weights have mean 0. The
    same in every process: seeds count from 1.
    """
    seeds = count(1)

    def build(arena: Arena, device: Device) -> list[Matrix]:
        buffer = device.alloc(arena._lines * LINE)
        device.compile([FILL])
        device.record([_fill(buffer, *made, next(seeds)) for made in arena._made], "queue").run()
        device.finish()
        return [Matrix(buffer, *made) for made in arena._made]

    with mock.patch.multiple(Arena, add=_add, build=build):
        yield


def _add(arena: Arena, tensors: Sequence[Tensor], interleave: bool = False) -> int:
    """As Arena.add, of sizes alone."""
    first = tensors[0]
    arena._made.append((arena._lines, first.type, first.columns, sum(-(-t.rows // ROWS) for t in tensors)))
    arena._lines += sum(repacked_bytes(t.type, t.columns, t.rows) for t in tensors) // LINE
    return len(arena._made) - 1


def _fill(buffer: object, lines: int, kind: str, columns: int, row_blocks: int, seed: int) -> Launch:
    mean, deviation, fields = CODES[kind]
    scale = columns**-0.5 / deviation
    bits = [int(np.float16(value).view(np.uint16)) for value in (scale, -mean * scale)]
    words = WEIGHT_TYPES[kind].row_block_bytes(columns // 32) // 4
    head = -(-columns // 32 * fields * ROWS * 2 // LINE) * LINE // 4
    return Launch(FILL, (buffer, lines, row_blocks, words, head, 16 if fields == 1 else 8, *bits, seed), min(row_blocks, GROUPS))
