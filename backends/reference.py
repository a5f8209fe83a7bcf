"""The plain-English version of every op: the oracle of the tests and what the NumPy device runs. Here: the ops of a model's layers.

A function per kernel, by the kernel's name and with its arguments (buffers as NumpyBuffer). Rows, tables and layouts are those of the
kernels; sums run in NumPy's order, so agreement with a device is a tolerance, exact only in the integer part of dot products.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from backends import reference_math
from backends.device import KernelSpec
from backends.model.weights import WEIGHT_TYPES, Unpacked, unpack
from backends.tables import (
    ADD,
    BLOCK,
    CONTROL_FIRST,
    CONTROL_ROWS,
    GATED,
    ROW_INTS,
    SILU,
)

Floats = NDArray[np.float32]
_BY_HEADER = {kind.header: kind.name for kind in WEIGHT_TYPES.values()}


class NumpyBuffer:
    """Memory of the NumPy device. unpacked: weight matrices that were read from it, by where they start."""

    __slots__ = ("data", "nbytes", "unpacked")

    def __init__(self, nbytes: int) -> None:
        self.data = np.zeros(-(-nbytes // 64) * 64, np.uint8)
        self.nbytes = nbytes
        self.unpacked: dict[int, Unpacked] = {}

    def ints(self, width: int) -> NDArray[np.int32]:
        """The buffer as int32 [n, width]."""
        return self.data.view(np.int32)[: self.data.size // 4 // width * width].reshape(-1, width)

    def floats(self, width: int) -> Floats:
        """The buffer as float32 [n, width]."""
        return self.data.view(np.float32)[: self.data.size // 4 // width * width].reshape(-1, width)

    def halves(self, *shape: int) -> NDArray[np.float16]:
        """The buffer as float16 [n, *shape]."""
        size = int(np.prod(shape))
        return self.data.view(np.float16)[: self.data.size // 2 // size * size].reshape(-1, *shape)


def _matrix(spec: KernelSpec, buffer: NumpyBuffer, lines: int, columns: int, row_blocks: int) -> Unpacked:
    if lines not in buffer.unpacked:
        name = next(_BY_HEADER[header] for header in spec.headers if header in _BY_HEADER)
        buffer.unpacked[lines] = unpack(buffer.data[lines * 64 :], name, columns, row_blocks)
    return buffer.unpacked[lines].first(row_blocks * 16)


def row_count(control: NumpyBuffer) -> int:
    """Rows in the table that a control buffer belongs to."""
    return int(control.data.view(np.int32)[CONTROL_ROWS])


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """x / sqrt(mean(x^2) + epsilon) * weight for rows x [rows, n]."""
    mean = reference_math.div((x * x).sum(1), np.float32(x.shape[1]))
    return x * reference_math.rsqrt(mean + np.float32(epsilon))[:, None] * weight


def quantise(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Rows [rows, n] as int8 codes (held as float32) [rows, n/32, 32], their scales and sums [rows, n/32] (SEMANTICS: activations).

    Blocks of nothing above 1e-36, whose scale has no finite inverse, count as zeros. A NaN reaches the block's scale and codes.
    """
    blocks = x.reshape(len(x), -1, 32)
    top = np.abs(blocks).max(2)
    inverse = np.where(top > np.float32(1e-36), reference_math.div(np.full_like(top, 127), top), np.float32(0))
    codes = np.rint(blocks.astype(np.float64) * inverse[..., None]).astype(np.float32)
    return codes, top * np.float32(0.00787401574803149606), codes.sum(2)


def embed(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    history: NumpyBuffer,
    history_stride: int,
    weights: NumpyBuffer,
    columns: int,
    x: NumpyBuffer,
    x_stride: int,
) -> None:
    """x[row] = the embedding of the row's token, which goes into its sequence's history too; an inactive row is zero."""
    table = rows.ints(ROW_INTS)[: row_count(control)]
    matrix = _matrix(spec, weights, 0, columns, 1 << 24)
    out = x.floats(x_stride)
    for r, (slot, position, token, active) in enumerate(table):
        out[r, :columns] = matrix.row(token) if active else 0
        if active:
            history.ints(history_stride)[slot, position] = token


def matvec(
    spec: KernelSpec,
    control: NumpyBuffer,
    weights: NumpyBuffer,
    weight_lines: int,
    x: NumpyBuffer,
    x_stride: int,
    norm: NumpyBuffer,
    normed: int,
    epsilon: float,
    columns: int,
    row_blocks: int,
    y: NumpyBuffer,
    y_stride: int,
    y_block: int,
    mode: int,
    scratch: NumpyBuffer,
    scratch_lines: int,
) -> None:
    """y (op) W norm(x) for every row; activations int8 per 32 values for quantised weights."""
    count = row_count(control)
    if not count:  # a chain that has ended
        return
    values = x.floats(x_stride)[:count, :columns]
    if normed:
        values = rms_norm(values, norm.data.view(np.float32)[:columns], epsilon)
    matrix = _matrix(spec, weights, weight_lines, columns, row_blocks)
    # Row by row: a library's order of summation may depend on how many rows there are, and no bit may (SEMANTICS: the guarantee).
    product = np.stack([_product(matrix, row) for row in values])
    if mode == SILU:
        parts = product.reshape(count, -1, 2, 16)
        product = (reference_math.silu(np.ascontiguousarray(parts[:, :, 0])) * parts[:, :, 1]).reshape(count, -1)
    out = y.floats(y_stride)[:count, y_block * 16 : y_block * 16 + product.shape[1]]
    if mode == ADD:
        out += product
    elif mode == GATED:
        out[:] = reference_math.silu(np.ascontiguousarray(out)) * product
    else:
        out[:] = product


def _product(matrix: Unpacked, x: Floats) -> Floats:
    """W x for one row."""
    if matrix.scales is None or matrix.minima is None:
        weights: Floats = matrix.codes.transpose(1, 0, 2).reshape(matrix.codes.shape[1], -1)
        return weights @ x
    codes, scales, sums = quantise(x[None])
    dots = np.matmul(matrix.codes, codes[0][..., None])[..., 0]  # [k blocks, outputs]: integers, exact in float32
    terms: Floats = (matrix.scales * dots + matrix.minima * sums[0][:, None]) * scales[0][:, None]
    total: Floats = terms.sum(0)
    return total


def pair(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    embedding: NumpyBuffer,
    x: NumpyBuffer,
    x_stride: int,
    inner_norm: NumpyBuffer,
    hidden_norm: NumpyBuffer,
    embedding_norm: NumpyBuffer,
    epsilon: float,
    columns: int,
    out: NumpyBuffer,
    out_stride: int,
) -> None:
    """[N(embedding of the row's token) ; N(N(x of the row's position, inner_norm), hidden_norm)]: what the drafter's first matrix reads."""
    matrix = _matrix(spec, embedding, 0, columns, 1 << 24)
    inner, hidden, own = (norm.data.view(np.float32)[:columns] for norm in (inner_norm, hidden_norm, embedding_norm))
    first = control.data.view(np.int32)[CONTROL_FIRST]
    for r, (_, position, token, _) in enumerate(rows.ints(ROW_INTS)[: row_count(control)]):
        source = x.floats(x_stride)[position - first : position - first + 1, :columns]
        out.floats(out_stride)[r, :columns] = rms_norm(matrix.row(token)[None], own, epsilon)[0]
        out.floats(out_stride)[r, columns : 2 * columns] = rms_norm(rms_norm(source, inner, epsilon), hidden, epsilon)[0]


def qkv(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    weights: NumpyBuffer,
    weight_lines: int,
    x: NumpyBuffer,
    x_stride: int,
    norm: NumpyBuffer,
    epsilon: float,
    columns: int,
    row_blocks: int,
    first_block: int,
    query: NumpyBuffer,
    query_stride: int,
    cosines: NumpyBuffer,
    sines: NumpyBuffer,
    keys: NumpyBuffer,
    values: NumpyBuffer,
    block_table: NumpyBuffer,
    blocks_per_slot: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scratch: NumpyBuffer,
    scratch_lines: int,
) -> None:
    """Query, key and value heads of norm(x): queries and keys rotated by position (adjacent pairs), keys and values into KV cells as f16.

    Of the heads this matrix covers none, some or all may be each: its first output row is 16 * first_block of all of them.
    """
    matrix = _matrix(spec, weights, weight_lines, columns, row_blocks)
    weight = norm.data.view(np.float32)[:columns]
    key_blocks, value_blocks = keys.halves(kv_heads, 4, head_dim, 16), values.halves(kv_heads, BLOCK, head_dim)
    blocks = block_table.ints(blocks_per_slot)
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: row_count(control)]):
        if not active:
            continue
        product = _product(matrix, rms_norm(x.floats(x_stride)[r : r + 1, :columns], weight, epsilon)[0])
        cosine, sine = cosines.floats(head_dim)[position], sines.floats(head_dim)[position]
        block, at = blocks[slot, position // BLOCK], position % BLOCK
        for part, plain in enumerate(product.reshape(-1, 16), first_block):
            head, dim = divmod(part * 16, head_dim)
            dims = slice(dim, dim + 16)
            rotated = plain * cosine[dims] + plain.reshape(8, 2)[:, ::-1].reshape(16) * sine[dims]
            if head < heads:
                query.floats(query_stride)[r, part * 16 : part * 16 + 16] = rotated
            elif head < heads + kv_heads:
                key_blocks[block, head - heads, at // 16, dims, at % 16] = rotated
            else:
                value_blocks[block, head - heads - kv_heads, at, dims] = plain


def attention(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    query: NumpyBuffer,
    query_stride: int,
    keys: NumpyBuffer,
    values: NumpyBuffer,
    block_table: NumpyBuffer,
    blocks_per_slot: int,
    heads: int,
    kv_heads: int,
    scale: float,
    out: NumpyBuffer,
    out_stride: int,
) -> None:
    """Causal attention of every row over the cells of its own sequence up to its own position."""
    head_dim = dict(spec.constants)["HEAD"]
    key_blocks, value_blocks = keys.halves(kv_heads, 4, head_dim, 16), values.halves(kv_heads, BLOCK, head_dim)
    blocks = block_table.ints(blocks_per_slot)
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: row_count(control)]):
        target = out.floats(out_stride)[r, : heads * head_dim].reshape(heads, head_dim)
        if not active:
            target[:] = 0
            continue
        used = blocks[slot, : position // BLOCK + 1]
        k = key_blocks[used].transpose(1, 0, 2, 4, 3).reshape(kv_heads, -1, head_dim)[:, : position + 1].astype(np.float32)
        v = value_blocks[used].transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, : position + 1].astype(np.float32)
        q = query.floats(query_stride)[r, : heads * head_dim].reshape(kv_heads, heads // kv_heads, head_dim)
        scores = np.matmul(q, k.transpose(0, 2, 1)) * np.float32(scale)
        weights = np.exp(scores - scores.max(2, keepdims=True))
        target[:] = (np.matmul(weights, v) / weights.sum(2, keepdims=True)).reshape(heads, head_dim)
