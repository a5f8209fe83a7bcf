"""Class masks of tokens, and the lists of words behind two of their bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.decode import slop_tables
from backends.decode.slop_masks import MARKERS, leaves_thinking, mask_at, mask_of_text, masks, read_list, starts_of
from backends.decode.slop_tables import END, LEXICAL, OPENER, THINK_CLOSE, THINK_OPEN, TOOL_CLOSE, TOOL_OPEN, VISIBLE
from backends.errors import BadValue
from backends.model.gguf import GGUFFile
from backends.model.tokenizer import PRE_TYPES, Tokenizer

DATA = Path(__file__).parent.parent.parent.parent / "data"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(smollm2_path))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ""),
        ("  \t", ""),
        ("\u00a0", ""),
        ("Hello", "VISIBLE"),
        ("\n", "NEWLINE"),
        ("\n\n", "NEWLINE BLANK"),
        ("\r\n", "NEWLINE"),
        ("\n  \n", "NEWLINE"),
        (".", "CLAUSE VISIBLE"),
        ('."', "CLAUSE VISIBLE"),
        ("?)", "CLAUSE VISIBLE"),
        (".”\n\n", "NEWLINE BLANK CLAUSE VISIBLE"),
        ("...", "CLAUSE VISIBLE"),
        (".5", "VISIBLE"),
        (")", "VISIBLE"),
        (" —", "DASH VISIBLE"),
        ("–", "DASH VISIBLE"),
        (" --", "DASH VISIBLE"),
        ("--", "VISIBLE"),
        ("-", "BULLET VISIBLE"),
        (" *", "BULLET VISIBLE"),
        ("+\n", "NEWLINE BULLET VISIBLE"),
        ("•", "BULLET VISIBLE"),
        ("#", "HEADING VISIBLE"),
        (" ######", "HEADING VISIBLE"),
        ("#######", "VISIBLE"),
        ("#a", "VISIBLE"),
        ("**", "BOLD VISIBLE"),
        (":**", "BOLD VISIBLE"),
        (" ```", "FENCE VISIBLE"),
        ("~~~~", "FENCE VISIBLE"),
        ("``", "VISIBLE"),
        ("✅", "EMOJI VISIBLE"),
        (" 😀", "EMOJI VISIBLE"),
        ("→", "VISIBLE"),
        ("“", "VISIBLE"),
        ("é", "VISIBLE"),
        (".”\u3000", "CLAUSE VISIBLE"),
        ("!」", "CLAUSE VISIBLE"),
        (".\u2028", "CLAUSE VISIBLE"),
        (".（", "VISIBLE"),
    ],
)
def test_mask_of_text(text: str, names: str) -> None:
    assert mask_of_text(text.encode()) == sum(getattr(slop_tables, name) for name in names.split())


def test_pieces_of_characters() -> None:
    assert mask_of_text(b"\xf0\x9f\x98") == slop_tables.EMOJI | VISIBLE
    assert mask_of_text(b"\xe2\x80") == VISIBLE


def tokenizer_of(*tokens: tuple[str, int], end: int | None = None) -> Tokenizer:
    texts = [text for text, _ in tokens]
    return Tokenizer(texts, [kind for _, kind in tokens], [], PRE_TYPES["smollm"], end_ids=frozenset() if end is None else frozenset({end}))


def test_markers_are_single_tokens_of_any_type() -> None:
    tokenizer = tokenizer_of(
        ("<think>", CONTROL), ("</think>", USER_DEFINED), ("<tool_call>", NORMAL), ("</tool_call>", CONTROL), ("<other>", CONTROL), ("x", UNUSED)
    )
    expected = [THINK_OPEN | VISIBLE, THINK_CLOSE | VISIBLE, TOOL_OPEN | VISIBLE, TOOL_CLOSE | VISIBLE, 0, 0]
    assert masks(tokenizer).tolist() == expected
    assert set(MARKERS.values()) == {THINK_OPEN, THINK_CLOSE, TOOL_OPEN, TOOL_CLOSE}


def test_end_and_ids_outside() -> None:
    tokenizer = tokenizer_of(("a", NORMAL), ("<|im_end|>", CONTROL), end=1)
    found = masks(tokenizer)
    assert found.dtype == np.uint32
    assert [mask_at(found, token) for token in (-1, 0, 1, 2, 2**31)] == [0, VISIBLE, END, 0, 0]


def test_words_and_phrases(smollm2: Tokenizer) -> None:
    def texts(phrase: str) -> list[str]:
        return sorted(smollm2.decode([token]) for token in starts_of(smollm2, phrase))

    assert texts("delve") == [" delve"]
    assert texts("Sure") == texts("sure") == [" Sure", " sure", "Sure"]
    assert texts("testament to") == [" Testament", " testament"]  # not "test", which starts it too
    assert texts("here's") == [" Here", " here", "Here", "here"]
    assert texts("in conclusion") == texts("I think") == []  # fewer than 4 letters
    assert texts("it") == [" It", " it", "It", "it"]  # a word whole
    found = masks(smollm2, ["testament to"], ["sure"])
    assert {smollm2.decode([token]) for token in np.flatnonzero(found & LEXICAL).tolist()} == {" Testament", " testament"}
    assert {smollm2.decode([token]) for token in np.flatnonzero(found & OPENER).tolist()} == {" Sure", " sure", "Sure"}


def test_a_phrase_that_no_token_starts(smollm2: Tokenizer) -> None:
    with pytest.raises(BadValue, match="slop openers: no token of the model starts 'in conclusion'; allowed: a word that is one token, or a phrase"):
        masks(smollm2, [], ["in conclusion"])
    with pytest.raises(BadValue, match=r"^my/words.txt: no token of the model starts 'bbb") as failure:
        masks(smollm2, ["b" * 10**6], names=("my/words.txt", None))
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize("name", ["slop_lexicon.txt", "slop_openers.txt"])
def test_the_bundled_lists_are_for_the_bundled_model(smollm2: Tokenizer, name: str) -> None:
    """Every line marks something, and nothing that plain prose is full of."""
    phrases = read_list(DATA / name)
    assert len(phrases) > 30
    bit = LEXICAL if name == "slop_lexicon.txt" else OPENER
    found = masks(smollm2, phrases) if bit == LEXICAL else masks(smollm2, [], phrases)
    text = (DATA / "documents" / "walk.txt").read_text(encoding="utf-8")
    ids = np.array(smollm2.encode(text, special=False))
    share = np.count_nonzero(found[ids] & bit) / len(ids)
    assert share < (0.001 if bit == LEXICAL else 0.01)  # openers cost something only where a clause begins
    assert np.count_nonzero(found & bit) < 4 * len(phrases)


def test_read_list(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes("\ufeff# comment\n\n  delve \r\ntestament   to # why\n".encode())
    assert read_list(path) == ["delve", "testament to"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"delve\n\xff\n", "not UTF-8 at byte 6"),
        (b"delve\nrealm\nDelve\n", "lines 1 and 3 are both 'Delve'"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadValue) as failure:
        read_list(path)
    assert str(path) in str(failure.value) and says in str(failure.value) and "\n" not in str(failure.value)


def test_leaves_thinking() -> None:
    names = ("<think>", "</think>", "<|im_start|>", "<tool_call>", "</tool_call>")
    tokenizer = tokenizer_of(*((name, CONTROL) for name in names), ("a", NORMAL))
    found = masks(tokenizer)
    open_, close, turn, call, called, text = range(6)
    for prompt, thinking in (
        ([], False),
        ([turn, text], False),
        ([turn, text, open_, text], True),
        ([turn, open_, close, text], False),
        ([open_, text, turn, text], False),  # a user's talk of markers
        ([close, open_], True),
        ([turn, open_, text, call, text, called], True),  # talk of calls while thinking
        ([turn, open_, close, call], False),
    ):
        assert leaves_thinking(tokenizer, found, prompt) is thinking, prompt
