"""Architecture `llama`: RMS norm, grouped-query attention with RoPE over adjacent pairs, gated SiLU feed-forward.

Source: architectures as written by llama.cpp's converter (GGUF tensor names); Touvron et al. 2023, Grattafiori et al. 2024 (rope_freqs).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backends.device import Device, Launch
from backends.errors import ModelError
from backends.model.gguf import GGUFFile, Tensor
from backends.model.llama_block import (
    LARGEST,
    MATRIX_TYPES,
    SMALLEST,
    Block,
    State,
    claim_state,
    floats,
    loaded_bytes,
    make_state,
    norm_tensor,
    read_shape,
)
from backends.model.matrix import Arena, checked
from backends.plan import Sizes, Workspace
from backends.tables import MAX_WINDOW


class Llama:
    """A model of architecture `llama`: checks the file on creation, loads with `load`, then makes launches.

    A block of `nextn` tensors behind the others is left to mtp.py. Raises ModelError where the file's tensors do not fit its metadata.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.shape = s = read_shape(file, len(file.get_list("tokenizer.ggml.tokens", str)))
        self.blocks = [Block(file, s, i) for i in range(s.layers)]
        self.embedding_tensor = checked(file, "token_embd.weight", (s.embd, s.vocab), MATRIX_TYPES)
        self._final_norm = norm_tensor(file, "output_norm.weight", s.embd)
        self._head = checked(file, "output.weight", (s.embd, s.vocab), MATRIX_TYPES) if "output.weight" in file.tensors else None
        self._rope_factors = checked(file, "rope_freqs.weight", (s.rope_dim // 2,), ("F32",)) if "rope_freqs.weight" in file.tensors else None
        if self._rope_factors is not None:
            factors = floats(self._rope_factors)
            bad = factors[~((factors >= SMALLEST) & (factors <= LARGEST))]
            if len(bad):
                raise ModelError(f"{file.path}: tensor 'rope_freqs.weight' holds {bad[0]}; wanted positive numbers")
        known = {t.name for t in self._tensors}
        for name in file.tensors:
            if name not in known and not (s.nextn and name.startswith(f"blk.{s.layers}.")):
                raise ModelError(f"{file.path}: tensor {name!r} is not one that architecture llama uses")
        self.sizes = Sizes(embd=s.embd, heads=s.heads * s.head_dim, ff=s.ff, vocab=s.vocab)

    @property
    def _tensors(self) -> list[Tensor]:
        rest = (self.embedding_tensor, self._final_norm, self._head, self._rope_factors)
        return [*(t for block in self.blocks for t in block.tensors), *(t for t in rest if t is not None)]

    @property
    def head_tensor(self) -> Tensor:
        """The head's weights: its own, or the embedding's."""
        return self._head or self.embedding_tensor

    @property
    def rope_factors(self) -> np.ndarray | None:
        """What RoPE's frequencies are divided by, if anything: float32 [rope_dim / 2]."""
        return None if self._rope_factors is None else floats(self._rope_factors)

    def load(self, device: Device, progress: Callable[[float], None]) -> None:
        """Repacks and uploads the weights. Raises DeviceError when memory runs out."""
        self.device = device
        total = sum(t.data.nbytes for t in self._tensors)
        done = 0
        for block in self.blocks:
            block.load(device)
            done += sum(t.data.nbytes for t in block.tensors)
            progress(done / total)
        arena = Arena()
        arena.add([self.embedding_tensor])
        if self._head is not None:
            arena.add([self._head])
        ends = arena.build(device)
        self.embedding, self.head = ends[0], ends[-1]
        self.final_norm = device.put(floats(self._final_norm))
        progress(1.0)

    def weight_bytes(self) -> int:
        """Bytes of device memory that `load` takes."""
        return loaded_bytes(*self._tensors)

    def state(self, ctx: int, slots: int = 1) -> State:
        """What `slots` sequences of up to `ctx` positions need: KV cells and RoPE tables."""
        return make_state(self.device, self.shape, self.shape.layers, ctx, slots, self.rope_factors)

    def claim_state(self, device: Device, ctx: int, slots: int = 1) -> None:
        """Asks the device for the buffers of `state` and fills none."""
        claim_state(device, self.shape, self.shape.layers, ctx, slots)

    def rows(self, work: Workspace, state: State, tile: int, most: int = MAX_WINDOW) -> list[Launch]:
        """Launches that run the table's rows, `most` at most, through all layers: they write KV cells and leave the residual in work.x."""
        args = (work.control, work.rows, work.history, work.ctx, self.embedding.buffer, self.shape.embd, work.x, self.shape.embd)
        launches = [Launch(self.embedding.spec("embed", "embed"), args, work.share(work.rows_max))]
        for i, block in enumerate(self.blocks):
            launches += block.launches(work, state, i, tile, most)
        return launches

    def logits(self, work: Workspace, tile: int) -> list[Launch]:
        """Launches that turn the residual of up to MAX_WINDOW rows into logits."""
        return work.matvec(
            self.head, work.x, self.shape.embd, work.logits, work.logits_stride, tile, norm=self.final_norm, epsilon=self.shape.epsilon
        )

    def commit(self, work: Workspace, state: State) -> list[Launch]:
        """Launches that make the accepted rows' state final, after acceptance. None: rejected KV cells lie where no row reads."""
        return []
