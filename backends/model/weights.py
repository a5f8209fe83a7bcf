"""Weights in the layout the kernels read: 16 output rows interleaved, one repack function per tensor type.

A row block is 16 rows: first the scales of all its k blocks, then the codes (backends/kernels/weight_*.h says which byte is where).
Rows are padded with zeros to a multiple of 16. A new type is one function here, its registry line, and its kernel header.
Source of the formats: ggml's block_q4_0, block_q4_1, block_q8_0 (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
ROWS = 16


@dataclass(frozen=True, slots=True)
class WeightType:
    """How one GGUF tensor type is stored for the kernels.

    block_bytes: bytes of one row of 32 columns in the file. repack: [rows/16, 16, k blocks, block_bytes] -> [rows/16, bytes].
    header: the kernel header that reads it. int8: whether its activations are int8.
    """

    name: str
    block_bytes: int
    repack: Callable[[Bytes], Bytes]
    header: str
    int8: bool


def _heads(blocks: Bytes, *fields: slice) -> Bytes:
    """[b, 16, k, bytes] -> [b, bytes padded to 64]: per k block the 16 rows' values of each 2-byte field."""
    b, _, k, _ = blocks.shape
    heads = np.stack([blocks[..., field].transpose(0, 2, 1, 3) for field in fields], 2).reshape(b, -1)
    return np.pad(heads, ((0, 0), (0, -heads.shape[1] % 64)))


def _codes(blocks: Bytes) -> Bytes:
    """[b, 16, k, 4c] -> [b, k * c * 64]: 4 consecutive code bytes of each of the 16 rows side by side."""
    b, rows, k, nbytes = blocks.shape
    return blocks.reshape(b, rows, k, nbytes // 4, 4).transpose(0, 2, 3, 1, 4).reshape(b, -1)


def _repack_q4_1(blocks: Bytes) -> Bytes:
    return np.concatenate([_heads(blocks, slice(0, 2), slice(2, 4)), _codes(blocks[..., 4:])], 1)


def _repack_q4_0(blocks: Bytes) -> Bytes:
    return np.concatenate([_heads(blocks, slice(0, 2)), _codes(blocks[..., 2:])], 1)


def _repack_q8_0(blocks: Bytes) -> Bytes:
    return np.concatenate([_heads(blocks, slice(0, 2)), _codes(blocks[..., 2:] ^ np.uint8(0x80))], 1)


def _repack_f32(blocks: Bytes) -> Bytes:
    b, rows, k, _ = blocks.shape
    return blocks.reshape(b, rows, k * 32, 4).transpose(0, 2, 1, 3).reshape(b, -1)


WEIGHT_TYPES = {t.name: t for t in (
    WeightType("F32", 128, _repack_f32, "weight_f32.h", False),
    WeightType("Q4_0", 18, _repack_q4_0, "weight_q4_0.h", True),
    WeightType("Q4_1", 20, _repack_q4_1, "weight_q4_1.h", True),
    WeightType("Q8_0", 34, _repack_q8_0, "weight_q8_0.h", True),
)}


def repack(data: Bytes, type_name: str, columns: int, rows: int, permutation: Sequence[int] | None = None) -> Bytes:
    """The tensor's bytes as in the file -> [row blocks, bytes per row block], C-contiguous.

    columns: a multiple of 32. permutation: output row i is row permutation[i] of the file (RoPE pairs, gate/up pairs).
    """
    kind = WEIGHT_TYPES[type_name]
    blocks = np.asarray(data).reshape(rows, columns // 32, kind.block_bytes)
    if permutation is not None:
        blocks = blocks[np.asarray(permutation)]
    padded = -rows % ROWS
    if padded:
        blocks = np.concatenate([blocks, np.zeros((padded, *blocks.shape[1:]), np.uint8)])
    return np.ascontiguousarray(kind.repack(blocks.reshape(-1, ROWS, columns // 32, kind.block_bytes)))
