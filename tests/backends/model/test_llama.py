"""Metadata and tensors that architecture llama cannot run: each ends in one line that names the thing, its value and what is wanted."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.gguf_writer import GGUFValue

import tests.tiny as tiny
from backends.errors import ModelError
from backends.model.gguf import GGUFFile
from backends.model.llama import Llama

FLOAT, UINT, TEXT = gguf.GGUFValueType.FLOAT64, gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING


def write(path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> GGUFFile:
    """A tiny model with metadata or tensors of its own; None takes one away."""
    finish = tiny.finish

    def changed(writer: Any) -> None:
        for key, value in (values or {}).items():
            kind = TEXT if isinstance(value, str) else UINT if isinstance(value, int) else FLOAT
            writer.kv_data[0].pop("llama." + key, None)
            if value is not None:
                writer.kv_data[0]["llama." + key] = GGUFValue(value, kind)
        for name, array in (tensors or {}).items():
            writer.tensors[0].pop(name, None)
            if array is not None:
                writer.add_tensor(name, array)
        finish(writer)

    monkeypatch.setattr(tiny, "finish", changed)
    return GGUFFile.open(tiny.write_tiny_llama(path / "tiny.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("attention.head_count", 0, "llama.attention.head_count is 0; wanted 1..64"),
        ("attention.head_count", 65, "llama.attention.head_count is 65; wanted 1..64"),
        ("attention.head_count", None, "llama.attention.head_count is missing, wanted an integer"),
        ("attention.head_count_kv", 3, "llama.attention.head_count 4 is not supported; wanted a multiple of head_count_kv 3"),
        ("attention.head_count_kv", 0, "llama.attention.head_count_kv is 0; wanted"),
        ("attention.key_length", 24, "head size 24 is not supported; wanted a multiple of 16 up to 256"),
        ("attention.key_length", 512, "head size 512 is not supported"),
        ("attention.value_length", 32, "llama.attention.value_length 32 is not supported; wanted the key length 16"),
        ("rope.dimension_count", 7, "llama.rope.dimension_count 7 is not supported; wanted even and at most the head size 16"),
        ("rope.dimension_count", 18, "llama.rope.dimension_count 18 is not supported"),
        ("rope.dimension_count", 0, "llama.rope.dimension_count is 0; wanted"),
        ("context_length", 1, "llama.context_length 1 is not supported; wanted at least 2"),
        ("context_length", 2**31, "llama.context_length is 2147483648; wanted"),
        ("block_count", 0, "llama.block_count is 0; wanted 1..4096"),
        ("block_count", 1, "tensor 'blk.1.attn_norm.weight' is not one"),
        ("block_count", 3, "tensor 'blk.2.attn_norm.weight' is missing"),
        ("embedding_length", 48, "head size 12 is not supported"),
        ("feed_forward_length", 48, "llama.feed_forward_length 48 is not supported; wanted a multiple of 32"),
        ("expert_count", 2, "llama.expert_count is 2; mixtures"),
        ("rope.scaling.type", "yarn", "llama.rope.scaling.type is 'yarn'; supported: 'none'"),
        ("rope.scaling.factor", 4.0, "llama.rope.scaling.factor is 4.0; supported: 1"),
        ("rope.scale_linear", 0.5, "llama.rope.scale_linear is 0.5; supported: 1"),
        *(
            (key, value, f"llama.{key} is ")
            for key in ("rope.freq_base", "attention.layer_norm_rms_epsilon")
            for value in (0.0, -1.0, math.nan, math.inf, 1e-300, 1e300, "x")
        ),
    ],
)
def test_metadata(key: str, value: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, monkeypatch, {key: value})
    with pytest.raises(ModelError, match="^" + re.escape(f"{file.path}: {says}")):
        Llama(file)


@pytest.mark.parametrize(
    "values", [{"rope.scaling.factor": 1.0}, {"rope.scaling.factor": 0.0}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}]
)
def test_no_scaling(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Llama(write(tmp_path, monkeypatch, values))


NORM = "blk.0.attn_norm.weight"


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        (NORM, None, f"tensor '{NORM}' is missing"),
        (NORM, np.ones(64, np.float16), f"tensor '{NORM}' has type F16; supported: F32"),
        (NORM, np.ones(32, np.float32), f"tensor '{NORM}' has shape [32]; wanted [64]"),
        ("blk.0.attn_q.bias", np.ones(64, np.float32), "tensor 'blk.0.attn_q.bias' is not one that architecture llama uses"),
        *(
            ("rope_freqs.weight", np.array([1, 1, 1, bad, 1, 1, 1, 1], np.float32), f"tensor 'rope_freqs.weight' holds {bad}; wanted positive")
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
    ],
)
def test_tensors(name: str, array: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, monkeypatch, tensors={name: array})
    with pytest.raises(ModelError, match="^" + re.escape(f"{file.path}: {says}")):
        Llama(file)
