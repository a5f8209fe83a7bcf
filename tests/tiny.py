"""Tiny random models as GGUF files, for tests that need a whole model but no real one."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

CONTROL, NORMAL, UNUSED = 3, 1, 5
ENDOFTEXT, IM_START, IM_END = 0, 1, 2
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tiny_llama(
    path: str | os.PathLike[str],
    *,
    n_vocab: int = 96,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int = 16,
    n_ff: int = 96,
    ctx: int = 256,
    tied: bool = True,
    weight_type: str = "F32",
    embd_type: str | None = None,
    types: Mapping[str, str] | None = None,
    rope_factors: Sequence[float] | None = None,
    seed: int = 0,
    with_tokenizer: bool = True,
    nextn: bool = False,
    draft_seed: int | None = None,
    similar_draft: bool = False,
) -> Path:
    """Write a `llama` GGUF with random weights (the same for the same arguments) whose logits have a deviation of about 2.

    weight_type, embd_type (default: weight_type): ggml names of the matrices' and the embedding's (and head's) type;
    norms are F32. types: other types for some matrices, as {"attn_k": "Q8_0"}. rope_factors: one per pair of a head.
    Quantised types need columns (n_embd, n_ff, n_head * head_dim) that are multiples of their block.
    nextn: an MTP block behind the last one, which changes no other tensor; its weights are draft_seed's, those of a
    write_tiny_drafter with that seed (None: what follows the model's own in the generator). They are random, and its drafts as good as never
    right. similar_draft: the last block's weights instead, on nearly the mean of the two inputs, for first drafts that are often right: one in
    two to ten after random tokens (the fewer the more layers), most of them after the model's own text, fewer when untied.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tiny llama {seed}")
    _add_sizes(writer, n_layer, nextn, n_vocab, n_embd, n_head, n_head_kv, head_dim, n_ff, ctx)
    if with_tokenizer:
        add_tiny_tokenizer(writer, n_vocab)
    draw = _Draw(writer, rng, n_embd, weight_type, embd_type or weight_type, types or {})
    draw.vocabulary("token_embd.weight", n_vocab)
    for layer in range(n_layer):
        draw.block(f"blk.{layer}.", n_head * head_dim, n_head_kv * head_dim, n_ff)
    draw.norm("output_norm.weight")
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, np.float32))
    if not tied:
        draw.vocabulary("output.weight", n_vocab)
    if nextn:
        if draft_seed is not None:
            draw.rng = np.random.default_rng(draft_seed)
        if similar_draft:
            draw.similar_mtp_block(f"blk.{n_layer}.", f"blk.{n_layer - 1}.")
        else:
            draw.mtp_block(f"blk.{n_layer}.", n_head * head_dim, n_head_kv * head_dim, n_ff)
    finish(writer)
    return Path(path)


def write_tiny_drafter(
    path: str | os.PathLike[str],
    *,
    n_vocab: int = 96,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int = 16,
    n_ff: int = 96,
    ctx: int = 256,
    weight_type: str = "F32",
    embd_type: str | None = None,
    types: Mapping[str, str] | None = None,
    own_embedding: bool = False,
    own_head: bool = False,
    own_norm: bool = True,
    seed: int = 0,
    similar_to: str | os.PathLike[str] | None = None,
) -> Path:
    """Write an MTP drafter as a file of its own, for a write_tiny_llama of the same sizes: block n_layer alone, and no tokenizer.

    own_embedding, own_head: it brings an embedding, a head instead of its target's, random ones. own_norm=False: without a norm before the head.
    similar_to: the target's file, for drafts that are often right, as in write_tiny_llama.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tiny drafter {seed}")
    _add_sizes(writer, n_layer, True, n_vocab, n_embd, n_head, n_head_kv, head_dim, n_ff, ctx)
    draw = _Draw(writer, np.random.default_rng(seed), n_embd, weight_type, embd_type or weight_type, types or {})
    block = f"blk.{n_layer}."
    if similar_to is None:
        draw.mtp_block(block, n_head * head_dim, n_head_kv * head_dim, n_ff, own_norm)
    else:
        for tensor in gguf.GGUFReader(similar_to).tensors:
            draw.added[tensor.name] = np.array(tensor.data), tensor.tensor_type
        draw.similar_mtp_block(block, f"blk.{n_layer - 1}.", own_norm)
    if own_embedding:
        draw.vocabulary(block + "nextn.embed_tokens.weight", n_vocab)
    if own_head:
        draw.vocabulary(block + "nextn.shared_head_head.weight", n_vocab)
    finish(writer)
    return Path(path)


def _add_sizes(
    writer: Any, n_layer: int, nextn: bool, n_vocab: int, n_embd: int, n_head: int, n_head_kv: int, head_dim: int, n_ff: int, ctx: int
) -> None:
    """The sizes and constants of a llama; an MTP block counts as a layer and is the last."""
    writer.add_block_count(n_layer + nextn)
    writer.add_context_length(ctx)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(n_vocab)
    if head_dim * n_head != n_embd:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if nextn:
        writer.add_nextn_predict_layers(1)


@dataclass
class _Draw:
    """Adds random tensors to a file. With inputs of unit size, a deviation of 1/sqrt(columns) keeps the size and 2/sqrt(columns) doubles it."""

    writer: Any
    rng: np.random.Generator
    n_embd: int
    weight_type: str
    embd_type: str
    types: Mapping[str, str]
    added: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # data as stored, and type

    def add(self, name: str, data: Any, kind: Any = gguf.GGMLQuantizationType.F32) -> None:
        self.writer.add_tensor(name, data, raw_dtype=kind)
        self.added[name] = data, kind

    def quantised(self, name: str, weights: Any, type_name: str) -> None:
        kind = gguf.GGMLQuantizationType[self.types.get(name.split(".")[-2], type_name)]
        self.add(name, quantize(weights.astype(np.float32), kind), kind)

    def matrix(self, name: str, rows: int, columns: int, deviation: float, type_name: str) -> None:
        self.quantised(name, self.rng.normal(0.0, deviation, (rows, columns)), type_name)

    def weight(self, name: str, rows: int, columns: int) -> None:
        self.matrix(name, rows, columns, columns**-0.5, self.weight_type)

    def vocabulary(self, name: str, n_vocab: int) -> None:
        self.matrix(name, n_vocab, self.n_embd, 2 / self.n_embd**0.5, self.embd_type)

    def norm(self, name: str) -> None:
        self.add(name, (1 + self.rng.normal(0.0, 0.1, self.n_embd)).astype(np.float32))

    def block(self, block: str, q_dim: int, kv_dim: int, n_ff: int) -> None:
        self.norm(block + "attn_norm.weight")
        self.weight(block + "attn_q.weight", q_dim, self.n_embd)
        self.weight(block + "attn_k.weight", kv_dim, self.n_embd)
        self.weight(block + "attn_v.weight", kv_dim, self.n_embd)
        self.weight(block + "attn_output.weight", self.n_embd, q_dim)
        self.norm(block + "ffn_norm.weight")
        self.weight(block + "ffn_gate.weight", n_ff, self.n_embd)
        self.weight(block + "ffn_up.weight", n_ff, self.n_embd)
        self.weight(block + "ffn_down.weight", self.n_embd, n_ff)

    def mtp_block(self, block: str, q_dim: int, kv_dim: int, n_ff: int, own_norm: bool = True) -> None:
        self.weight(block + "nextn.eh_proj.weight", self.n_embd, 2 * self.n_embd)
        self.norm(block + "nextn.enorm.weight")
        self.norm(block + "nextn.hnorm.weight")
        self.block(block, q_dim, kv_dim, n_ff)
        if own_norm:
            self.norm(block + "nextn.shared_head_norm.weight")

    def similar_mtp_block(self, block: str, source: str, own_norm: bool = True) -> None:
        """An MTP block that does to the mean of its inputs what the block `source` of self.added does to its own."""
        mean = np.tile(np.eye(self.n_embd) / 2, 2)
        noise = self.rng.normal(0.0, 0.1 * (2 * self.n_embd) ** -0.5, mean.shape)  # so that other seeds draft otherwise
        self.quantised(block + "nextn.eh_proj.weight", mean + noise, self.weight_type)
        for name in ("enorm", "hnorm"):
            self.add(f"{block}nextn.{name}.weight", np.ones(self.n_embd, np.float32))
        for name, tensor in list(self.added.items()):
            if name.startswith(source):
                self.add(block + name[len(source) :], *tensor)
        if own_norm:
            self.add(block + "nextn.shared_head_norm.weight", *self.added["output_norm.weight"])


def finish(writer: Any) -> None:
    """Write out what a GGUFWriter was given and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tiny_tokenizer(writer: Any, n_vocab: int) -> None:
    """Add the tiny vocabulary and a ChatML template to a GGUFWriter."""
    tokens, types, merges = tiny_vocabulary(n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(IM_START)
    writer.add_eos_token_id(IM_END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def tiny_vocabulary(n_vocab: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges of a byte-level vocabulary, the more complete the larger n_vocab (at least 64).

    First control tokens, letters, digits, single bytes of UTF-8 characters and a few words; then the rest of printable ASCII
    (all of it from 116), of the bytes (from 266), pairs of letters, and unused tokens.
    """
    if n_vocab < 64:
        raise ValueError(f"n_vocab is {n_vocab}, at least 64 are needed")
    alphabet = _byte_alphabet()
    first = (string.ascii_lowercase + string.digits + "\n .,!?").encode() + "é😀".encode()
    order = dict.fromkeys([*first, *string.printable.encode(), *range(256)])
    letters = string.ascii_lowercase
    pairs = ["t h", "th e", "Ġ a", "Ġ th", "Ġth e", "i n", "e r", *(f"{a} {b}" for a in letters for b in letters)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [alphabet[byte] for byte in first]
    merges: list[str] = []

    def add_merges(wanted: list[str]) -> None:
        known = set(tokens)
        for pair in wanted:
            text = pair.replace(" ", "")
            if len(tokens) < n_vocab and text not in known:
                known.add(text)
                tokens.append(text)
                merges.append(pair)

    add_merges(pairs[:7])
    tokens += [alphabet[byte] for byte in order if alphabet[byte] not in tokens][: n_vocab - len(tokens)]
    add_merges(pairs[7:])
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    unused = n_vocab - len(tokens)
    return tokens + [f"<unused{i}>" for i in range(unused)], types + [UNUSED] * unused, merges


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte in GPT-2's vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(rest)) for byte in range(256)]
