"""One block of architecture `llama`, which models and MTP drafters are made of: its tensors, its launches, and the state it needs.

Source: architectures as written by llama.cpp's converter (GGUF tensor names); Touvron et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.device import Device, Launch
from backends.errors import ModelError
from backends.model.attention import Attention
from backends.model.cache import KVCache
from backends.model.gguf import GGUFFile, Tensor
from backends.model.matrix import Arena, Matrix, checked, same_type
from backends.model.weights import WEIGHT_TYPES, repacked_bytes
from backends.plan import Workspace
from backends.tables import ADD, GATED, SILU, STORE

MATRIX_TYPES = tuple(WEIGHT_TYPES)
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Shape:
    """Hyperparameters, from the file's metadata. layers: without the `nextn` ones behind them, which draft (mtp.py)."""

    vocab: int
    embd: int
    layers: int
    nextn: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    ctx: int
    rope_dim: int
    rope_base: float
    epsilon: float


def read_shape(file: GGUFFile, vocab: int) -> Shape:
    """The file's hyperparameters. vocab: rows of its embedding. Raises ModelError where one is missing or cannot be run."""

    def integer(key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
        value = file.get(f"llama.{key}", int) if default is None else file.get(f"llama.{key}", int, default)
        if not low <= value <= high:
            raise ModelError(f"{file.path}: llama.{key} is {value}; wanted {low}..{high}")
        return int(value)

    def real(key: str, default: float | None = None) -> float:
        value = float(file.get(f"llama.{key}", float) if default is None else file.get(f"llama.{key}", float, default))
        if not SMALLEST <= value <= LARGEST:
            raise ModelError(f"{file.path}: llama.{key} is {value}; wanted a positive number of float32")
        return value

    if integer("expert_count", 0, low=0):
        raise ModelError(f"{file.path}: llama.expert_count is {integer('expert_count')}; mixtures of experts are not among the supported models")
    scaling = file.get("llama.rope.scaling.type", str, "none")
    if scaling != "none":
        raise ModelError(f"{file.path}: llama.rope.scaling.type is {scaling!r}; supported: 'none'")
    for key in ("rope.scaling.factor", "rope.scale_linear"):  # without a type, a factor scales linearly (llama.cpp); 0 is none
        factor = file.get(f"llama.{key}", float, 1.0)
        if factor not in (0, 1) and "llama.rope.scaling.type" not in file.metadata:
            raise ModelError(f"{file.path}: llama.{key} is {factor}; supported: 1, no scaling")
    nextn = integer("nextn_predict_layers", 0, low=0, high=min(1, integer("block_count", high=4096)))
    embd = integer("embedding_length")
    heads = integer("attention.head_count", high=min(1 << 14, embd))
    kv_heads = integer("attention.head_count_kv", heads)
    head_dim = integer("attention.key_length", embd // heads)
    shape = Shape(
        vocab=vocab,
        embd=embd,
        layers=integer("block_count", high=4096) - nextn,
        nextn=nextn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ff=integer("feed_forward_length"),
        ctx=integer("context_length", high=1 << 26),
        rope_dim=integer("rope.dimension_count", head_dim),
        rope_base=real("rope.freq_base", 10000.0),
        epsilon=real("attention.layer_norm_rms_epsilon"),
    )
    value_dim = integer("attention.value_length", head_dim)
    checks = [
        (value_dim == head_dim, f"llama.attention.value_length {value_dim}", f"the key length {head_dim}"),
        (heads % kv_heads == 0, f"llama.attention.head_count {heads}", f"a multiple of head_count_kv {kv_heads}"),
        (head_dim % 16 == 0 and head_dim <= 256, f"head size {head_dim}", "a multiple of 16 up to 256"),
        (
            shape.rope_dim % 2 == 0 and shape.rope_dim <= head_dim,
            f"llama.rope.dimension_count {shape.rope_dim}",
            f"even and at most the head size {head_dim}",
        ),
        (embd % 32 == 0, f"llama.embedding_length {embd}", "a multiple of 32"),
        (shape.ff % 32 == 0, f"llama.feed_forward_length {shape.ff}", "a multiple of 32"),
        (heads * head_dim % 32 == 0, f"heads x head size {heads} x {head_dim}", "a multiple of 32"),
        (shape.ctx >= 2, f"llama.context_length {shape.ctx}", "at least 2"),
    ]
    for ok, what, wanted in checks:
        if not ok:
            raise ModelError(f"{file.path}: {what} is not supported; wanted {wanted}")
    return shape


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The checked tensors of one layer."""

    attn_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    ffn_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer on the device. qkv: one matrix, or three; gate_up: one with its blocks in turn, or two."""

    attn_norm: object
    qkv: tuple[Matrix, ...]
    output: Matrix
    ffn_norm: object
    gate_up: tuple[Matrix, ...]
    down: Matrix


@dataclass(frozen=True, slots=True)
class State:
    """KV cells, attention over them, and RoPE cosines and sines by position."""

    cache: KVCache
    attention: Attention
    cosines: Any
    sines: Any


class Block:
    """Block `index` of the file. Raises ModelError where its tensors do not fit the shape."""

    def __init__(self, file: GGUFFile, shape: Shape, index: int) -> None:
        self._shape = s = shape
        q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim

        def matrix(name: str, columns: int, rows: int) -> Tensor:
            return checked(file, f"blk.{index}.{name}.weight", (columns, rows), MATRIX_TYPES)

        self._tensors = _Tensors(
            norm_tensor(file, f"blk.{index}.attn_norm.weight", s.embd),
            matrix("attn_q", s.embd, q_width),
            matrix("attn_k", s.embd, kv_width),
            matrix("attn_v", s.embd, kv_width),
            matrix("attn_output", q_width, s.embd),
            norm_tensor(file, f"blk.{index}.ffn_norm.weight", s.embd),
            matrix("ffn_gate", s.embd, s.ff),
            matrix("ffn_up", s.embd, s.ff),
            matrix("ffn_down", s.ff, s.embd),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of its tensors."""
        return tuple(getattr(self._tensors, name) for name in _Tensors.__slots__)

    def load(self, device: Device) -> None:
        """Repacks and uploads the weights. Raises DeviceError when memory runs out."""
        tensors, arena = self._tensors, Arena()
        qkv = [tensors.q, tensors.k, tensors.v]
        merged = all(t.shape[1] % 16 == 0 for t in qkv) and same_type(*qkv)
        qkv_at = [arena.add(qkv)] if merged else [arena.add([t]) for t in qkv]
        output_at = arena.add([tensors.output])
        pair = [tensors.gate, tensors.up]
        pair_at = [arena.add(pair, interleave=True)] if same_type(*pair) else [arena.add([t]) for t in pair]
        down_at = arena.add([tensors.down])  # all in the order they are read: a prefetch past one's end warms the next
        made = arena.build(device)
        self.weights = _Layer(
            device.put(floats(tensors.attn_norm)),
            tuple(made[i] for i in qkv_at),
            made[output_at],
            device.put(floats(tensors.ffn_norm)),
            tuple(made[i] for i in pair_at),
            made[down_at],
        )

    def launches(self, work: Workspace, state: State, layer: int, tile: int, most: int) -> list[Launch]:
        """Runs the residual work.x of the table's rows, `most` at most, through the block, whose cells are the cache's of `layer`."""
        s, sizes, cache, weights = self._shape, work.sizes, state.cache, self.weights
        cells = (cache.keys[layer], cache.values[layer], cache.block_table, cache.blocks_per_slot, s.heads, s.kv_heads)
        launches: list[Launch] = []
        block = 0
        for matrix in weights.qkv:
            inputs = (work.x, s.embd, weights.attn_norm, float(s.epsilon), s.embd, matrix.row_blocks, block)
            outputs = (work.query, sizes.heads, state.cosines, state.sines, *cells, s.head_dim)
            args = (work.control, work.rows, matrix.buffer, matrix.lines, *inputs, *outputs, work.scratch, work.scratch_lines)
            launches += work.activate(matrix, work.x, s.embd, weights.attn_norm, s.epsilon)
            launches.append(Launch(matrix.spec("qkv", "qkv", TILE=tile), args, work.share(matrix.row_blocks)))
            block += matrix.row_blocks
        launches += [
            *state.attention.launches(work, layer, tile, most),
            *work.matvec(weights.output, work.attended, sizes.heads, work.x, s.embd, tile, mode=ADD),
        ]
        for matrix, mode in zip(weights.gate_up, (SILU,) if len(weights.gate_up) == 1 else (STORE, GATED), strict=True):
            launches += work.matvec(matrix, work.x, s.embd, work.hidden, s.ff, tile, mode=mode, norm=weights.ffn_norm, epsilon=s.epsilon)
        return [*launches, *work.matvec(weights.down, work.hidden, s.ff, work.x, s.embd, tile, mode=ADD)]


def make_state(device: Device, shape: Shape, layers: int, ctx: int, slots: int, factors: np.ndarray | None, first: int = 0) -> State:
    """What `layers` blocks need for `slots` sequences of up to `ctx` positions. first: where position 0 stands for RoPE."""
    cosines, sines = rope_tables(shape, first + ctx, factors)
    cache = KVCache(device, layers, shape.kv_heads, shape.head_dim, ctx, slots)
    return State(cache, Attention(device, cache, shape.heads), device.put(cosines[first:]), device.put(sines[first:]))


def claim_state(device: Device, shape: Shape, layers: int, ctx: int, slots: int) -> None:
    """Asks the device for the buffers of `make_state` and fills none: with one that only counts, what a sequence needs is known at once."""
    Attention(device, KVCache(device, layers, shape.kv_heads, shape.head_dim, ctx, slots), shape.heads)
    device.zeros(2 * ctx * shape.head_dim)


def rope_tables(shape: Shape, ctx: int, factors: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, float32 [ctx, head_dim], computed in float64; even columns' sines negated, 1 and 0 beyond rope_dim."""
    inverse = shape.rope_base ** (-np.arange(0, shape.rope_dim, 2) / shape.rope_dim)
    if factors is not None:
        inverse = inverse / factors
    angles = np.arange(ctx)[:, None] * inverse[None, :]
    cosines, sines = np.ones((ctx, shape.head_dim), np.float32), np.zeros((ctx, shape.head_dim), np.float32)
    cosines[:, : shape.rope_dim] = np.repeat(np.cos(angles), 2, 1)
    sines[:, : shape.rope_dim] = np.repeat(np.sin(angles), 2, 1)
    sines[:, ::2] *= -1
    return cosines, sines


def norm_tensor(file: GGUFFile, name: str, size: int) -> Tensor:
    """The file's norm weights of that size. Raises ModelError."""
    return checked(file, name, (size,), ("F32",))


def floats(tensor: Tensor) -> np.ndarray:
    """An F32 tensor's values."""
    return np.frombuffer(tensor.data.tobytes(), np.float32)


def loaded_bytes(*tensors: Tensor) -> int:
    """Bytes of device memory that the tensors take."""
    return sum(repacked_bytes(t.type, t.columns, t.rows) if len(t.shape) == 2 else t.data.nbytes for t in tensors)
