"""Tokenizer: what llama.cpp gives for SmolLM2 (tests/golden/make_tokens.py), streams of bytes, and broken vocabularies."""

from __future__ import annotations

import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import BadValue, ModelError
from backends.model.gguf import GGUFFile
from backends.model.tokenizer import PRE_TYPES, StreamDecoder, Tokenizer
from tests.tiny import tiny_vocabulary, write_tiny_llama

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_tokens.json").read_text())


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(smollm2_path))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    return GGUFFile.open(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "t.gguf", n_vocab=300))


@pytest.mark.parametrize("case", GOLDEN["texts"], ids=lambda case: ascii(case["text"])[:30])
def test_ids_are_llama_cpps(smollm2: Tokenizer, case: dict[str, Any]) -> None:
    assert smollm2.encode(case["text"], special=False) == case["plain"]
    assert smollm2.encode(case["text"], special=True) == case["special"]
    assert smollm2.decode(case["plain"]) == case["text"]


def test_facts_are_llama_cpps(smollm2: Tokenizer) -> None:
    assert smollm2.n_vocab == len(smollm2.tokens) == GOLDEN["n_vocab"]
    assert sorted(smollm2.end_ids) == GOLDEN["end_ids"]
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.add_bos) == (GOLDEN["bos_id"], GOLDEN["eos_id"], GOLDEN["add_bos"])
    assert (smollm2.bos_text, smollm2.eos_text) == ("<|im_start|>", "<|im_end|>")
    pieces = [smollm2.token_bytes(token) for token in range(smollm2.n_vocab)]
    assert hashlib.sha256(b"".join(len(p).to_bytes(4, "little") + p for p in pieces)).hexdigest() == GOLDEN["pieces_sha256"]


def test_loading_is_quick(smollm2_path: Path) -> None:
    def load() -> float:
        began = time.perf_counter()
        Tokenizer.from_gguf(GGUFFile.open(smollm2_path))
        return time.perf_counter() - began

    assert min(load() for _ in range(3)) < 0.4  # about 0.1 s


# SmolLM2 has no token for the first byte of the planes from 4 on, nor for six ASCII control characters.
@given(st.text(st.characters(max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d", exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text, special=False)
    assert smollm2.decode(ids) == text
    assert not any(smollm2.token_bytes(token) == b"" for token in ids)  # plain text never makes a control token


@pytest.mark.parametrize("text", ["\ud83d", "a\udc80b", "\ud800" * 3])
@pytest.mark.parametrize("special", [True, False])
def test_half_surrogates_are_refused(smollm2: Tokenizer, text: str, special: bool) -> None:
    with pytest.raises(BadValue, match="surrogate"):
        smollm2.encode(text, special)


@pytest.mark.parametrize("token", [-1, 49152])
def test_ids_outside_the_vocabulary_are_refused(smollm2: Tokenizer, token: int) -> None:
    with pytest.raises(BadValue, match=f"token id {token} .*0 to 49151"):
        smollm2.token_bytes(token)


@given(st.lists(st.lists(st.integers(0, 299), max_size=6), max_size=20))
def test_stream_decoder_equals_decoding_at_once(tiny: GGUFFile, pieces: list[list[int]]) -> None:
    tokenizer = Tokenizer.from_gguf(tiny)
    decoder = StreamDecoder(tokenizer)
    got = "".join(decoder.push(piece) for piece in pieces) + decoder.flush()
    whole = b"".join(tokenizer.token_bytes(token) for piece in pieces for token in piece)
    assert got == whole.decode("utf-8", errors="replace")
    assert decoder.flush() == ""


def test_stream_decoder_holds_back_half_characters(smollm2: Tokenizer) -> None:
    decoder, ids = StreamDecoder(smollm2), smollm2.encode("😀!", special=False)
    assert len(ids) > 2 and [decoder.push([token]) for token in ids] == [""] * (len(ids) - 2) + ["😀", "!"]
    assert decoder.push(ids[:1]) == "" and decoder.flush() == "\ufffd"
    assert decoder.push(ids) == "😀!"  # fresh after a flush


def test_random_bytes_stream(tiny: GGUFFile) -> None:
    tokenizer, draw = Tokenizer.from_gguf(tiny), random.Random(3)
    for _ in range(50):
        ids = [draw.randrange(300) for _ in range(200)]
        decoder = StreamDecoder(tokenizer)
        assert "".join(decoder.push([token]) for token in ids) + decoder.flush() == tokenizer.decode(ids)


def with_changes(file: GGUFFile, **changes: Any) -> GGUFFile:
    """The same file with other `tokenizer.ggml.` values; None takes a key away."""
    copy = GGUFFile.open(file.path)
    for name, value in changes.items():
        copy.metadata["tokenizer.ggml." + name] = value
    copy.metadata = {name: value for name, value in copy.metadata.items() if value is not None}
    return copy


TOKENS, TYPES, MERGES = tiny_vocabulary(300)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama', supported is 'gpt2'"),
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"pre": "default"}, "tokenizer.ggml.pre is 'default', supported are smollm, "),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, "token_type has 300 items, tokenizer.ggml.tokens 0"),
        ({"tokens": [], "token_type": [], "bos_token_id": None, "eos_token_id": None}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": [1] * 300}, "wanted a text"),
        ({"tokens": TOKENS[:-1]}, "token_type has 300 items, tokenizer.ggml.tokens 299"),
        ({"tokens": [*TOKENS[:-1], TOKENS[5]]}, "contradicts itself: tokenizer.ggml.tokens has .* twice"),
        ({"merges": [*MERGES, "q Q"]}, "merges has 'q Q', but 'qQ' is no token"),
        ({"merges": [*MERGES, "xyzzy a"]}, "but 'xyzzy' is no token"),
        ({"merges": ["nospace"]}, "merges has 'nospace', wanted two tokens"),
        ({"merges": ["a b c"]}, "wanted two tokens"),
        ({"merges": None}, "merges is missing"),
        ({"eos_token_id": 300}, "eos_token_id is 300, the vocabulary has ids 0 to 299"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
        ({"add_bos_token": 1}, "add_bos_token is 1, wanted true or false"),
    ],
)
def test_broken_vocabularies(tiny: GGUFFile, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Tokenizer.from_gguf(with_changes(tiny, **changes))
    assert "t.gguf" in str(caught.value)


def test_kinds_of_tokens(tiny: GGUFFile) -> None:
    """User-defined tokens always match and show; control tokens match on demand; END texts are control whatever the type."""
    tokens, types = list(TOKENS), list(TYPES)
    for index, (name, kind) in {290: ("<tool>", 4), 291: ("<|eot_id|>", 1), 292: ("<ctrl>", 3), 293: ("", 5), 294: ("", 5)}.items():
        tokens[index], types[index] = name, kind
    merges = [merge for merge in MERGES if merge.replace(" ", "") in tokens]
    tokenizer = Tokenizer.from_gguf(with_changes(tiny, tokens=tokens, token_type=types, merges=merges))
    text = "a<tool>b<ctrl><|eot_id|>"
    special = tokenizer.encode(text, special=True)
    plain = tokenizer.encode(text, special=False)
    assert [token for token in special if token >= 290] == [290, 292, 291] and tokenizer.decode(special) == "a<tool>b"
    assert [token for token in plain if token >= 290] == [290] and tokenizer.decode(plain) == text
    assert tokenizer.end_ids == {0, 2, 291} and tokenizer.token_bytes(293) == b""


def test_bos_and_end_keys(tiny: GGUFFile) -> None:
    tokenizer = Tokenizer.from_gguf(with_changes(tiny, add_bos_token=True, eot_token_id=7, eom_token_id=8))
    assert tokenizer.add_bos and tokenizer.end_ids == {0, 2, 7, 8} and tokenizer.token_bytes(7) == b""
    assert not Tokenizer.from_gguf(with_changes(tiny, add_bos_token=True, bos_token_id=None)).add_bos
    assert Tokenizer.from_gguf(with_changes(tiny, pre="llama-bpe", add_bos_token=None)).add_bos
    without = Tokenizer.from_gguf(with_changes(tiny, bos_token_id=None, eos_token_id=None, token_type=None, add_bos_token=None))
    assert (without.bos_id, without.eos_id, without.bos_text, without.eos_text, without.add_bos) == (None, None, "", "", False)


def test_end_inside_a_turn(tiny: GGUFFile) -> None:
    tokens = [*TOKENS[:-3], "<|end|>", "<|return|>", "<|call|>"]
    merges = [merge for merge in MERGES if merge.replace(" ", "") in tokens]
    assert Tokenizer.from_gguf(with_changes(tiny, tokens=tokens, merges=merges)).end_ids == {0, 2, 298, 299}


@pytest.mark.parametrize("pre", PRE_TYPES)
@pytest.mark.parametrize("text", ["a 12345", "it's HE'LL", "\r\n\r\n  x  ", "नमस्ते é"])
def test_every_pre_type_loads_and_comes_back(tiny: GGUFFile, pre: str, text: str) -> None:
    tokenizer = Tokenizer.from_gguf(with_changes(tiny, pre=pre))
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_bytes_without_token_are_left_out(smollm2: Tokenizer) -> None:
    """Recorded from llama.cpp: U+40000 is F1 80 80 80, and SmolLM2 has no F1."""
    assert smollm2.encode("a\U00040000b", special=False) == [81, 218, 218, 218, 82]


def test_composed_characters(tiny: GGUFFile) -> None:
    """The qwen families compose characters first, llama.cpp's smollm does not."""
    two = "e\u0301"
    for pre, wanted in {"smollm": two, "qwen2": "é", "qwen35": "é", "llama-bpe": two}.items():
        tokenizer = Tokenizer.from_gguf(with_changes(tiny, pre=pre))
        assert tokenizer.decode(tokenizer.encode(two, special=False)) == wanted
