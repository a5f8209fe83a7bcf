"""Weight matrices on the device, and the launches that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.device import Device, KernelSpec
from backends.errors import ModelError
from backends.model.gguf import GGUFFile, Tensor
from backends.model.weights import WEIGHT_TYPES, repack

LINE = 64


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [rows, columns] in a device buffer, its row blocks from byte lines * 64 on."""

    buffer: Any
    lines: int
    type: str
    columns: int
    row_blocks: int

    def spec(self, op: str, kernel: str, **constants: int) -> KernelSpec:
        """The kernel of an op for this matrix's weight type."""
        return KernelSpec(
            op,
            kernel,
            ("dot.h", WEIGHT_TYPES[self.type].header, "norm.h", "activation.h", *(("tile.h",) if "TILE" in constants else ())),
            tuple(constants.items()),
        )


class Arena:
    """Collects repacked matrices and puts them into one buffer: fewer, larger allocations, so huge pages pay."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []
        self._made: list[tuple[int, str, int, int]] = []
        self._lines = 0

    def add(self, tensors: Sequence[Tensor], interleave: bool = False) -> int:
        """Adds tensors of one type and column count, one below the other (interleave: their row blocks in turn). Returns its index."""
        first = tensors[0]
        parts = [repack(t.data, t.type, t.shape[0], t.shape[1]) for t in tensors]
        data = np.stack(parts, 1).ravel() if interleave else np.concatenate([p.ravel() for p in parts])
        self._made.append((self._lines, first.type, first.shape[0], sum(len(p) for p in parts)))
        self._parts.append(data)
        self._lines += -(-data.nbytes // LINE)
        return len(self._made) - 1

    def build(self, device: Device) -> list[Matrix]:
        """The matrices, in the order they were added."""
        buffer = device.alloc(self._lines * LINE)
        for (lines, *_), data in zip(self._made, self._parts, strict=True):
            device.upload(buffer, data, lines * LINE)
        return [Matrix(buffer, *made) for made in self._made]


def same_type(*tensors: Tensor) -> bool:
    """Whether the tensors can be one matrix."""
    return len({t.type for t in tensors}) == 1


def checked(file: GGUFFile, name: str, shape: tuple[int, ...], types: Sequence[str]) -> Tensor:
    """The file's tensor, its shape (ggml order) and type as wanted. Raises ModelError naming both."""
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{file.path}: tensor {name!r} is missing")
    if tuple(tensor.shape) != shape:
        raise ModelError(f"{file.path}: tensor {name!r} has shape {list(tensor.shape)}; wanted {list(shape)}")
    if tensor.type not in types:
        raise ModelError(f"{file.path}: tensor {name!r} has type {tensor.type}; supported: {', '.join(types)}")
    return tensor
