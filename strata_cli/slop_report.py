"""What the slop policy sees in a text: token by token, and counted."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.decode import slop_tables
from backends.decode.slop import Knobs, State, fresh, step
from backends.decode.slop_adjust import class_amounts
from backends.decode.slop_masks import Masks, mask_at, masks, read_list
from backends.decode.slop_tables import (
    BOLD,
    BOLD_OPEN,
    BULLET_LINE,
    CAP,
    CLAUSE_START,
    DASH,
    EMOJI,
    END,
    FENCED,
    HEADING,
    LINE_START,
    OPENER,
    PROSE,
    THINK,
    TOOL,
)
from backends.model.gguf import GGUFFile
from backends.model.tokenizer import Tokenizer
from strata_cli.corpus import pieces

REGIONS = {PROSE: "prose", FENCED: "fence", THINK: "think", TOOL: "tool"}
FLAGS = {LINE_START: "L", CLAUSE_START: "C", BULLET_LINE: "b", BOLD_OPEN: "o"}
_FORM = ("NEWLINE", "BLANK", "CLAUSE", "DASH", "BULLET", "HEADING", "BOLD", "FENCE")
BITS = (*_FORM, "THINK_OPEN", "THINK_CLOSE", "TOOL_OPEN", "TOOL_CLOSE", "LEXICAL", "OPENER", "EMOJI", "END", "VISIBLE")
# What is counted, in the order of the report; of the first three each is a mannerism by itself.
AT_ONCE = 1 << 18  # tokens that are looked at together, for memory's sake
COUNTED = ("dashes", "phrases", "openers", "bullet_lines", "headings", "bold", "emoji")


@dataclass(frozen=True, slots=True)
class Seen:
    """One token of a text. data: its bytes. state: before it, amount: what its logit was lowered by in that state; after: the state behind it."""

    token: int
    data: bytes
    mask: int
    state: State
    amount: float
    after: State


@dataclass(frozen=True, slots=True)
class Policy:
    """A model's tokens as the policy sees them."""

    tokenizer: Tokenizer
    masks: Masks
    lexicon: Sequence[str]
    openers: Sequence[str]

    @classmethod
    def of(cls, model: Path, lexicon: str | None, openers: str | None) -> Policy:
        """That of a model file, whose weights stay unread, with the lists in two files. Raises ModelError, BadValue."""
        words, starts = ([] if path is None else read_list(Path(path)) for path in (lexicon, openers))
        tokenizer = Tokenizer.from_gguf(GGUFFile.open(model))
        return cls(tokenizer, masks(tokenizer, words, starts, (lexicon, openers)), words, starts)

    def walk(self, text: str, knobs: Knobs) -> Iterator[Seen]:
        """The tokens of an answer, from its beginning. Texts of control tokens, such as <think>, are those tokens."""
        state = fresh(thinking=False)
        for token in (token for piece in pieces(text) for token in self.tokenizer.encode(piece, special=True)):
            mask = mask_at(self.masks, token)
            costs = [amount for bit, amount in class_amounts(state, knobs, float).items() if mask & bit and not mask & END]
            after = step(state, mask)
            control = self.tokenizer.is_control(token)
            data = self.tokenizer.tokens[token].encode() if control else self.tokenizer.token_bytes(token)
            yield Seen(token, data, mask, state, min(float(CAP), sum(costs, 0.0)), after)
            state = after

    def count(self, texts: Sequence[str]) -> dict[str, Any]:
        """How many mannerisms are in the prose of some answers, in all and per 1,000 of their tokens: JSON values. A phrase that lies
        across AT_ONCE tokens' end in a very long text is not seen."""
        found: Counter[str] = Counter()
        phrases: Counter[str] = Counter()
        tokens = prose = 0
        for seen in (some for text in texts for some in _some(self.walk(text, Knobs()))):
            tokens += len(seen)
            prose += sum(_in_prose(one) for one in seen)
            found += _counted(seen)
            for name, listed in (("phrases", self.lexicon), ("openers", self.openers)):
                here = _found(seen, listed, opening=name == "openers")
                found[name] += len(here)
                phrases.update(here)
        per = {name: round(1000 * found[name] / tokens, 3) if tokens else None for name in COUNTED}
        counts = {name: found[name] for name in COUNTED}
        return {"texts": len(texts), "tokens": tokens, "prose_tokens": prose, "counts": counts, "per_1000": per, "found": dict(phrases.most_common())}


def _some(walk: Iterator[Seen]) -> Iterator[list[Seen]]:
    while some := list(itertools.islice(walk, AT_ONCE)):
        yield some


def mask_names(mask: int) -> list[str]:
    """The names of a mask's bits."""
    return [name for name in BITS if mask & getattr(slop_tables, name)]


def state_text(state: State) -> str:
    """A state on a line: region, flags (L line start, C clause start, b bullet line, o bold open), counts."""
    flags = "".join(letter for flag, letter in FLAGS.items() if state.flags & flag) or "-"
    return f"{REGIONS[state.region]} {flags} d{state.dashes} r{state.bullet_run} h{state.headings} B{state.bolds} v{state.visible}"


def _in_prose(seen: Seen) -> bool:
    return seen.state.region == seen.after.region == PROSE


def _counted(seen: Sequence[Seen]) -> Counter[str]:
    """What single tokens tell."""
    found: Counter[str] = Counter()
    for one in filter(_in_prose, seen):
        at_line_start = bool(one.state.flags & LINE_START)
        found["dashes"] += bool(one.mask & DASH)
        found["bullet_lines"] += at_line_start and bool(one.mask & slop_tables.BULLET)
        found["headings"] += at_line_start and bool(one.mask & HEADING)
        found["bold"] += bool(one.mask & BOLD) and not one.state.flags & BOLD_OPEN
        found["emoji"] += bool(one.mask & EMOJI)
    return found


def _found(seen: Sequence[Seen], listed: Sequence[str], opening: bool) -> list[str]:
    """The listed words and phrases that stand whole in the prose, as they are listed. opening: only where an answer or a clause begins."""
    if not listed:
        return []
    text = b"".join(one.data for one in seen)
    starts, at = [], 0
    for one in seen:
        starts.append(at)
        at += len(one.data)
    where = {start + len(one.data) - len(one.data.lstrip()): one for start, one in zip(starts, seen, strict=True)}
    names = {phrase.encode().lower(): phrase for phrase in listed}
    # The longest first, so that of two that begin alike the one that is there is found.
    words = "|".join(re.escape(phrase).replace("\\ ", r"\s+") for phrase in sorted(listed, key=len, reverse=True))
    found = []
    for match in re.finditer(rb"(?<![\w\x80-\xff])(?:" + words.encode() + rb")(?![\w\x80-\xff])", text, re.IGNORECASE):
        first = where.get(match.start())
        if first is None or not _in_prose(first):
            continue
        if opening and not (first.mask & OPENER and (first.state.visible == 0 or first.state.flags & CLAUSE_START)):
            continue
        found.append(names[b" ".join(match.group().lower().split())])
    return found
