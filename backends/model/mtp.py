"""The MTP layer (`nextn` tensors) that drafts: its block, its draft head over all or some of the vocabulary, and the launches of a chain.

Cell i pairs the target's hidden state of row i, after the target's final norm, with token i + 1; it predicts token i + 2. Its input is
eh_proj [N(embedding of token i + 1, enorm) ; N(hidden, hnorm)], then one block with cells of its own, at RoPE position i + 1, then
shared_head_norm and the head. A chain feeds what shared_head_norm gives back as hidden, with the draft as token. There is no cell for token 0.

Source: DeepSeek-V3 technical report (2024), section 2.2; tensor names and the order [embedding ; hidden] as llama.cpp's converter writes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.device import Device, KernelSpec, Launch
from backends.errors import ModelError
from backends.model.gguf import GGUFFile, Tensor
from backends.model.llama import Llama
from backends.model.llama_block import MATRIX_TYPES, Block, State, claim_state, floats, loaded_bytes, make_state, norm_tensor, read_shape
from backends.model.matrix import Arena, Matrix, checked
from backends.plan import SAMPLER, SLOP, SLOP_ON, DraftWorkspace, Sizes, SlopBuffers, Workspace
from backends.tables import DRAFT_PART, MAX_WINDOW, SLOP_PART


def has_drafter(file: GGUFFile) -> bool:
    """Whether the file holds an MTP layer."""
    return any(name.endswith("nextn.eh_proj.weight") for name in file.tensors)


def read_draft_vocabulary(path: Path, n_vocab: int) -> NDArray[np.int32]:
    """The token ids of a draft vocabulary, ascending: a file of raw little-endian int32 in any order.

    Raises ModelError naming the file and the first id that is twice in it or not the model's.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    if not data or len(data) % 4:
        raise ModelError(f"{path}: {len(data)} bytes are no draft vocabulary; wanted token ids of 4 bytes each, at least one")
    ids = np.frombuffer(data, "<i4")
    wrong = np.flatnonzero((ids < 0) | (ids >= n_vocab))
    if len(wrong):
        raise ModelError(f"{path}: id {ids[wrong[0]]} (entry {wrong[0]}) is not of the model's vocabulary; wanted 0..{n_vocab - 1}")
    ordered, counts = np.unique(ids, return_counts=True)
    if len(ordered) != len(ids):
        raise ModelError(f"{path}: id {ordered[counts > 1][0]} is there {counts[counts > 1][0]} times; wanted each once")
    return ordered.astype(np.int32)


class Drafter:
    """The MTP layer of a file for a target. vocabulary: ids the draft head knows, ascending; None: all.

    What the file lacks of embedding, head and final norm is the target's. Raises ModelError where it does not fit the target.
    """

    def __init__(self, file: GGUFFile, target: Llama, vocabulary: NDArray[np.int32] | None) -> None:
        self.file, self.target, self.vocabulary = file, target, vocabulary
        own = file is target.file
        self.shape = s = read_shape(file, target.shape.vocab)
        t = target.shape
        if s.embd != t.embd:
            raise ModelError(f"{file.path}: the drafter's embedding length is {s.embd}, that of its target {target.file.path} is {t.embd}")
        claimed = file.get("llama.vocab_size", int, t.vocab)
        if claimed != t.vocab:
            raise ModelError(f"{file.path}: the drafter's vocabulary is of {claimed}, that of its target {target.file.path} of {t.vocab}")
        if s.nextn != 1:
            raise ModelError(f"{file.path}: llama.nextn_predict_layers is {s.nextn}; wanted 1")
        name = f"blk.{s.layers}.nextn."
        self._block = Block(file, s, s.layers)
        self._projection = checked(file, f"{name}eh_proj.weight", (2 * s.embd, s.embd), MATRIX_TYPES)
        self._embedding_norm = norm_tensor(file, f"{name}enorm.weight", s.embd)
        self._hidden_norm = norm_tensor(file, f"{name}hnorm.weight", s.embd)

        def optional(*names: str) -> str | None:
            return next((n for n in names if n in file.tensors), None)

        # A file of its own may hold the ends of a whole model under their usual names.
        norm = optional(f"{name}shared_head_norm.weight", *(() if own else ("output_norm.weight",)))
        embedding = optional(f"{name}embed_tokens.weight", *(() if own else ("token_embd.weight",)))
        head = optional(f"{name}shared_head_head.weight", *(() if own else ("output.weight",)))
        self._head_norm = None if norm is None else norm_tensor(file, norm, s.embd)
        self._embedding = None if embedding is None else checked(file, embedding, (s.embd, t.vocab), MATRIX_TYPES)
        self._head = None if head is None else checked(file, head, (s.embd, t.vocab), MATRIX_TYPES)
        self.n_ids = t.vocab if vocabulary is None else len(vocabulary)
        # `hidden` holds the pair of embedding and hidden state before the block needs it for its feed-forward.
        self.sizes = Sizes(embd=s.embd, heads=s.heads * s.head_dim, ff=max(s.ff, 2 * s.embd), vocab=self.n_ids)

    @property
    def _head_rows(self) -> Tensor | None:
        """The draft head's rows where they are not the target's head as it is."""
        head = self._head or self.target.head_tensor
        if self.vocabulary is None:
            return self._head
        rows = head.data.reshape(head.rows, head.row_bytes)[self.vocabulary]
        return Tensor(head.name, head.type, (head.columns, len(self.vocabulary)), rows.reshape(-1))

    def weight_bytes(self) -> int:
        """Bytes of device memory that `load` takes."""
        rest = (self._projection, self._embedding_norm, self._hidden_norm, self._head_norm, self._embedding, self._head_rows)
        return loaded_bytes(*self._block.tensors, *(t for t in rest if t is not None))

    def load(self, device: Device) -> None:
        """Repacks and uploads the weights, after the target's. Raises DeviceError when memory runs out."""
        self.device = device
        arena = Arena()
        arena.add([self._projection])
        self.projection = arena.build(device)[0]
        self._block.load(device)
        self.embedding, self.head = self.target.embedding, self.target.head
        if self._embedding is not None:
            self.embedding = _alone(device, self._embedding)
        rows = self._head_rows
        if rows is not None:
            self.head = _alone(device, rows)
        self.embedding_norm, self.hidden_norm = device.put(floats(self._embedding_norm)), device.put(floats(self._hidden_norm))
        self.head_norm = self.target.final_norm if self._head_norm is None else device.put(floats(self._head_norm))
        self.ids = device.put(np.zeros(1, np.int32) if self.vocabulary is None else self.vocabulary)

    def state(self, ctx: int) -> State:
        """The cells of one sequence of up to `ctx` positions: cell i at RoPE position i + 1."""
        return make_state(self.device, self.shape, 1, ctx, 1, self.target.rope_factors, first=1)

    def claim_state(self, device: Device, ctx: int) -> None:
        """Asks the device for the buffers of `state` and fills none."""
        claim_state(device, self.shape, 1, ctx, 1)

    def cells(self, work: DraftWorkspace, state: State, source: Workspace, tile: int, most: int) -> list[Launch]:
        """Computes the cells of the rows in `work`'s table, `most` at most, from the residual in source.x.

        source: the target's work buffers, or `work` itself for a step of a chain.
        """
        s = self.shape
        norm = self.head_norm if source is work else self.target.final_norm
        args = (work.control, work.rows, self.embedding.buffer, source.x, s.embd, norm, self.hidden_norm, self.embedding_norm)
        return [
            Launch(
                self.embedding.spec("pair", "pair"),
                (*args, float(s.epsilon), s.embd, work.hidden, 2 * s.embd),
                work.share(2 * most),
            ),
            *work.matvec(self.projection, work.hidden, 2 * s.embd, work.x, s.embd, tile),
            *self._block.launches(work, state, 0, tile, most),
        ]

    def logits(self, work: DraftWorkspace) -> list[Launch]:
        """The draft head over row 0, where work.head_control says so."""
        return work.matvec(
            self.head,
            work.x,
            self.shape.embd,
            work.logits,
            work.logits_stride,
            1,
            norm=self.head_norm,
            epsilon=self.shape.epsilon,
            control=work.head_control,
        )

    def pick(self, work: DraftWorkspace, window: Workspace, step: int, thresholds: object | None, slop: SlopBuffers | None = None) -> list[Launch]:
        """The drafted token of the head's row, its probability, and whether it joins the window. thresholds: the table of PCUM's, if it acts.
        slop: where it holds the head's masks, the row is first made what the slop policy makes of it."""
        constants = (("PCUM", int(thresholds is not None)),)
        parts = -(-self.n_ids // DRAFT_PART)
        tables = (work.control, work.rows, work.head_control, window.control, window.rows, window.slots, window.out)
        head = (work.head_control, work.logits, self.n_ids, work.parts)
        pick = Launch(
            KernelSpec("draft", "draft_pick", ("window.h",), constants),
            (work.parts, parts, self.ids, int(self.vocabulary is not None), step, *tables, *(() if thresholds is None else (thresholds,))),
            1,
        )
        if slop is None or slop.head_masks is None:
            return [Launch(KernelSpec("draft", "draft_parts", ("window.h",), constants), head, work.share(parts)), pick]
        seen = (window.rows, window.slots, step)
        masks = (slop.masks, self.target.shape.vocab, slop.head_masks)
        return [
            Launch(
                KernelSpec("slop", "slop_draft", (*SAMPLER, *SLOP)),
                (work.head_control, *seen, work.logits, self.n_ids, *masks, slop.parts),
                work.share(-(-self.n_ids // SLOP_PART)),
            ),
            Launch(
                KernelSpec("draft", "draft_parts", ("window.h", *SLOP), (*constants, *SLOP_ON)),
                (*head, *seen, *masks, slop.parts),
                work.share(parts),
            ),
            pick,
        ]

    def round(
        self,
        work: DraftWorkspace,
        state: State,
        window: Workspace,
        tile: int,
        drafts: int,
        thresholds: object | None,
        slop: SlopBuffers | None = None,
    ) -> list[Launch]:
        """After acceptance: the accepted rows' cells, then a chain of up to `drafts` drafts, which become rows of the next window.

        thresholds, slop: as in `pick`.
        """
        constants = (("PCUM", int(thresholds is not None)),)
        begin = (window.rows, window.slots, window.out, work.control, work.rows, work.head_control)
        launches = [
            Launch(KernelSpec("draft", "draft_begin", ("window.h",), constants), begin, 1),
            *self.cells(work, state, window, tile, MAX_WINDOW),
        ]
        for step in range(drafts):
            if step:
                launches += self.cells(work, state, work, 1, 1)
            launches += [*self.logits(work), *self.pick(work, window, step, thresholds, slop)]
        return launches


def _alone(device: Device, tensor: Tensor) -> Matrix:
    arena = Arena()
    arena.add([tensor])
    return arena.build(device)[0]
