"""The plain-English version of the ops that draft (reference.py says how to read them)."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends import reference_math
from backends.device import KernelSpec
from backends.reference import NumpyBuffer, row_count
from backends.reference_picks import class_masks, slop_row
from backends.tables import (
    CONTROL_FIRST,
    CONTROL_PRODUCT,
    CONTROL_ROOM,
    CONTROL_ROWS,
    DRAFT_PART,
    OUT_COUNT,
    OUT_DRAFTED,
    OUT_DRAFTS,
    OUT_INTS,
    OUT_KEPT,
    OUT_PROBABILITIES,
    OUT_TOKENS,
    ROW_INTS,
    SLOT_BUDGET,
    SLOT_CONTEXT,
    SLOT_DRAFT_MIN_P,
    SLOT_INTS,
    SLOT_WINDOW,
)


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
    if row_count(head_control):
        row = logit.data.view(np.float32)[:n_ids]
        slop_row(row, class_masks(head_masks, n_ids), rows.ints(ROW_INTS), draft, slots, class_masks(masks, n_vocab))


def draft_parts(spec: KernelSpec, head_control: NumpyBuffer, logit: NumpyBuffer, n_ids: int, parts: NumpyBuffer, *slop: Any) -> None:
    """Of every DRAFT_PART ids of the draft head's row: largest logit, its place, sum of exp(logit - largest), not-a-number seen."""
    if not row_count(head_control):
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
    if not row_count(head_control):
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
