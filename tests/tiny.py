"""Tiny random models as GGUF files, for tests that need a whole model but no real one."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping, Sequence
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
) -> Path:
    """Write a `llama` GGUF with random weights (the same for the same arguments) whose logits have a deviation of about 2.

    weight_type, embd_type (default: weight_type): ggml names of the matrices' and the embedding's (and head's) type;
    norms are F32. types: other types for some matrices, as {"attn_k": "Q8_0"}. rope_factors: one per pair of a head.
    Quantised types need columns (n_embd, n_ff, n_head * head_dim) that are multiples of their block.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tiny llama {seed}")
    writer.add_block_count(n_layer)
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
    if with_tokenizer:
        add_tiny_tokenizer(writer, n_vocab)

    def matrix(name: str, rows: int, columns: int, deviation: float, type_name: str) -> None:
        weights = rng.normal(0.0, deviation, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType[(types or {}).get(name.split(".")[-2], type_name)]
        writer.add_tensor(name, quantize(weights, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, (1 + rng.normal(0.0, 0.1, n_embd)).astype(np.float32))

    # With inputs of unit size, a deviation of 1/sqrt(columns) keeps the size and 2/sqrt(columns) doubles it.
    head = 2 / n_embd**0.5
    matrix("token_embd.weight", n_vocab, n_embd, head, embd_type or weight_type)
    for layer in range(n_layer):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        matrix(block + "attn_q.weight", n_head * head_dim, n_embd, n_embd**-0.5, weight_type)
        matrix(block + "attn_k.weight", n_head_kv * head_dim, n_embd, n_embd**-0.5, weight_type)
        matrix(block + "attn_v.weight", n_head_kv * head_dim, n_embd, n_embd**-0.5, weight_type)
        matrix(block + "attn_output.weight", n_embd, n_head * head_dim, (n_head * head_dim) ** -0.5, weight_type)
        norm(block + "ffn_norm.weight")
        matrix(block + "ffn_gate.weight", n_ff, n_embd, n_embd**-0.5, weight_type)
        matrix(block + "ffn_up.weight", n_ff, n_embd, n_embd**-0.5, weight_type)
        matrix(block + "ffn_down.weight", n_embd, n_ff, n_ff**-0.5, weight_type)
    norm("output_norm.weight")
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, np.float32))
    if not tied:
        matrix("output.weight", n_vocab, n_embd, head, embd_type or weight_type)
    finish(writer)
    return Path(path)


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
