"""Weights in the layout the kernels read: 16 output rows interleaved, one repack function per tensor type.

A row block is 16 rows: first the scales of all its k blocks, then the codes (backends/kernels/weight_*.h says which byte is where).
Rows are padded with zeros to a multiple of 16. A new type is one function here, its registry line, and its kernel header.
Source of the formats: ggml's block_q4_0, block_q4_1, block_q8_0 (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
ROWS = 16


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A matrix in plain arrays. codes: [k blocks, rows, 32], the stored numbers less their offset; scales, minima: [k blocks, rows], a weight
    is scale * code + minimum. scales None: codes are the weights themselves."""

    codes: Floats
    scales: Floats | None
    minima: Floats | None

    def first(self, rows: int) -> Unpacked:
        """The first rows only."""
        if self.scales is None or self.minima is None:
            return Unpacked(self.codes[:, :rows], None, None)
        return Unpacked(self.codes[:, :rows], self.scales[:, :rows], self.minima[:, :rows])

    def row(self, index: int) -> Floats:
        """Weights of one row, dequantised."""
        if self.scales is None or self.minima is None:
            return self.codes[:, index].reshape(-1)
        return (self.codes[:, index] * self.scales[:, index, None] + self.minima[:, index, None]).reshape(-1)


@dataclass(frozen=True, slots=True)
class WeightType:
    """How one GGUF tensor type is stored for the kernels.

    block_bytes: bytes of one row of 32 columns in the file. repack: [rows/16, 16, k blocks, block_bytes] -> [rows/16, bytes].
    unpack: (row blocks as repacked [rows/16, bytes], k blocks) -> Unpacked. row_block_bytes(k blocks): bytes of a row block.
    header: the kernel header that reads it.
    """

    name: str
    block_bytes: int
    repack: Callable[[Bytes], Bytes]
    unpack: Callable[[Bytes, int], Unpacked]
    row_block_bytes: Callable[[int], int]
    header: str


def _heads(blocks: Bytes, *fields: slice) -> Bytes:
    """[b, 16, k, bytes] -> [b, bytes padded to 64]: per k block the 16 rows' values of each 2-byte field."""
    b = len(blocks)
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


def _unpack_f32(blocks: Bytes, k: int) -> Unpacked:
    return Unpacked(blocks.view(np.float32).reshape(-1, k, 32, ROWS).transpose(1, 0, 3, 2).reshape(k, -1, 32), None, None)


def _unpack_heads(blocks: Bytes, k: int, fields: int) -> Floats:
    """[fields, k blocks, rows]."""
    heads = np.ascontiguousarray(blocks[:, : k * fields * 2 * ROWS]).view(np.float16).astype(np.float32)
    return heads.reshape(-1, k, fields, ROWS).transpose(2, 1, 0, 3).reshape(fields, k, -1)


def _unpack_codes(blocks: Bytes, k: int, offset: int) -> Floats:
    """Code bytes [k blocks, rows, bytes per block], less an offset."""
    lines = blocks.reshape(len(blocks), k, -1, ROWS, 4).transpose(1, 0, 3, 2, 4)
    return lines.reshape(k, len(blocks) * ROWS, -1).astype(np.float32) - np.float32(offset)


def _unpack_nibbles(blocks: Bytes, k: int, offset: int) -> Floats:
    return np.concatenate([_unpack_codes(blocks & np.uint8(15), k, offset), _unpack_codes(blocks >> np.uint8(4), k, offset)], 2)


def _unpack_q4_1(blocks: Bytes, k: int) -> Unpacked:
    scales, minima = _unpack_heads(blocks, k, 2)
    return Unpacked(_unpack_nibbles(blocks[:, k * 64 :], k, 0), scales, minima)


def _unpack_q4_0(blocks: Bytes, k: int) -> Unpacked:
    scales = _unpack_heads(blocks, k, 1)[0]
    return Unpacked(_unpack_nibbles(blocks[:, _padded(k * 32) :], k, 8), scales, np.zeros_like(scales))


def _unpack_q8_0(blocks: Bytes, k: int) -> Unpacked:
    scales = _unpack_heads(blocks, k, 1)[0]
    return Unpacked(_unpack_codes(blocks[:, _padded(k * 32) :], k, 128), scales, np.zeros_like(scales))


def _padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


WEIGHT_TYPES = {
    t.name: t
    for t in (
        WeightType("F32", 128, _repack_f32, _unpack_f32, lambda k: k * 2048, "weight_f32.h"),
        WeightType("Q4_0", 18, _repack_q4_0, _unpack_q4_0, lambda k: _padded(k * 32) + k * 256, "weight_q4_0.h"),
        WeightType("Q4_1", 20, _repack_q4_1, _unpack_q4_1, lambda k: k * 320, "weight_q4_1.h"),
        WeightType("Q8_0", 34, _repack_q8_0, _unpack_q8_0, lambda k: _padded(k * 32) + k * 512, "weight_q8_0.h"),
    )
}


def repack(data: Bytes, type_name: str, columns: int, rows: int) -> Bytes:
    """The tensor's bytes as in the file -> [row blocks, bytes per row block], C-contiguous.

    columns: a multiple of 32.
    """
    kind = WEIGHT_TYPES[type_name]
    blocks = np.asarray(data).reshape(rows, columns // 32, kind.block_bytes)
    padded = -rows % ROWS
    if padded:
        blocks = np.concatenate([blocks, np.zeros((padded, *blocks.shape[1:]), np.uint8)])
    return np.ascontiguousarray(kind.repack(blocks.reshape(-1, ROWS, columns // 32, kind.block_bytes)))


def repacked_bytes(type_name: str, columns: int, rows: int) -> int:
    """Bytes of what `repack` makes of such a tensor."""
    return -(-rows // ROWS) * WEIGHT_TYPES[type_name].row_block_bytes(columns // 32)


def unpack(data: Bytes, type_name: str, columns: int, row_blocks: int) -> Unpacked:
    """The inverse of `repack`, dequantised no further: data begins with at most `row_blocks` row blocks."""
    kind = WEIGHT_TYPES[type_name]
    size = kind.row_block_bytes(columns // 32)
    count = min(row_blocks, data.size // size)
    return kind.unpack(data[: count * size].reshape(count, size), columns // 32)
