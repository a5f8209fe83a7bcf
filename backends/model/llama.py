"""Architecture `llama`: RMS norm, grouped-query attention with RoPE over adjacent pairs, gated SiLU feed-forward.

Source: architectures as written by llama.cpp's converter (GGUF tensor names); Touvron et al. 2023, Grattafiori et al. 2024 (rope_freqs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from backends.device import Device, KernelSpec, Launch
from backends.errors import ModelError
from backends.model.cache import KVCache
from backends.model.gguf import GGUFFile, Tensor
from backends.model.matrix import Arena, Matrix, checked, same_type
from backends.model.weights import WEIGHT_TYPES
from backends.plan import Sizes, Workspace
from backends.tables import ADD, GATED, SILU, STORE

MATRIX_TYPES = tuple(WEIGHT_TYPES)
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Shape:
    """Hyperparameters, from the file's metadata."""

    vocab: int
    embd: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    ctx: int
    rope_dim: int
    rope_base: float
    epsilon: float


def read_shape(file: GGUFFile) -> Shape:
    """The file's hyperparameters. Raises ModelError where one is missing or cannot be run."""

    def integer(key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
        value = file.get(f"llama.{key}", int) if default is None else file.get(f"llama.{key}", int, default)
        if not low <= value <= high:
            raise ModelError(f"{file.path}: llama.{key} is {value}; wanted {low}..{high}")
        return int(value)

    def real(key: str, default: float | None = None) -> float:
        value = float(file.get(f"llama.{key}", float) if default is None else file.get(f"llama.{key}", float, default))
        if not _SMALLEST <= value <= _LARGEST:
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
    embd = integer("embedding_length")
    heads = integer("attention.head_count", high=min(1 << 14, embd))
    kv_heads = integer("attention.head_count_kv", heads)
    head_dim = integer("attention.key_length", embd // heads)
    shape = Shape(
        vocab=len(file.get_list("tokenizer.ggml.tokens", str)),
        embd=embd,
        layers=integer("block_count", high=4096),
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
    """KV cells, and RoPE cosines and sines by position."""

    cache: KVCache
    cosines: object
    sines: object


class Llama:
    """A model of architecture `llama`: checks the file on creation, loads with `load`, then makes launches.

    Raises ModelError where the file's tensors do not fit its metadata.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.shape = s = read_shape(file)
        q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim

        def norm(name: str) -> Tensor:
            return checked(file, name, (s.embd,), ("F32",))

        def matrix(name: str, columns: int, rows: int) -> Tensor:
            return checked(file, name, (columns, rows), MATRIX_TYPES)

        self._layers = [
            _Tensors(
                norm(f"blk.{i}.attn_norm.weight"),
                matrix(f"blk.{i}.attn_q.weight", s.embd, q_width),
                matrix(f"blk.{i}.attn_k.weight", s.embd, kv_width),
                matrix(f"blk.{i}.attn_v.weight", s.embd, kv_width),
                matrix(f"blk.{i}.attn_output.weight", q_width, s.embd),
                norm(f"blk.{i}.ffn_norm.weight"),
                matrix(f"blk.{i}.ffn_gate.weight", s.embd, s.ff),
                matrix(f"blk.{i}.ffn_up.weight", s.embd, s.ff),
                matrix(f"blk.{i}.ffn_down.weight", s.ff, s.embd),
            )
            for i in range(s.layers)
        ]
        self._embedding = matrix("token_embd.weight", s.embd, s.vocab)
        self._final_norm = norm("output_norm.weight")
        self._head = matrix("output.weight", s.embd, s.vocab) if "output.weight" in file.tensors else None
        self._rope_factors = checked(file, "rope_freqs.weight", (s.rope_dim // 2,), ("F32",)) if "rope_freqs.weight" in file.tensors else None
        if self._rope_factors is not None:
            factors = _floats(self._rope_factors)
            bad = factors[~((factors >= _SMALLEST) & (factors <= _LARGEST))]
            if len(bad):
                raise ModelError(f"{file.path}: tensor 'rope_freqs.weight' holds {bad[0]}; wanted positive numbers")
        used = 9 * s.layers + 2 + (self._head is not None) + (self._rope_factors is not None)
        if len(file.tensors) != used:
            known = {t.name for layer in self._layers for t in _fields(layer)} | {
                "token_embd.weight",
                "output_norm.weight",
                "output.weight",
                "rope_freqs.weight",
            }
            raise ModelError(f"{file.path}: tensor {next(n for n in file.tensors if n not in known)!r} is not one that architecture llama uses")
        self.sizes = Sizes(embd=s.embd, heads=q_width, ff=s.ff, vocab=s.vocab)

    def load(self, device: Device, progress: Callable[[float], None]) -> None:
        """Repacks and uploads the weights. Raises DeviceError when memory runs out."""
        self.device = device
        self.layers: list[_Layer] = []
        total = sum(t.data.nbytes for t in self.file.tensors.values())
        done = 0
        for tensors in self._layers:
            arena = Arena()
            qkv = [tensors.q, tensors.k, tensors.v]
            merged = all(t.shape[1] % 16 == 0 for t in qkv) and same_type(*qkv)
            qkv_at = [arena.add(qkv)] if merged else [arena.add([t]) for t in qkv]
            output_at = arena.add([tensors.output])
            pair = [tensors.gate, tensors.up]
            pair_at = [arena.add(pair, interleave=True)] if same_type(*pair) else [arena.add([t]) for t in pair]
            down_at = arena.add([tensors.down])  # all in the order they are read: a prefetch past one's end warms the next
            made = arena.build(device)
            self.layers.append(
                _Layer(
                    device.put(_floats(tensors.attn_norm)),
                    tuple(made[i] for i in qkv_at),
                    made[output_at],
                    device.put(_floats(tensors.ffn_norm)),
                    tuple(made[i] for i in pair_at),
                    made[down_at],
                )
            )
            done += sum(t.data.nbytes for t in _fields(tensors))
            progress(done / total)
        arena = Arena()
        arena.add([self._embedding])
        if self._head is not None:
            arena.add([self._head])
        ends = arena.build(device)
        self.embedding, self.head = ends[0], ends[-1]
        self.final_norm = device.put(_floats(self._final_norm))
        progress(1.0)

    def state(self, ctx: int, slots: int = 1) -> State:
        """What `slots` sequences of up to `ctx` positions need: KV cells and RoPE tables."""
        s = self.shape
        cosines, sines = rope_tables(s, ctx, None if self._rope_factors is None else _floats(self._rope_factors))
        return State(KVCache(self.device, s.layers, s.kv_heads, s.head_dim, ctx, slots), self.device.put(cosines), self.device.put(sines))

    def rows(self, work: Workspace, state: State, tile: int) -> list[Launch]:
        """Launches that run the table's rows through all layers: they write their KV cells and leave the residual in work.x."""
        s, sizes, cache = self.shape, self.sizes, state.cache
        attention_tile = min(tile, 8 if s.head_dim <= 64 else 4 if s.head_dim <= 128 else 2)  # what the vector registers hold
        attention = KernelSpec("attention", "attention", (), (("HEAD", s.head_dim), ("ATTENTION_TILE", attention_tile)))
        launches = [
            Launch(
                self.embedding.spec("embed", "embed"),
                (work.control, work.rows, self.embedding.buffer, s.embd, work.x, s.embd),
                work.share(work.rows_max),
            )
        ]
        for i, layer in enumerate(self.layers):
            cells = (cache.keys[i], cache.values[i], cache.block_table, cache.blocks_per_slot, s.heads, s.kv_heads)
            block = 0
            for matrix in layer.qkv:
                inputs = (work.x, s.embd, layer.attn_norm, float(s.epsilon), s.embd, matrix.row_blocks, block)
                outputs = (work.query, sizes.heads, state.cosines, state.sines, *cells, s.head_dim)
                args = (work.control, work.rows, matrix.buffer, matrix.lines, *inputs, *outputs, work.scratch, work.scratch_lines)
                launches += work.activate(matrix, work.x, s.embd, layer.attn_norm, s.epsilon)
                launches.append(Launch(matrix.spec("qkv", "qkv", TILE=tile), args, work.share(matrix.row_blocks)))
                block += matrix.row_blocks
            launches += [
                Launch(
                    attention,
                    (work.control, work.rows, work.query, sizes.heads, *cells, 1.0 / math.sqrt(s.head_dim), work.attended, sizes.heads),
                    work.share(s.heads * -(-work.rows_max // attention_tile)),
                ),
                *work.matvec(layer.output, work.attended, sizes.heads, work.x, s.embd, tile, mode=ADD),
            ]
            for matrix, mode in zip(layer.gate_up, (SILU,) if len(layer.gate_up) == 1 else (STORE, GATED), strict=True):
                launches += work.matvec(matrix, work.x, s.embd, work.hidden, s.ff, tile, mode=mode, norm=layer.ffn_norm, epsilon=s.epsilon)
            launches += work.matvec(layer.down, work.hidden, s.ff, work.x, s.embd, tile, mode=ADD)
        return launches

    def logits(self, work: Workspace, tile: int) -> list[Launch]:
        """Launches that turn the residual of up to MAX_WINDOW rows into logits."""
        return work.matvec(
            self.head, work.x, self.shape.embd, work.logits, work.logits_stride, tile, norm=self.final_norm, epsilon=self.shape.epsilon
        )

    def commit(self, work: Workspace, state: State) -> list[Launch]:
        """Launches that make the accepted rows' state final, after acceptance. None: rejected KV cells lie where no row reads."""
        return []


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


def _floats(tensor: Tensor) -> np.ndarray:
    return np.frombuffer(tensor.data.tobytes(), np.float32)


def _fields(tensors: _Tensors) -> tuple[Tensor, ...]:
    return tuple(getattr(tensors, name) for name in _Tensors.__slots__)
