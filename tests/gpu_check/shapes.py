"""Shapes of known models, and GGUF files of them that lie in no file: headers whose matrices have no bytes (weights.py makes those)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backends.model.gguf import GGUFFile, Tensor
from backends.model.weights import WEIGHT_TYPES
from tests.tiny import CHATML, IM_END, IM_START, tiny_vocabulary


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model of architecture llama. about: what it is the shape of. tied: the head is the embedding."""

    about: str
    layers: int
    embd: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Weights of all matrices."""
        width, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.layers * self.embd * (2 * width + 2 * kv + 3 * self.ff) + self.vocab * self.embd * (1 if self.tied else 2)


SHAPES = {
    "135M": ModelShape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, True),
    "1B": ModelShape("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256, True),
    "8B": ModelShape("Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256, False),
    # No Llama has 27B weights: as wide and as deep as other models of that size, feed-forward so wide that the sum is right.
    "27B": ModelShape("27B weights, 64 layers", 64, 5120, 40, 8, 128, 22016, 128256, False),
    "tiny": ModelShape("a rehearsal", 2, 128, 2, 1, 64, 224, 128, True),
}
CTX = 1024


def random_file(name: str, weight_type: str) -> GGUFFile:
    """The header of a model of this shape; matrices of `weight_type`, whose bytes nobody may read."""
    s = SHAPES[name]
    tokens, types, merges = tiny_vocabulary(s.vocab)
    file = GGUFFile.__new__(GGUFFile)  # there is nothing to map
    file.path = f"random {name} {weight_type}"
    file.metadata = {
        "general.architecture": "llama",
        "llama.block_count": s.layers,
        "llama.context_length": CTX,
        "llama.embedding_length": s.embd,
        "llama.feed_forward_length": s.ff,
        "llama.attention.head_count": s.heads,
        "llama.attention.head_count_kv": s.kv_heads,
        "llama.attention.key_length": s.head_dim,
        "llama.attention.value_length": s.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "llama.rope.dimension_count": s.head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": IM_START,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.chat_template": CHATML,
    }
    file.tensors = {}
    nothing = np.zeros(1, np.uint8)

    def matrix(tensor: str, columns: int, rows: int) -> None:
        nbytes = rows * columns // 32 * WEIGHT_TYPES[weight_type].block_bytes
        file.tensors[tensor] = Tensor(tensor, weight_type, (columns, rows), np.broadcast_to(nothing, nbytes))

    def norm(tensor: str) -> None:
        file.tensors[tensor] = Tensor(tensor, "F32", (s.embd,), np.ones(s.embd, np.float32).view(np.uint8))

    width, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    for layer in range(s.layers):
        block = f"blk.{layer}."
        for tensor in ("attn_norm", "ffn_norm"):
            norm(f"{block}{tensor}.weight")
        for tensor, columns, rows in (
            ("attn_q", s.embd, width),
            ("attn_k", s.embd, kv),
            ("attn_v", s.embd, kv),
            ("attn_output", width, s.embd),
            ("ffn_gate", s.embd, s.ff),
            ("ffn_up", s.embd, s.ff),
            ("ffn_down", s.ff, s.embd),
        ):
            matrix(f"{block}{tensor}.weight", columns, rows)
    matrix("token_embd.weight", s.embd, s.vocab)
    norm("output_norm.weight")
    if not s.tied:
        matrix("output.weight", s.embd, s.vocab)
    return file
