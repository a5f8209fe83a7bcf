"""The plain-English version of every op: the oracle of the tests and what the NumPy device runs.

A function per kernel, by the kernel's name and with its arguments (buffers as NumpyBuffer). Rows, tables and layouts are those of the
kernels; sums run in NumPy's order, so agreement with a device is a tolerance, exact only in the integer part of dot products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from backends import reference_math
from backends.decode import slop_tables
from backends.decode.sampling import Filters, Penalties, kept, penalise, raw_weights
from backends.decode.slop import Knobs, State, step
from backends.decode.slop_adjust import adjust as slop_adjust
from backends.decode.slop_masks import Masks, mask_at
from backends.device import KernelSpec
from backends.model.weights import WEIGHT_TYPES, Unpacked, unpack
from backends.tables import (
    ADD,
    BLOCK,
    CONTROL_FIRST,
    CONTROL_PRODUCT,
    CONTROL_ROOM,
    CONTROL_ROWS,
    CUT_ID,
    CUT_INTS,
    CUT_TOP,
    CUT_VALUE,
    DRAFT_PART,
    FLAG_BAD,
    FLAG_BUDGET,
    FLAG_CONTEXT,
    FLAG_END,
    GATED,
    OUT_BAD_POSITION,
    OUT_COUNT,
    OUT_DRAFTED,
    OUT_DRAFTS,
    OUT_FLAGS,
    OUT_INTS,
    OUT_KEPT,
    OUT_PROBABILITIES,
    OUT_TOKENS,
    PARTIAL_INTS,
    ROW_INTS,
    SILU,
    SLOT_BIASES,
    SLOT_BUDGET,
    SLOT_CONTEXT,
    SLOT_DRAFT_MIN_P,
    SLOT_FREQUENCY,
    SLOT_IGNORE_END,
    SLOT_INTS,
    SLOT_LAST_N,
    SLOT_MIN_P,
    SLOT_REPEAT,
    SLOT_SEED_HIGH,
    SLOT_SEED_LOW,
    SLOT_SLOP_KNOBS,
    SLOT_SLOP_STATE,
    SLOT_TEMPERATURE,
    SLOT_TOP_K,
    SLOT_TOP_P,
    SLOT_WINDOW,
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


def _count(control: NumpyBuffer) -> int:
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
    table = rows.ints(ROW_INTS)[: _count(control)]
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
    count = _count(control)
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
    for r, (_, position, token, _) in enumerate(rows.ints(ROW_INTS)[: _count(control)]):
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
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: _count(control)]):
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
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: _count(control)]):
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


def filter_row(settings: NDArray[np.int32], row: Floats) -> tuple[np.float32, int]:
    """Where in order the ids that a slot's top-k and top-p keep of a row [vocabulary] end: a logit and an id; all, where they do not act."""
    everything = np.float32(-3.402823466e38), 0x7FFFFFFF
    if not settings[SLOT_TEMPERATURE : SLOT_TEMPERATURE + 1].view(np.float32)[0] > 0 or not np.isfinite(row.max(initial=-np.inf, where=row == row)):
        return everything
    filters = Filters(int(settings[SLOT_TOP_K]), int(settings.view(np.uint32)[SLOT_TOP_P]) / 2**32 or 1.0)
    if not filters.active:
        return everything
    ids = np.flatnonzero(kept(np.where(np.isnan(row), np.float32(-np.inf), row), filters))
    lowest = row[ids].min()
    return lowest, int(ids[row[ids] == lowest].max())


def filter(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    logits: NumpyBuffer,
    stride: int,
    n_vocab: int,
    bias_ids: NumpyBuffer,
    biases: NumpyBuffer,
    biases_per_slot: int,
    history: NumpyBuffer,
    history_stride: int,
    counts: NumpyBuffer,
    cuts: NumpyBuffer,
    *slop: NumpyBuffer,
) -> None:
    """Bias and penalties unless `slop_parts` has run, then for every row where in order its kept ids end, and its largest logit."""
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: _count(control)]):
        if active:
            settings, row = slots.ints(SLOT_INTS)[slot], logits.floats(stride)[r, :n_vocab]
            if not slop:
                _adjust(row, settings, slot, position, bias_ids, biases, biases_per_slot, history.ints(history_stride))
            value, last = filter_row(settings, row)
            cut = cuts.ints(CUT_INTS)[r]
            top = np.float32(np.max(row, initial=-np.inf, where=row == row))
            cut[CUT_VALUE], cut[CUT_ID], cut[CUT_TOP] = value.view(np.int32), last, top.view(np.int32)


def _adjust(
    row: Floats,
    settings: NDArray[np.int32],
    slot: int,
    position: int,
    bias_ids: NumpyBuffer,
    biases: NumpyBuffer,
    biases_per_slot: int,
    history: NDArray[np.int32],
) -> None:
    """Logit bias and penalties, in place."""
    used = slice(0, settings[SLOT_BIASES])
    row[bias_ids.ints(biases_per_slot)[slot, used]] += biases.floats(biases_per_slot)[slot, used]
    repeat, presence, frequency = settings[SLOT_REPEAT : SLOT_FREQUENCY + 1].view(np.float32).tolist()
    row[:] = penalise(row, history[slot, : position + 1], Penalties(repeat, presence, frequency, int(settings[SLOT_LAST_N])))


def pick(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    logits: NumpyBuffer,
    stride: int,
    n_vocab: int,
    bias_ids: NumpyBuffer,
    biases: NumpyBuffer,
    biases_per_slot: int,
    history: NumpyBuffer,
    history_stride: int,
    counts: NumpyBuffer,
    filtered: int,
    cuts: NumpyBuffer,
    partial: NumpyBuffer,
    *slop: NumpyBuffer,
) -> None:
    """The best id of every row: bias and penalties unless `filtered` or `slop_parts` has run, then, of the ids kept, logit + temperature *
    Gumbel noise; ties to the lowest id. One share."""
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: _count(control)]):
        if not active:
            continue
        settings, row = slots.ints(SLOT_INTS)[slot], logits.floats(stride)[r, :n_vocab]
        if not filtered and not slop:
            _adjust(row, settings, slot, position, bias_ids, biases, biases_per_slot, history.ints(history_stride))
        scores = row
        temperature, least = settings[[SLOT_TEMPERATURE, SLOT_MIN_P]].view(np.float32)
        if temperature > 0:
            key = tuple(int(word) for word in settings[SLOT_SEED_LOW : SLOT_SEED_HIGH + 1].view(np.uint32))
            scores = row + temperature * reference_math.gumbel(noise_words(key, int(position) + 1, n_vocab))
            if filtered:
                cut = cuts.ints(CUT_INTS)[r]
                value = cut.view(np.float32)[CUT_VALUE]
                mask = (row > value) | ((row == value) & (np.arange(n_vocab) <= cut[CUT_ID]))
                if least > 0:
                    mask &= raw_weights(row) >= least
                scores = np.where(mask, scores, np.float32(-np.inf))
        result = partial.ints(PARTIAL_INTS)[r]
        usable = np.where(np.isnan(scores), np.float32(-np.inf), scores)
        best = int(usable.argmax())
        result[0] = usable[best].view(np.int32)
        result[1] = best if usable[best] > -np.inf else 0x7FFFFFFF
        result[2] = (np.isnan(row) | (row == np.inf)).any()


def noise_words(key: tuple[int, ...], position: int, n_vocab: int) -> NDArray[np.uint32]:
    """The random word of every id at a position: word (id & 3) of Philox4x32-10 with counter (id >> 2, position, 0, 0)."""
    counters = np.zeros((-(-n_vocab // 4), 4), np.uint32)
    counters[:, 0], counters[:, 1] = np.arange(len(counters)), position
    return reference_math.philox4x32_10((key[0], key[1]), *counters.T).reshape(-1)[:n_vocab]


def accept(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    end_ids: NumpyBuffer,
    partial: NumpyBuffer,
    shares: int,
    out: NumpyBuffer,
    masks: NumpyBuffer | None = None,
    n_vocab: int = 0,
) -> None:
    """Accepts drafts while they equal the picks, stops at END, budget and context, and writes the next round's rows. With masks, the slop
    policy's state moves on by what is accepted."""
    table = rows.ints(ROW_INTS)[: _count(control)].tolist()
    listed = end_ids.data.view(np.int32)
    ends = set(listed[1 : 1 + listed[0]].tolist())
    following: list[list[int]] = []
    for slot in dict.fromkeys(row[0] for row in table):
        settings, result = slots.ints(SLOT_INTS)[slot], out.ints(OUT_INTS)[slot]
        emitted, flags, token = 0, 0, -1
        position = next(row[1] for row in table if row[0] == slot)
        for r, (owner, row_position, draft, active) in enumerate(table):
            if owner != slot:
                continue
            if flags or not active or (emitted and draft != token):
                break
            position = row_position
            _, token, bad, _ = partial.ints(PARTIAL_INTS)[r].tolist()
            if bad or token == 0x7FFFFFFF:
                flags = FLAG_BAD
                result[OUT_BAD_POSITION] = position
                break
            result[OUT_TOKENS + emitted] = token
            emitted += 1
            settings[SLOT_BUDGET] -= 1
            flags |= FLAG_END if token in ends and not settings[SLOT_IGNORE_END] else 0
            flags |= FLAG_BUDGET if settings[SLOT_BUDGET] == 0 else 0
            flags |= FLAG_CONTEXT if position + 2 >= settings[SLOT_CONTEXT] else 0
        if masks is not None:
            state = _slop_state(settings)
            for token_id in result[OUT_TOKENS : OUT_TOKENS + emitted].tolist():
                state = step(state, mask_at(_masks(masks, n_vocab), token_id))
            settings.view(np.uint32)[SLOT_SLOP_STATE : SLOT_SLOP_STATE + slop_tables.WORDS] = state.words
        result[OUT_COUNT], result[OUT_FLAGS] = emitted, flags
        following.append([slot, position + 1, token, int(emitted > 0 and not flags)])
    rows.ints(ROW_INTS)[: len(following)] = following
    control.data.view(np.int32)[CONTROL_ROWS] = len(following)


def draft_begin(
    spec: KernelSpec,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    out: NumpyBuffer,
    control: NumpyBuffer,
    draft_rows: NumpyBuffer,
    head_control: NumpyBuffer,
) -> None:
    """After acceptance: the accepted rows' cells, the last one first, and how many drafts the next window has room for."""
    slot, position, _, active = rows.ints(ROW_INTS)[0].tolist()
    settings, result = slots.ints(SLOT_INTS)[slot], out.ints(OUT_INTS)[0]
    result[OUT_DRAFTED] = result[OUT_KEPT] = 0
    emitted = int(result[OUT_COUNT]) if active else 0
    for r in range(emitted):
        draft_rows.ints(ROW_INTS)[r] = slot, position - 1 - r, result[OUT_TOKENS + emitted - 1 - r], 1
    room = min(settings[SLOT_WINDOW] - 1, settings[SLOT_BUDGET] - 1, settings[SLOT_CONTEXT] - 2 - position)
    own = control.data.view(np.int32)
    own[CONTROL_ROWS], own[CONTROL_FIRST], own[CONTROL_ROOM] = emitted, position - emitted, room
    head_control.data.view(np.int32)[CONTROL_ROWS] = emitted > 0 and room > 0
    control.data.view(np.float64)[CONTROL_PRODUCT // 2] = 1.0


def _masks(buffer: NumpyBuffer, count: int) -> Masks:
    return buffer.data.view(np.uint32)[:count]


def _slop_state(settings: NDArray[np.int32]) -> State:
    return State.from_bytes(settings[SLOT_SLOP_STATE : SLOT_SLOP_STATE + slop_tables.WORDS].tobytes())


def _slop_row(row: Floats, ids: Masks, rows: NDArray[np.int32], r: int, slots: NumpyBuffer, masks: Masks) -> None:
    """The slop policy in place, on logits of ids with these masks, in the state behind row r's input token."""
    slot = int(rows[r, 0])
    settings, first = slots.ints(SLOT_INTS)[slot], r
    while first > 0 and rows[first - 1, 0] == slot:
        first -= 1
    state = _slop_state(settings)
    for token in rows[first + 1 : r + 1, 2].tolist():
        state = step(state, mask_at(masks, token))
    knobs = settings.view(np.float32)[SLOT_SLOP_KNOBS : SLOT_SLOP_KNOBS + slop_tables.KNOBS].tolist()
    row[:] = slop_adjust(row, ids, state, Knobs(*knobs), float(settings.view(np.float32)[SLOT_TEMPERATURE]))


def slop_parts(
    spec: KernelSpec,
    control: NumpyBuffer,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    logits: NumpyBuffer,
    stride: int,
    n_vocab: int,
    bias_ids: NumpyBuffer,
    biases: NumpyBuffer,
    biases_per_slot: int,
    history: NumpyBuffer,
    history_stride: int,
    counts: NumpyBuffer,
    masks: NumpyBuffer,
    parts: NumpyBuffer,
) -> None:
    """Bias, penalties and all of the slop policy; kernels leave the last of it to whoever reads the rows next."""
    table = rows.ints(ROW_INTS)[: _count(control)]
    for r, (slot, position, _, active) in enumerate(table):
        if active:
            settings, row = slots.ints(SLOT_INTS)[slot], logits.floats(stride)[r, :n_vocab]
            _adjust(row, settings, slot, position, bias_ids, biases, biases_per_slot, history.ints(history_stride))
            _slop_row(row, _masks(masks, n_vocab), table, r, slots, _masks(masks, n_vocab))


def slop_draft(
    spec: KernelSpec,
    head_control: NumpyBuffer,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    draft: int,
    logit: NumpyBuffer,
    n_ids: int,
    masks: NumpyBuffer,
    n_vocab: int,
    head_masks: NumpyBuffer,
    parts: NumpyBuffer,
) -> None:
    """The slop policy on the draft head's row, for draft number `draft`: in the state of the window's row before it."""
    if _count(head_control):
        row = logit.data.view(np.float32)[:n_ids]
        _slop_row(row, _masks(head_masks, n_ids), rows.ints(ROW_INTS), draft, slots, _masks(masks, n_vocab))


def draft_parts(spec: KernelSpec, head_control: NumpyBuffer, logit: NumpyBuffer, n_ids: int, parts: NumpyBuffer, *slop: Any) -> None:
    """Of every DRAFT_PART ids of the draft head's row: largest logit, its place, sum of exp(logit - largest), not-a-number seen."""
    if not _count(head_control):
        return
    row = logit.data.view(np.float32)[:n_ids]
    for part, first in enumerate(range(0, n_ids, DRAFT_PART)):
        share = row[first : first + DRAFT_PART]
        usable = np.where(np.isnan(share), np.float32(-np.inf), share)
        result = parts.ints(4)[part]
        result[0], result[1] = usable.max().view(np.int32), first + int(usable.argmax())
        result[2] = reference_math.exp(usable - usable.max()).sum(dtype=np.float32).view(np.int32)
        result[3] = (np.isnan(share) | (share == np.inf)).any()


def draft_pick(
    spec: KernelSpec,
    parts: NumpyBuffer,
    n_parts: int,
    ids: NumpyBuffer,
    subset: int,
    step: int,
    control: NumpyBuffer,
    draft_rows: NumpyBuffer,
    head_control: NumpyBuffer,
    window_control: NumpyBuffer,
    rows: NumpyBuffer,
    slots: NumpyBuffer,
    out: NumpyBuffer,
    thresholds: NumpyBuffer | None = None,
) -> None:
    """The drafted token, its probability, and whether the window rules keep it; then the next row of the chain, if there is to be one."""
    if not _count(head_control):
        return
    table = parts.ints(4)[:n_parts]
    values, sums = table[:, 0].copy().view(np.float32), table[:, 2].copy().view(np.float32)
    best = int(values.argmax())
    total = (sums * reference_math.exp(values - values[best])).sum(dtype=np.float32)
    probability = np.float32(reference_math.div(np.float32(1), total).item())
    token = int(table[best, 1])
    token = int(ids.data.view(np.int32)[token]) if subset else token
    slot, position, _, _ = rows.ints(ROW_INTS)[0].tolist()
    product = control.data.view(np.float64)[CONTROL_PRODUCT // 2 : CONTROL_PRODUCT // 2 + 1]
    kept = False
    if table[:, 3].any() or values[best] == -np.inf:
        token = -1
    else:
        kept = bool(probability >= slots.floats(SLOT_INTS)[slot, SLOT_DRAFT_MIN_P])
        if kept and thresholds is not None:
            product *= float(probability)
            kept = bool(product[0] >= float(thresholds.data.view(np.float32)[position]))
    result = out.ints(OUT_INTS)[0]
    result[OUT_DRAFTED], result[OUT_DRAFTS + step] = step + 1, token
    result[OUT_PROBABILITIES + step] = probability.view(np.int32)
    own = control.data.view(np.int32)
    more = kept and step + 1 < own[CONTROL_ROOM]
    if kept:
        rows.ints(ROW_INTS)[step + 1] = slot, position + step + 1, token, 1
        window_control.data.view(np.int32)[CONTROL_ROWS] = step + 2
        result[OUT_KEPT] = step + 1
    if more:
        draft_rows.ints(ROW_INTS)[0] = slot, position + step, token, 1
        own[CONTROL_FIRST] = position + step
    own[CONTROL_ROWS] = head_control.data.view(np.int32)[CONTROL_ROWS] = more


_ALL = (embed, pair, qkv, matvec, attention, slop_parts, filter, pick, accept, draft_begin, slop_draft, draft_parts, draft_pick)
OPS: Final[dict[str, Callable[..., None]]] = {op.__name__: op for op in _ALL}


def run(spec: KernelSpec, args: tuple[Any, ...]) -> None:
    """Runs one launch."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        OPS[spec.kernel](spec, *args)
