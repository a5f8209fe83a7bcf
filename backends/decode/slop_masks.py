"""What the slop policy sees of a token: the class mask of its own text, built once for a vocabulary, and the lists of words behind it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from backends.decode.slop_tables import (
    BLANK,
    BOLD,
    BULLET,
    CLAUSE,
    DASH,
    EMOJI,
    END,
    FENCE,
    HEADING,
    LEXICAL,
    NEWLINE,
    OPENER,
    THINK_CLOSE,
    THINK_OPEN,
    TOOL_CLOSE,
    TOOL_OPEN,
    VISIBLE,
)
from backends.errors import BadValue, shown

if TYPE_CHECKING:
    from backends.model.tokenizer import Tokenizer

Masks = NDArray[np.uint32]  # [n_vocab]
MIN_LETTERS: Final = 4  # of a phrase's first piece; a shorter one starts too many other words

# Markers are known only where one token spells them whole. Of a call's several nested markers only the outermost pair is here.
MARKERS: Final[dict[str, int]] = {
    **dict.fromkeys(("<think>", "<thinking>", "<reasoning>", "<seed:think>", "[THINK]", "<|begin_of_thought|>"), THINK_OPEN),
    **dict.fromkeys(("</think>", "</thinking>", "</reasoning>", "</seed:think>", "[/THINK]", "<|end_of_thought|>"), THINK_CLOSE),
    **dict.fromkeys(("<tool_call>", "<function_call>", "<start_function_call>", "<|tool_call_start|>", "<minimax:tool_call>"), TOOL_OPEN),
    **dict.fromkeys(("</tool_call>", "</function_call>", "<end_function_call>", "<|tool_call_end|>", "</minimax:tool_call>"), TOOL_CLOSE),
    **dict.fromkeys(("<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>"), TOOL_OPEN),
    **dict.fromkeys(("<｜tool▁calls▁end｜>", "<|tool_calls_section_end|>"), TOOL_CLOSE),
    **dict.fromkeys(("[TOOL_CALLS]", "<|python_tag|>"), TOOL_OPEN),  # these calls last to the end of the turn
}

# Closing quotes, closing brackets, blanks, of any script.
_CLOSING = "\"'" + "".join(c for c in map(chr, range(0x10000)) if c.isspace() or unicodedata.category(c) in ("Pe", "Pf"))
_BULLETS = frozenset("-*+•‣◦▪▫●○■□∙⁃·")
_HEADING = re.compile(r"#{1,6}")
# Whole characters that look like pictures without more: what Unicode calls Emoji_Presentation, a few that chats use as such, and the sign
# that turns others into pictures. Of U+1F000..1FAFF, mostly pictures, the first bytes count too, because few vocabularies spell them whole.
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff⌚⌛⏩-⏬⏰⏳◽◾☀☁☑☔☕♈-♓♿⚓⚠⚡⚪⚫⚽⚾⛄⛅⛎⛔⛪⛲⛳⛵⛺⛽✅✊✋✌✍✔✖✨❌❎❓-❕❗❤➕-➗➰➿⬛⬜⭐⭕\ufe0f]"
)
_EMOJI_START = b"\xf0\x9f"


def mask_of_text(data: bytes) -> int:
    """The bits that a token's bytes show by themselves: all but markers, lists and END."""
    text = data.decode("utf-8", errors="replace")  # a piece of a character is visible, as U+FFFD is
    stripped = text.strip()
    tests = {
        NEWLINE: "\n" in text,
        BLANK: "\n\n" in text,
        CLAUSE: text.rstrip(_CLOSING).endswith((".", "!", "?", ";", ":")),
        DASH: "—" in text or "–" in text or " --" in text,
        BULLET: stripped in _BULLETS,
        HEADING: _HEADING.fullmatch(stripped) is not None,
        BOLD: "**" in text,
        FENCE: "```" in text or "~~~" in text,
        EMOJI: _EMOJI.search(text) is not None or _EMOJI_START in data,
        VISIBLE: stripped != "",
    }
    return sum(bit for bit, shows in tests.items() if shows)


def masks(
    tokenizer: Tokenizer,
    lexicon: Sequence[str] = (),
    openers: Sequence[str] = (),
    names: tuple[str | None, str | None] = (None, None),
) -> Masks:
    """The class masks of a vocabulary, uint32 [n_vocab].

    lexicon, openers: words and phrases, as `read_list` gives them; names: of their files, for messages. Control tokens show nothing, so they
    have no bits but a marker's (which is VISIBLE, although it adds nothing to the text: a tool call is an answer) and END. Raises BadValue for
    a phrase that no token starts.
    """
    found = np.zeros(tokenizer.n_vocab, np.uint32)
    for token in range(tokenizer.n_vocab):
        data = tokenizer.token_bytes(token)
        marker = MARKERS.get(tokenizer.tokens[token] if tokenizer.is_control(token) else data.decode("utf-8", errors="replace"), 0)
        found[token] = marker | VISIBLE if marker else mask_of_text(data)
    for bit, phrases, name in ((LEXICAL, lexicon, names[0] or "slop lexicon"), (OPENER, openers, names[1] or "slop openers")):
        for phrase in phrases:
            tokens = starts_of(tokenizer, phrase)
            if not tokens:
                raise BadValue(
                    f"{name}: no token of the model starts {shown(phrase)}; allowed: a word that is one token, or a phrase whose first token "
                    f"has at least {MIN_LETTERS} letters"
                )
            found[tokens] |= np.uint32(bit)
    found[sorted(tokenizer.end_ids)] |= np.uint32(END)
    return found


def mask_at(masks: Masks, token: int) -> int:
    """The mask of a token id; 0 for -1 and any other id that is not of the vocabulary."""
    return int(masks[token]) if 0 <= token < len(masks) else 0


def starts_of(tokenizer: Tokenizer, phrase: str) -> list[int]:
    """The tokens that mark a listed word or phrase, ascending; none where no token starts it.

    Spelled with and without a blank before it, and with either case of its first letter, those that are a word whole, or a phrase's whole first
    word; only where no spelling has one, the first pieces. Of a phrase, and of pieces, at least 4 letters: shorter ones start much else.
    """
    first_word, *others = phrase.split()
    whole, pieces = set[int](), set[int]()
    for spelling in spellings(phrase):
        for text in (spelling, " " + spelling):
            token = next(iter(tokenizer.encode(text, special=False)), None)
            piece = "" if token is None else tokenizer.decode([token]).strip()
            is_whole, is_long = len(piece) == len(first_word), sum(map(str.isalpha, piece)) >= MIN_LETTERS
            if token is not None and (is_long or (is_whole and not others)):
                (whole if is_whole else pieces).add(token)
    return sorted(whole or pieces)


def spellings(phrase: str) -> Iterator[str]:
    """A phrase with either case of its first letter."""
    yield from dict.fromkeys((phrase, phrase[0].lower() + phrase[1:], phrase[0].upper() + phrase[1:]))


def read_list(path: Path) -> list[str]:
    """The words and phrases of a list: UTF-8, one a line; a # starts a comment, blanks around and empty lines do not count.

    Raises BadValue naming the file, and the line that is twice in it.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror}; allowed: a list of words and phrases") from None
    except UnicodeDecodeError as error:
        raise BadValue(f"{path}: not UTF-8 at byte {error.start}; allowed: a list of words and phrases in UTF-8") from None
    numbers: dict[str, int] = {}
    phrases = []
    for number, line in enumerate(text.split("\n"), 1):
        phrase = " ".join(line.partition("#")[0].split())
        if not phrase:
            continue
        if numbers.setdefault(phrase.lower(), number) != number:
            raise BadValue(f"{path}: lines {numbers[phrase.lower()]} and {number} are both {shown(phrase)}; allowed: each word or phrase once")
        phrases.append(phrase)
    return phrases


def leaves_thinking(tokenizer: Tokenizer, masks: Masks, prompt: Sequence[int]) -> bool:
    """Whether a prompt ends inside a think block: its last marker is an opening one.

    Only markers of the turn that is being answered count, those behind the last control token that is none, so that a user's talk of markers
    does not.
    """
    for token in reversed(prompt):
        mask = mask_at(masks, token)
        if mask & (THINK_OPEN | THINK_CLOSE):
            return bool(mask & THINK_OPEN)
        if tokenizer.is_control(token) and not mask & (TOOL_OPEN | TOOL_CLOSE):
            return False
    return False
