"""The slop policy's knobs, its state, and `step`: what a token does to the state. The host's truth of what kernels/slop.h does.

The policy penalises the stock mannerisms of language models. It sees a token as the class mask of its own text (slop_masks.py), carries a
state of 12 bytes from token to token, and changes a row of logits by mask, state and knobs (slop_adjust.py). docs/slop.md says it in words.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, replace

from backends.decode.slop_tables import (
    BLANK,
    BOLD,
    BOLD_OPEN,
    BULLET,
    BULLET_LINE,
    CLAUSE,
    CLAUSE_START,
    COUNT_MAX,
    DASH,
    FENCE,
    FENCED,
    HEADING,
    KNOB_MAX,
    LINE_START,
    NEWLINE,
    PROSE,
    THINK,
    THINK_CLOSE,
    THINK_OPEN,
    TOOL,
    TOOL_CLOSE,
    TOOL_OPEN,
    VISIBLE,
    VISIBLE_MAX,
)
from backends.errors import BadValue

_LAYOUT = struct.Struct("<BBBBBBHI")


@dataclass(frozen=True, slots=True)
class Knobs:
    """How strongly the policy acts, in logits; each 0..20, all zero: not at all.

    dash: per dash, more with every dash since the last empty line. lexical: words and phrases of the lexicon, emoji. structure: bullets,
    headings, bold. opener: stock openers. Raises BadValue.
    """

    dash: float = 0.0
    lexical: float = 0.0
    structure: float = 0.0
    opener: float = 0.0

    def __post_init__(self) -> None:
        for name, value in zip(KNOB_NAMES, self.values, strict=True):
            if not (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= KNOB_MAX):
                raise BadValue(f"slop {name}: {value!r} is not allowed; allowed: a number from 0 to {KNOB_MAX}")
            object.__setattr__(self, name, float(value) if value >= SMALLEST else 0.0)  # -0.0 too becomes 0.0

    def __str__(self) -> str:
        """dash=1.5,lexical=2: how a user writes it; "off" where all are zero."""
        given = [f"{name}={value!r}".removesuffix(".0") for name, value in zip(KNOB_NAMES, self.values, strict=True) if value]
        return ",".join(given) or "off"

    @property
    def values(self) -> tuple[float, float, float, float]:
        """The knobs in the order of slop_tables.KNOB_*."""
        return self.dash, self.lexical, self.structure, self.opener

    @property
    def active(self) -> bool:
        """Whether any is above zero."""
        return any(self.values)


SMALLEST = 2.0**-126  # what devices may take for 0 lies below, and is 0 for the host too
KNOB_NAMES = tuple(field.name for field in fields(Knobs))
OFF = Knobs()
DEFAULT = Knobs(dash=1.5, lexical=2, structure=0.5, opener=2)


def in_force(engine: Knobs | None, request: Knobs | None) -> Knobs | None:
    """The knobs of a generation: the request's if it has any, else the engine's; None where they do nothing."""
    knobs = engine if request is None else request
    return knobs if knobs is not None and knobs.active else None


@dataclass(frozen=True, slots=True)
class State:
    """What the policy knows of the text so far.

    region: PROSE, FENCED, THINK or TOOL. flags: LINE_START, CLAUSE_START, BULLET_LINE, BOLD_OPEN. dashes, bolds: since the last empty line.
    bullet_run: bullet lines in a row. headings: so far. visible: tokens so far that show something, thinking left out. Counts saturate.
    """

    region: int = PROSE
    flags: int = LINE_START | CLAUSE_START
    dashes: int = 0
    bullet_run: int = 0
    headings: int = 0
    bolds: int = 0
    visible: int = 0

    def to_bytes(self) -> bytes:
        """The 12 bytes of kernels/slop_tables.h."""
        return _LAYOUT.pack(self.region, self.flags, self.dashes, self.bullet_run, self.headings, self.bolds, 0, self.visible)

    @classmethod
    def from_bytes(cls, data: bytes) -> State:
        """The state in 12 bytes, whatever they are; the reserved ones are not looked at."""
        region, flags, dashes, bullet_run, headings, bolds, _, visible = _LAYOUT.unpack(data)
        return cls(region, flags, dashes, bullet_run, headings, bolds, visible)

    @property
    def words(self) -> tuple[int, int, int]:
        """The same as three unsigned 32-bit words."""
        first, second, visible = struct.unpack("<3I", self.to_bytes())
        return first, second, visible


def fresh(thinking: bool) -> State:
    """The state at the end of a prompt. thinking: the prompt leaves a think marker open (slop_masks.leaves_thinking)."""
    return State(region=THINK if thinking else PROSE)


def step(state: State, mask: int) -> State:
    """The state after a token of this class mask. Total and pure: any state and any mask give a state."""
    was, flags = state.region, state.flags
    at_line_start, visible, newline = bool(flags & LINE_START), bool(mask & VISIBLE), bool(mask & NEWLINE)
    region = _region(was, at_line_start, mask)
    seen = state.visible
    if visible and was != THINK and not mask & (THINK_OPEN | THINK_CLOSE):
        seen = min(seen + 1, VISIBLE_MAX)
    dashes, bullet_run, headings, bolds = state.dashes, state.bullet_run, state.headings, state.bolds
    if was == PROSE and region == PROSE:
        if mask & DASH:
            dashes = _more(dashes)
        if mask & BULLET and at_line_start:
            flags |= BULLET_LINE
        if mask & HEADING and at_line_start:
            headings = _more(headings)
        if mask & BOLD:
            bolds = bolds if flags & BOLD_OPEN else _more(bolds)
            flags ^= BOLD_OPEN
        if newline:
            empty = at_line_start and not visible
            if not empty:
                bullet_run = _more(bullet_run) if flags & BULLET_LINE else 0
            if empty or mask & BLANK:
                dashes = bolds = 0
                flags &= ~BOLD_OPEN
    if newline:
        flags = (flags | LINE_START | CLAUSE_START) & ~BULLET_LINE
    elif visible:
        flags &= ~(LINE_START | CLAUSE_START)
        flags |= CLAUSE_START if mask & CLAUSE else 0
    return replace(state, region=region, flags=flags, dashes=dashes, bullet_run=bullet_run, headings=headings, bolds=bolds, visible=seen)


def _region(region: int, at_line_start: bool, mask: int) -> int:
    """Where a token leads: from prose into a think block, a tool call or, at a line start, a code fence; out of each by its own marker."""
    if region == PROSE:
        if mask & THINK_OPEN:
            return THINK
        if mask & TOOL_OPEN:
            return TOOL
        return FENCED if mask & FENCE and at_line_start else PROSE
    closing = {THINK: THINK_CLOSE, TOOL: TOOL_CLOSE, FENCED: FENCE if at_line_start else 0}
    return PROSE if mask & closing.get(region, 0) else region


def _more(count: int) -> int:
    return min(count + 1, COUNT_MAX)
