"""GGUF files: the same content as the `gguf` package reads, and one clear error for everything that can be broken."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import quantize

from backends.errors import BadValue, ModelError
from backends.model.gguf import TENSOR_TYPES, GGUFFile
from backends.model.template import ChatTemplate
from backends.model.tokenizer import Tokenizer
from tests.tiny import finish, write_tiny_llama

Q, U = struct.Struct("<Q").pack, struct.Struct("<I").pack


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return Q(len(raw)) + raw


def key(name: bytes | str, kind: int, value: bytes) -> bytes:
    return text(name) + U(kind) + value


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + U(len(shape)) + b"".join(map(Q, shape)) + U(kind) + Q(offset)


def build(keys: Sequence[bytes] = (), tensors: Sequence[bytes] = (), data: bytes = b"", *, version: int = 3) -> bytes:
    head = b"GGUF" + U(version) + Q(len(tensors)) + Q(len(keys)) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to_file(content: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        return path

    return to_file


def reader_view(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors by the gguf package's reader."""
    reader = gguf.GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return metadata, {t.name: (t.tensor_type.name, tuple(map(int, t.shape)), np.asarray(t.data).tobytes()) for t in reader.tensors}


def our_view(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    file = GGUFFile.open(path)
    return file.metadata, {t.name: (t.type, t.shape, t.data.tobytes()) for t in file.tensors.values()}


def test_same_content_as_the_gguf_package_reads(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind_name, value in [("uint8", 255), ("int8", -128), ("uint16", 65535), ("int16", -2), ("uint32", 2**32 - 1), ("int32", -(2**31)),
                             ("uint64", 2**64 - 1), ("int64", -(2**63)), ("float32", 0.1), ("float64", 0.1), ("bool", True)]:  # fmt: skip
        getattr(writer, "add_" + kind_name)("a." + kind_name, value)
    for name, text_value in [("text", "zwölf 😀\n"), ("empty", "")]:
        writer.add_string(name, text_value)
    arrays: list[tuple[str, list[Any]]] = [("ints", [1, -2, 3]), ("floats", [0.5, -1.25]), ("bools", [True, False]), ("texts", ["a", "", "ß"])]
    for name, values in arrays:
        writer.add_array(name, values)
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "MXFP4"):
        kind = gguf.GGMLQuantizationType[name]
        weights = np.random.default_rng(len(name)).normal(size=(3, 256)).astype(np.float32)
        writer.add_tensor("t." + name, quantize(weights, kind), raw_dtype=kind)
    writer.add_tensor("one", np.ones(5, np.float32))
    writer.add_tensor("cube", np.ones((2, 3, 4), np.float16))
    finish(writer)
    assert our_view(path) == reader_view(path)
    file = GGUFFile.open(path)
    assert file.tensors["t.Q4_1"].columns == 256 and file.tensors["t.Q4_1"].rows == 3 and file.tensors["t.Q4_1"].row_bytes == 160
    assert file.tensors["cube"].shape == (4, 3, 2) and file.tensors["cube"].rows == 6 and file.tensors["one"].rows == 1
    assert not file.tensors["one"].data.flags.writeable


@pytest.mark.parametrize("weight_type", ["F32", "Q4_0", "Q4_1", "Q8_0"])
def test_tiny_models_read_the_same(tmp_path: Path, weight_type: str) -> None:
    path = write_tiny_llama(tmp_path / "t.gguf", weight_type=weight_type, n_vocab=77)
    assert our_view(path) == reader_view(path)
    again = write_tiny_llama(tmp_path / "again.gguf", weight_type=weight_type, n_vocab=77)
    assert path.read_bytes() == again.read_bytes()


def test_smollm2(smollm2_path: Path) -> None:
    began = time.perf_counter()
    file = GGUFFile.open(smollm2_path)
    assert time.perf_counter() - began < 1.0  # about 0.03 s; the bound leaves room for a cold disk
    assert len(file.tensors) == 272 and file.get("llama.block_count", int) == 30 and file.get("llama.rope.freq_base", float) == 100000.0
    reader = gguf.GGUFReader(smollm2_path)
    assert [t.name for t in reader.tensors] == list(file.tensors)
    for t in reader.tensors[::20]:
        assert np.array_equal(np.asarray(t.data).view(np.uint8).ravel(), file.tensors[t.name].data)


def test_type_table_agrees_with_the_gguf_package() -> None:
    known = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {kind: TENSOR_TYPES[kind] for kind in known} == known


def test_get(write: Callable[[bytes], Path]) -> None:
    file = GGUFFile.open(
        write(build([key("n", 4, U(7)), key("x", 6, struct.pack("<f", 0.5)), key("nan", 6, struct.pack("<f", float("nan"))), key("b", 7, b"\1"),
                     key("s", 8, text("hi")), key("l", 9, U(4) + Q(2) + U(1) + U(2)), key("e", 9, U(8) + Q(0))]))
    )  # fmt: skip
    assert file.get("n", int) == 7 and file.get("n", float) == 7.0 and file.get("x", float) == 0.5 and file.get("b", bool) is True
    assert file.get("s", str) == "hi" and file.get("absent", int, None) is None and file.get("absent", int, 3) == 3 and file.get("l", list) == [1, 2]
    assert file.get_list("l", int) == [1, 2] and file.get_list("l", float) == [1.0, 2.0] and file.get_list("e", str) == []
    assert file.get_list("absent", str, None) is None
    for name, kind, found in [("n", str, "7"), ("n", bool, "7"), ("x", int, "0.5"), ("b", int, "True"), ("b", float, "True"), ("s", int, "'hi'"),
                              ("nan", float, "nan"), ("l", int, r"\[1, 2\]")]:  # fmt: skip
        with pytest.raises(ModelError, match=rf"m\.gguf: {name} is {found}, wanted "):
            file.get(name, kind)
    with pytest.raises(ModelError, match="m.gguf: absent is missing, wanted a text"):
        file.get("absent", str)
    with pytest.raises(ModelError, match=r"l is \[1, 2\], wanted a text"):
        file.get_list("l", str)
    with pytest.raises(ModelError, match="wanted a list"):
        file.get_list("n", int)


def test_fingerprint_sees_header_size_and_weights(write: Callable[[bytes], Path]) -> None:
    def one(name: str, data: bytes) -> str:
        return GGUFFile.open(write(build([key("k", 8, text(name))], [tensor("t", [4])], data))).fingerprint()

    prints = [one("a", bytes(16)), one("b", bytes(16)), one("a", bytes(15) + b"\1"), one("a", bytes(20))]
    assert len(set(prints)) == 4 and prints[0] == one("a", bytes(16))


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short magic": (b"GG", "not a GGUF file"),
    "ggml": (b"lmgg" + bytes(50), "old GGML file"),
    "ggjt": (b"tjgg" + bytes(50), "old GGML file"),
    "safetensors": (Q(16) + b'{"a":{"dtype":1}}' + bytes(50), "safetensors"),
    "web page": (b"\n<!DOCTYPE html><html>", "a web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
    "zip": (b"PK\3\4" + bytes(50), "zip archive"),
    "zeros": (bytes(100), "zeros"),
    "magic only": (b"GGUF", "the header is cut off: the version"),
    "version 1": (build(version=1), "version 1; .*convert"),
    "version 99": (build(version=99), "version 99"),
    "big-endian": (build(version=3 << 24), "big-endian"),
    "no counts": (b"GGUF" + U(3) + Q(0)[:5], "number of tensors at byte 8 takes 8 bytes, the file has 5 more"),
    "many tensors": (b"GGUF" + U(3) + Q(2**62) + Q(0), "claims 4611686018427387904 tensors"),
    "many keys": (b"GGUF" + U(3) + Q(0) + Q(2**40), "claims 1099511627776 metadata keys"),
    "key too long": (build([Q(2**60)]), "name of metadata key 0 at byte 32 claims 1152921504606846976 bytes"),
    "key cut off": (build([Q(5000)]), "cut off: the name of metadata key 0"),
    "key not UTF-8": (build([key(b"a\xff", 4, U(1))]), "metadata key 0 at byte 32 is not UTF-8"),
    "no key name": (build([key("", 4, U(1))]), "has no name"),
    "key twice": (build([key("k", 4, U(1)), key("k", 4, U(2))]), "second 'k'"),
    "value type": (build([key("k", 77, U(1))]), "value of 'k' has the unknown type 77"),
    "bool": (build([key("k", 7, b"\2")]), "'k' is the byte 2, wanted a bool"),
    "value cut off": (build([key("k", 10, b"")], version=3)[:40], "cut off: the value of 'k'"),
    "text cut off": (build([key("k", 8, Q(9999) + b"abc")]), "cut off: the value of 'k'"),
    "text not UTF-8": (build([key("k", 8, text(b"\xc3("))]), "not UTF-8"),
    "array type": (build([key("k", 9, U(55) + Q(1))]), "array of the unknown type 55"),
    "array of arrays": (build([key("k", 9, U(9) + Q(1))]), "array of arrays"),
    "array huge": (build([key("k", 9, U(0) + Q(2**61))]), "claims 2305843009213693952 items"),
    "array cut off": (build([key("k", 9, U(4) + Q(1000))]), "cut off: the value of 'k' at byte 49 takes 4000 bytes"),
    "array bools": (build([key("k", 9, U(7) + Q(2) + b"\1\3")]), "has the byte 3"),
    "texts cut off": (build([key("k", 9, U(8) + Q(3) + text("a") + Q(2**63))]), "item 1 reaches beyond"),
    "texts not UTF-8": (build([key("k", 9, U(8) + Q(2) + text("a") + text(b"\xff"))]), "item 1 at byte .* is not UTF-8"),
    "alignment": (build([key("general.alignment", 4, U(24))]), "general.alignment is 24"),
    "alignment zero": (build([key("general.alignment", 4, U(0))]), "general.alignment is 0"),
    "alignment text": (build([key("general.alignment", 8, text("x"))]), "general.alignment is 'x'"),
    "no tensor name": (build([], [tensor("", [1])], bytes(4)), "tensor 0 has no name"),
    "tensor twice": (build([], [tensor("a", [8]), tensor("a", [8], 0, 32)], bytes(64)), "two tensors 'a'"),
    "no dimensions": (build([], [tensor("a", []) + bytes(32)], bytes(4)), "'a' has 0 dimensions"),
    "five dimensions": (build([], [tensor("a", [1] * 5)], bytes(4)), "'a' has 5 dimensions"),
    "zero dimension": (build([], [tensor("a", [4, 0])], bytes(4)), r"'a' has the impossible shape \[4, 0\]"),
    "shape overflow": (build([], [tensor("a", [2**32, 2**32])], bytes(4)), "impossible shape"),
    "tensor type": (build([], [tensor("a", [4], 99)], bytes(4)), "tensor 'a' has the unknown type 99"),
    "removed type": (build([], [tensor("a", [32], 31)], bytes(99)), r"'a' has the type Q4_0_4_4 \(31\)"),
    "part of a block": (build([], [tensor("a", [48], 3)], bytes(99)), "'a' has rows of 48 elements, no multiple of the 32 of a Q4_1 block"),
    "misaligned": (build([], [tensor("a", [4], 0, 8)], bytes(99)), "offset 8, no multiple of the alignment 32"),
    "overlap": (build([], [tensor("a", [16]), tensor("b", [4], 0, 32)], bytes(99)), "'b' at offset 32 overlaps 'a', which ends at 64"),
    "data cut off": (build([], [tensor("a", [16])], bytes(50)), "'a' ends at byte 128, the file at 114: 14 bytes are missing"),
    "offset beyond": (build([], [tensor("a", [16], 0, 2**40)], bytes(64)), "cut off"),
    "tensor cut off": (build([], [text("a") + U(1)])[:40], "cut off"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(write: Callable[[bytes], Path], name: str) -> None:
    content, message = BROKEN[name]
    with pytest.raises(ModelError, match=message) as caught:
        GGUFFile.open(write(content))
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_version_2_and_no_tensors(write: Callable[[bytes], Path]) -> None:
    file = GGUFFile.open(write(build([key("k", 4, U(5))], version=2)))
    assert file.metadata == {"k": 5} and file.tensors == {} and len(file.fingerprint()) == 64


def test_alignment_of_the_file_is_used(write: Callable[[bytes], Path]) -> None:
    content = build([key("general.alignment", 4, U(64))], [tensor("a", [2])])
    content += bytes(-len(content) % 64) + struct.pack("<2f", 1, 2)
    assert GGUFFile.open(write(content)).tensors["a"].data.view(np.float32).tolist() == [1, 2]


@pytest.mark.parametrize("name", ["absent.gguf", ".", "nul\0.gguf"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadValue, match="model "):
        GGUFFile.open(str(tmp_path / name))


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadValue, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")


def test_fuzz(tmp_path: Path) -> None:
    """Random damage to a model's header ends in success or one of our errors, quickly."""
    whole = write_tiny_llama(tmp_path / "t.gguf", n_layer=1, weight_type="Q4_0", n_embd=32, n_head=2, n_head_kv=1, n_ff=32).read_bytes()
    header = whole.index(b"output_norm.weight") + 60
    path, draw, outcomes = tmp_path / "f.gguf", random.Random(1), {"ok": 0, "error": 0}
    slowest = 0.0
    for _ in range(4000):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 1, 2, 5, 20])):
            at = draw.randrange(header)
            how = draw.random()
            if how < 0.4:
                content[at] ^= 1 << draw.randrange(8)
            elif how < 0.6:
                content[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
            elif how < 0.8:
                content[at : at + 8] = Q(draw.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1, draw.getrandbits(24)]))
            elif how < 0.9:
                del content[at : at + draw.randrange(1, 9)]
            else:
                content[at:at] = draw.randbytes(draw.randrange(1, 9))
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)
        began = time.perf_counter()
        try:
            file = GGUFFile.open(path)
            template = ChatTemplate.from_gguf(file, tokenizer := Tokenizer.from_gguf(file))
            tokenizer.decode(tokenizer.encode("<|im_start|>the é", special=True))
            if template:
                template.render([{"role": "user", "content": "a"}])
            outcomes["ok"] += 1
        except (ModelError, BadValue) as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            outcomes["error"] += 1
        slowest = max(slowest, time.perf_counter() - began)
    assert min(outcomes.values()) > 200 and slowest < 2
