"""The plain-English version of the ops that pick tokens (reference.py says how to read them): penalties, filters, the slop policy, acceptance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from backends import reference_math
from backends.decode import slop_tables
from backends.decode.sampling import Filters, Penalties, kept, penalise, raw_weights
from backends.decode.slop import Knobs, State, step
from backends.decode.slop_adjust import adjust as slop_adjust
from backends.decode.slop_masks import Masks, mask_at
from backends.device import KernelSpec
from backends.reference import Floats, NumpyBuffer, row_count
from backends.tables import (
    CONTROL_ROWS,
    CUT_ID,
    CUT_INTS,
    CUT_TOP,
    CUT_VALUE,
    FLAG_BAD,
    FLAG_BUDGET,
    FLAG_CONTEXT,
    FLAG_END,
    OUT_BAD_POSITION,
    OUT_COUNT,
    OUT_FLAGS,
    OUT_INTS,
    OUT_TOKENS,
    PARTIAL_INTS,
    ROW_INTS,
    SLOT_BIASES,
    SLOT_BUDGET,
    SLOT_CONTEXT,
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
)


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
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: row_count(control)]):
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
    for r, (slot, position, _, active) in enumerate(rows.ints(ROW_INTS)[: row_count(control)]):
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
    table = rows.ints(ROW_INTS)[: row_count(control)].tolist()
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
                state = step(state, mask_at(class_masks(masks, n_vocab), token_id))
            settings.view(np.uint32)[SLOT_SLOP_STATE : SLOT_SLOP_STATE + slop_tables.WORDS] = state.words
        result[OUT_COUNT], result[OUT_FLAGS] = emitted, flags
        following.append([slot, position + 1, token, int(emitted > 0 and not flags)])
    rows.ints(ROW_INTS)[: len(following)] = following
    control.data.view(np.int32)[CONTROL_ROWS] = len(following)


def class_masks(buffer: NumpyBuffer, count: int) -> Masks:
    return buffer.data.view(np.uint32)[:count]


def _slop_state(settings: NDArray[np.int32]) -> State:
    return State.from_bytes(settings[SLOT_SLOP_STATE : SLOT_SLOP_STATE + slop_tables.WORDS].tobytes())


def slop_row(row: Floats, ids: Masks, rows: NDArray[np.int32], r: int, slots: NumpyBuffer, masks: Masks) -> None:
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
    table = rows.ints(ROW_INTS)[: row_count(control)]
    for r, (slot, position, _, active) in enumerate(table):
        if active:
            settings, row = slots.ints(SLOT_INTS)[slot], logits.floats(stride)[r, :n_vocab]
            _adjust(row, settings, slot, position, bias_ids, biases, biases_per_slot, history.ints(history_stride))
            slop_row(row, class_masks(masks, n_vocab), table, r, slots, class_masks(masks, n_vocab))
