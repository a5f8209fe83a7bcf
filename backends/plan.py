"""Work buffers and plans: a plan is a list of launches built once, recorded once and replayed every round.

Its row count, positions and tokens are read from the device's tables, so a recorded plan stays valid whatever the round holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backends.device import Device, KernelSpec, Launch
from backends.model.matrix import LINE, Matrix
from backends.tables import (
    CONTROL_INTS,
    CUT_INTS,
    DRAFT_PART,
    MAX_WINDOW,
    OUT_INTS,
    PARTIAL_INTS,
    ROW_INTS,
    SILU,
    SLOP_PART,
    SLOP_PART_INTS,
    SLOT_INTS,
    STORE,
)

MAX_BIASES = 1024
PICK_SHARES = 64
PART_INTS = 4
SAMPLER = ("sampler.h",)
SLOP = ("slop_tables.h", "slop.h")
SLOP_ON = (("SLOP", 1),)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Floats per row of the work buffers: residual (embd), query heads and attention output (heads), feed-forward, vocabulary."""

    embd: int
    heads: int
    ff: int
    vocab: int


@dataclass(frozen=True, slots=True)
class SlopBuffers:
    """What the slop policy needs of device memory, made when it first acts: class masks of all ids, and the parts of its sums.

    head_masks: the masks of the draft head's rows, where drafts see the policy; None: they do not.
    """

    masks: Any
    parts: Any
    head_masks: Any = None

    @classmethod
    def make(cls, device: Device, n_vocab: int, masks: Callable[[bool], Any], seen: bool, made: SlopBuffers | None = None) -> SlopBuffers:
        """For rows of n_vocab logits. masks: class masks in device memory, of the draft head's rows if true is asked for. seen: drafts see the
        policy; made: what there is already. Raises DeviceError when memory runs out."""
        parts = device.zeros(MAX_WINDOW * -(-n_vocab // SLOP_PART) * SLOP_PART_INTS, np.int32) if made is None else made.parts
        return cls(masks(False), parts, masks(True) if seen else None)

    @property
    def unseen(self) -> SlopBuffers:
        """The same for drafts that do not see the policy."""
        return replace(self, head_masks=None)


class Workspace:
    """Tables and activations for up to `rows` rows, `slots` sequences of `ctx` positions and `groups` work-groups.

    end_ids: tokens that end a sequence.

    Raises DeviceError when memory runs out.
    """

    def __init__(self, device: Device, sizes: Sizes, rows: int, groups: int, ctx: int, slots: int = 1, end_ids: Sequence[int] = ()) -> None:
        self.device, self.rows_max, self.groups, self.sizes = device, rows, groups, sizes
        self.control = device.zeros(CONTROL_INTS, np.int32)
        self.ctx, self.history = ctx, device.zeros(slots * ctx, np.int32)
        self.rows = device.zeros(rows * ROW_INTS, np.int32)
        self.slots = device.zeros(slots * SLOT_INTS, np.int32)
        self.out = device.zeros(slots * OUT_INTS, np.int32)
        self.end_ids = device.put(np.array([len(end_ids), *end_ids], np.int32))
        self.bias_ids = device.zeros(slots * MAX_BIASES, np.int32)
        self.biases = device.zeros(slots * MAX_BIASES)
        self.partial = device.zeros(MAX_WINDOW * self.share(PICK_SHARES) * PARTIAL_INTS, np.int32)
        self.x = device.zeros(rows * sizes.embd)
        self.query = device.zeros(rows * sizes.heads)
        self.attended = device.zeros(rows * sizes.heads)
        self.hidden = device.zeros(rows * sizes.ff)
        self.logits_stride = -(-sizes.vocab // 16) * 16
        self.logits = device.zeros(MAX_WINDOW * self.logits_stride)
        self.counts = device.zeros(MAX_WINDOW * self.logits_stride, np.int32)
        self.cuts = device.zeros(MAX_WINDOW * CUT_INTS, np.int32)
        # Codes of up to 2 bytes or floats, and two floats per 32 columns, of every row.
        widest = max(sizes.embd, sizes.heads, sizes.ff)
        self.scratch_lines = -(-rows * widest * 4 // LINE) + 1
        self.scratch = device.alloc((groups if device.lanes > 1 else 1) * self.scratch_lines * LINE)

    def set_rows(self, rows: Sequence[tuple[int, int, int, int]]) -> None:
        """Writes the row table: (slot, position, token, active) each."""
        self.device.upload(self.rows, np.array(rows, np.int32).reshape(-1))
        self.device.upload(self.control, np.array([len(rows)], np.int32))

    def share(self, items: int) -> int:
        """Work-groups for a launch of independent items: on a CPU all there are, in GPU shape one for each."""
        return self.groups if self.device.lanes > 1 else max(1, min(items, self.groups))

    def activate(self, matrix: Matrix, x: Any, x_stride: int, norm: Any, epsilon: float, control: Any = None) -> list[Launch]:
        """Prepares the rows of a mat-vec, where its kernel does not do so itself (kernels/activation.h)."""
        if self.device.lanes > 1:
            return []
        normed = (x, 0, 0.0) if norm is None else (norm, 1, float(epsilon))
        args = (control or self.control, x, x_stride, *normed, matrix.columns, self.scratch)
        return [Launch(matrix.spec("activate", "activate"), args, self.share(self.rows_max))]

    def matvec(
        self,
        matrix: Matrix,
        x: Any,
        x_stride: int,
        y: Any,
        y_stride: int,
        tile: int,
        *,
        mode: int = STORE,
        y_block: int = 0,
        norm: Any = None,
        epsilon: float = 0.0,
        control: Any = None,
    ) -> list[Launch]:
        """y (op) W norm(x) for every row; norm: the weights of an RMS norm of x before, None for none; control: who says how many rows."""
        launch = Launch(
            matrix.spec("matvec", "matvec", TILE=tile),
            (
                control or self.control,
                matrix.buffer,
                matrix.lines,
                x,
                x_stride,
                x if norm is None else norm,
                int(norm is not None),
                float(epsilon),
                matrix.columns,
                matrix.row_blocks,
                y,
                y_stride,
                y_block,
                mode,
                self.scratch,
                self.scratch_lines,
            ),
            self.share(matrix.row_blocks // (2 if mode == SILU else 1)),
        )
        return [*self.activate(matrix, x, x_stride, norm, epsilon, control), launch]

    def picks(self, n_vocab: int, filtered: bool = False, slop: SlopBuffers | None = None) -> list[Launch]:
        """The target's own tokens from the logits, and acceptance. filtered: for slots with top-k, top-p or min-p; the others are as ever.
        slop: for slots where the slop policy acts."""
        shares = self.share(PICK_SHARES)
        logits = (self.control, self.rows, self.slots, self.logits, self.logits_stride, n_vocab)
        adjust = (self.bias_ids, self.biases, MAX_BIASES, self.history, self.ctx, self.counts)
        accept = (self.control, self.rows, self.slots, self.end_ids, self.partial, shares, self.out)
        on = slop is not None
        headers, constants = (*SAMPLER, *SLOP) if on else SAMPLER, SLOP_ON if on else ()
        policy, masks = ((slop.masks, slop.parts), (slop.masks, n_vocab)) if slop is not None else ((), ())
        launches = []
        if on:
            launches.append(Launch(KernelSpec("slop", "slop_parts", headers), (*logits, *adjust, *policy), self.share(-(-n_vocab // SLOP_PART))))
        if filtered:
            launches.append(
                Launch(KernelSpec("filter", "filter", headers, constants), (*logits, *adjust, self.cuts, *policy), self.share(MAX_WINDOW))
            )
        pick = (*logits, *adjust, int(filtered), self.cuts, self.partial, *policy)
        return [
            *launches,
            Launch(KernelSpec("pick", "pick", headers, constants), pick, shares),
            Launch(KernelSpec("pick", "accept", headers, constants), (*accept, *masks), 1),
        ]


class DraftWorkspace(Workspace):
    """The same for a drafter of one sequence, whose vocabulary is its head's.

    head_control: says whether there is a draft to pick (0 or 1 rows). parts: what shares of the head leave for the pick.
    """

    def __init__(self, device: Device, sizes: Sizes, rows: int, groups: int, ctx: int) -> None:
        super().__init__(device, sizes, rows, groups, ctx)
        self.head_control = device.zeros(CONTROL_INTS, np.int32)
        self.parts = device.zeros(-(-sizes.vocab // DRAFT_PART) * PART_INTS, np.int32)


def programs(launches: Iterable[Launch]) -> list[KernelSpec]:
    """The kernels a plan needs, each once."""
    return list(dict.fromkeys(launch.spec for launch in launches))
