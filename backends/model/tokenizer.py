"""Text to token ids and back, from the vocabulary inside a GGUF file, by the `tokenizers` library.

Only byte-level BPE (`tokenizer.ggml.model` "gpt2") is known. How text is cut before the merges is named by
`tokenizer.ggml.pre`; each name is one line of PRE_TYPES. Special tokens and END ids follow llama.cpp (src/llama-vocab.cpp).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BaseTokenizer
from tokenizers.models import BPE

from backends.errors import BadValue, ModelError
from backends.model.gguf import GGUFFile


@dataclass(frozen=True, slots=True)
class PreType:
    """How a family of models prepares text for BPE.

    splits: regular expressions (Oniguruma), applied one after the other, that cut text into words. nfc: compose characters
    first. ignore_merges: a word that is itself a token needs no merges. add_bos: the default of add_bos_token.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}{digits}| ?[^\s{not_letter}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

PRE_TYPES: Final[dict[str, PreType]] = {
    "smollm": PreType((r"\p{N}", _GPT2)),
    "qwen2": PreType((_CL100K.format(letter=r"\p{L}", not_letter=r"\p{L}", digits=""),), nfc=True),
    "qwen35": PreType((_CL100K.format(letter=r"[\p{L}\p{M}]", not_letter=r"\p{L}\p{M}", digits=""),), nfc=True),
    "llama-bpe": PreType((_CL100K.format(letter=r"\p{L}", not_letter=r"\p{L}", digits="{1,3}"),), ignore_merges=True, add_bos=True),
}

# tokenizer.ggml.token_type (GGUF specification).
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

# Texts of tokens that end a turn, and fill-in-the-middle marks after which no text follows: llama.cpp's lists.
_END_TEXTS: Final = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
    "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>",
    "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
}  # fmt: skip
_END_KEYS: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: a byte that prints in Latin-1 is itself, the others are U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES: Final = _byte_alphabet()


class Tokenizer:
    """A model's vocabulary.

    tokens: the text of every token as stored in the file. end_ids: tokens that end a generation (EOS, end of turn).
    bos_id, eos_id: None where the file names none. add_bos: a raw prompt begins with bos_id.
    """

    __slots__ = ("_plain", "_special", "_types", "add_bos", "bos_id", "end_ids", "eos_id", "tokens")

    def __init__(
        self,
        tokens: Sequence[str],
        types: Sequence[int],
        merges: Iterable[tuple[str, str]],
        pre: PreType,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        end_ids: frozenset[int] = frozenset(),
        add_bos: bool = False,
    ) -> None:
        """Build the encoder. Raises ValueError on a vocabulary that contradicts itself; `from_gguf` says where."""
        self.tokens: Final = tuple(tokens)
        self.bos_id, self.eos_id, self.end_ids, self.add_bos = bos_id, eos_id, end_ids, add_bos
        self._types = list(types)
        for token in end_ids:
            if self._types[token] != _USER_DEFINED:
                self._types[token] = _CONTROL  # whatever the file says: it must neither show in text nor come from plain text
        model = _bpe(self.tokens, list(merges), pre.ignore_merges)
        # Added tokens match wherever their text stands, so each reading of special texts has an encoder; they share the model.
        self._plain = _encoder(model, pre, [t for t, kind in zip(self.tokens, self._types, strict=True) if kind == _USER_DEFINED])
        self._special = _encoder(model, pre, [t for t, k in zip(self.tokens, self._types, strict=True) if k in (_UNKNOWN, _CONTROL, _USER_DEFINED)])

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Tokenizer:
        """The tokenizer of an opened model. Raises ModelError where its vocabulary is unknown or contradicts itself."""
        model = file.get("tokenizer.ggml.model", str)
        if model != "gpt2":
            raise ModelError(f"{file.path}: tokenizer.ggml.model is {model!r}, supported is 'gpt2' (byte-level BPE)")
        pre_name = file.get("tokenizer.ggml.pre", str)
        if pre_name not in PRE_TYPES:
            raise ModelError(f"{file.path}: tokenizer.ggml.pre is {pre_name!r}, supported are {', '.join(PRE_TYPES)}")
        pre = PRE_TYPES[pre_name]
        # A token without text gets llama.cpp's stand-in, so that padded vocabularies have no duplicates.
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(file.get_list("tokenizer.ggml.tokens", str))]
        types = file.get_list("tokenizer.ggml.token_type", int, None)
        types = [1] * len(tokens) if types is None else types
        if len(types) != len(tokens):
            raise ModelError(f"{file.path}: tokenizer.ggml.token_type has {len(types)} items, tokenizer.ggml.tokens {len(tokens)}")
        ids = {name: _token_id(file, f"tokenizer.ggml.{name}_token_id", len(tokens)) for name in ("bos", *_END_KEYS)}
        try:
            return cls(
                tokens,
                types,
                [_pair(merge) for merge in file.get_list("tokenizer.ggml.merges", str)],
                pre,
                bos_id=ids["bos"],
                eos_id=ids["eos"],
                end_ids=_end_ids(tokens, [ids[name] for name in _END_KEYS]),
                add_bos=file.get("tokenizer.ggml.add_bos_token", bool, pre.add_bos) and ids["bos"] is not None,
            )
        except ValueError as error:
            raise ModelError(f"{file.path}: the vocabulary contradicts itself: {error}") from None

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def bos_text(self) -> str:
        """The text of the BOS token, for chat templates; empty where there is none."""
        return "" if self.bos_id is None else self.tokens[self.bos_id]

    @property
    def eos_text(self) -> str:
        """The text of the EOS token, for chat templates; empty where there is none."""
        return "" if self.eos_id is None else self.tokens[self.eos_id]

    def encode(self, text: str, special: bool) -> list[int]:
        """The token ids of `text`; no BOS is added.

        special: texts of control tokens (such as <|im_start|>) become those tokens, as a rendered template needs; otherwise
        they are text like any other. User-defined tokens are found either way. A byte that the vocabulary has no token
        for is left out, as in llama.cpp. Raises BadValue for a text that is not valid Unicode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadValue(f"text: character {error.start} is {text[error.start]!a}, half of a surrogate pair; allowed: valid Unicode") from None
        ids: list[int] = (self._special if special else self._plain).encode(text, add_special_tokens=False).ids
        return ids

    def is_control(self, token: int) -> bool:
        """Whether a token is a control token, such as the ends of turns; it adds nothing to text."""
        return self._types[token] == _CONTROL

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to generated text: none for control, unknown and unused tokens."""
        if not 0 <= token < len(self.tokens):
            raise BadValue(f"token id {token} is not allowed; allowed: 0 to {len(self.tokens) - 1}")
        kind, text = self._types[token], self.tokens[token]
        if kind in (_UNKNOWN, _CONTROL, _UNUSED):
            return b""
        if kind == _USER_DEFINED:
            return text.encode("utf-8")
        try:
            return bytes([_BYTES[char] for char in text])
        except KeyError:  # not in the byte alphabet: the text itself, as `tokenizers` has it
            return text.encode("utf-8")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


class StreamDecoder:
    """Token ids to text, piece by piece; all pieces together equal `Tokenizer.decode` of all ids."""

    __slots__ = ("_decoder", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that is complete with these tokens; a character whose bytes are still to come is held back."""
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, ids)))

    def flush(self) -> str:
        """The rest, once no more tokens come: U+FFFD for a character that was never completed."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def _token_id(file: GGUFFile, key: str, n_vocab: int) -> int | None:
    token = file.get(key, int, None)
    if token is not None and not 0 <= token < n_vocab:
        raise ModelError(f"{file.path}: {key} is {token}, the vocabulary has ids 0 to {n_vocab - 1}")
    return token


def _end_ids(tokens: Sequence[str], named: Iterable[int | None]) -> frozenset[int]:
    """END ids: what the file names, and tokens whose text says so, as llama.cpp finds them."""
    by_text = {text: token for token, text in enumerate(tokens) if text in _END_TEXTS}
    # Where these exist, <|end|> closes a message inside a turn (gpt-oss, solar-open).
    if {"<|return|>", "<|call|>"} <= by_text.keys() or {"<|calls|>", "<|flush|>"} <= by_text.keys():
        by_text.pop("<|end|>", None)
    return frozenset(by_text.values()) | {token for token in named if token is not None}


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not (left and right) or " " in right:
        raise ValueError(f"tokenizer.ggml.merges has {merge!r}, wanted two tokens with a blank between")
    return left, right


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], ignore_merges: bool) -> BPE:
    vocab = {token: i for i, token in enumerate(tokens)}
    if not tokens or len(vocab) != len(tokens):
        twice = next((token for i, token in enumerate(tokens) if vocab[token] != i), None)
        raise ValueError(f"tokenizer.ggml.tokens has {twice!r} twice" if twice else "tokenizer.ggml.tokens is empty")
    for left, right in merges:
        if left not in vocab or right not in vocab or left + right not in vocab:
            unknown = next(text for text in (left, right, left + right) if text not in vocab)
            raise ValueError(f"tokenizer.ggml.merges has {left + ' ' + right!r}, but {unknown!r} is no token")
    return BPE(vocab, merges, ignore_merges=ignore_merges)


def _encoder(model: BPE, pre: PreType, added: list[str]) -> BaseTokenizer:
    encoder = BaseTokenizer(model)
    if pre.nfc:
        encoder.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    encoder.add_tokens([AddedToken(text, normalized=False) for text in added])
    return encoder
