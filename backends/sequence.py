"""One sequence on the device: its KV cells, tables and recorded plans, in token ids and positions only."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate

import numpy as np
from numpy.typing import NDArray

from backends.decode import slop_tables
from backends.decode.sampling import Filters, Penalties
from backends.decode.slop import Knobs, State, fresh
from backends.decode.window import WindowRules
from backends.device import Launch, Replay
from backends.engine_thread import Args, T
from backends.errors import BadValue
from backends.plan import DraftWorkspace, SlopBuffers, Workspace
from backends.tables import (
    CONTROL_FIRST,
    FLAG_BAD,
    MAX_WINDOW,
    OUT_BAD_POSITION,
    OUT_COUNT,
    OUT_DRAFTED,
    OUT_DRAFTS,
    OUT_FLAGS,
    OUT_INTS,
    OUT_KEPT,
    OUT_PROBABILITIES,
    OUT_TOKENS,
    SLOT_BIASES,
    SLOT_BUDGET,
    SLOT_CONTEXT,
    SLOT_DRAFT_MIN_P,
    SLOT_FREQUENCY,
    SLOT_IGNORE_END,
    SLOT_INTS,
    SLOT_LAST_N,
    SLOT_MIN_P,
    SLOT_PRESENCE,
    SLOT_REPEAT,
    SLOT_SEED_HIGH,
    SLOT_SEED_LOW,
    SLOT_SLOP_KNOBS,
    SLOT_SLOP_STATE,
    SLOT_TEMPERATURE,
    SLOT_TOP_K,
    SLOT_TOP_P,
    SLOT_WINDOW,
)

if TYPE_CHECKING:
    from backends.engine import Engine

UNLIMITED = 2**31 - 1
NO_FILTERS, NO_PENALTIES, DRAFTS, FRESH = Filters(), Penalties(), WindowRules(), fresh(thinking=False)


def _on_device(method: Callable[Concatenate[SequenceState, Args], T]) -> Callable[Concatenate[SequenceState, Args], T]:
    """Runs the method on the engine's thread."""

    @functools.wraps(method)
    def call(self: SequenceState, /, *args: Args.args, **kwargs: Args.kwargs) -> T:
        return self._engine.on_device(method, self, *args, **kwargs)

    return call


@dataclass(frozen=True, slots=True)
class Rules:
    """How tokens are picked and when a sequence stops. budget: tokens allowed. ctx: its context in tokens. biases: (id, amount).

    The filters act where there is a temperature. window: rows of a window at most; drafts: which drafts are put into it. slop: the knobs of
    the slop policy, None where it does not act; slop_state: its state at the end of the prompt; slop_drafts: whether drafts see it too.
    """

    ctx: int
    budget: int = UNLIMITED
    temperature: float = 0.0
    filters: Filters = NO_FILTERS
    penalties: Penalties = NO_PENALTIES
    seed: int = 0
    ignore_end: bool = False
    biases: tuple[tuple[int, float], ...] = ()
    window: int = 1
    drafts: WindowRules = DRAFTS
    slop: Knobs | None = None
    slop_state: State = FRESH
    slop_drafts: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """What a round gave: the tokens it committed, and the FLAG_* that stopped the sequence (0: none).

    With FLAG_BAD the logits of the row at bad_position are not numbers; the tokens before it stand. drafts, probabilities: what the drafter
    computed for the next window (token -1: not a number); the first `kept` are in it, behind the row of the last token.
    """

    tokens: tuple[int, ...]
    flags: int
    drafts: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    kept: int = 0
    bad_position: int = -1


class SequenceState:
    """A sequence of up to `ctx` positions. Raises DeviceError when memory runs out."""

    def __init__(self, engine: Engine, ctx: int) -> None:
        self._engine, self.ctx = engine, ctx
        self._device, self._model = engine.device, engine.model
        self._chunk = engine.config.prefill_chunk
        ends = sorted(engine.tokenizer.end_ids)
        self.work = Workspace(self._device, self._model.sizes, max(self._chunk, MAX_WINDOW), engine.groups, ctx, end_ids=ends)
        self.state = self._model.state(ctx)
        self._drafter = engine.drafter
        if self._drafter is not None:
            self.draft_work = DraftWorkspace(self._device, self._drafter.sizes, self.work.rows_max, engine.groups, ctx)
            self.draft_state = self._drafter.state(ctx)
        self._rules = Rules(ctx)
        self._thresholds: Any = None  # made when a rule first asks for it
        self._slop: SlopBuffers | None = None  # likewise
        self._replays: dict[tuple[object, ...], Replay] = {}

    @_on_device
    def start(self, rules: Rules) -> None:
        """Sets the rules of a new sequence; what the cells hold is never read."""
        slot = np.zeros(SLOT_INTS, np.int32)
        slot[SLOT_TEMPERATURE] = np.float32(rules.temperature).view(np.int32)
        slot[SLOT_SEED_LOW], slot[SLOT_SEED_HIGH] = np.array([rules.seed & 0xFFFFFFFF, rules.seed >> 32], np.uint32).view(np.int32)
        slot[SLOT_BUDGET], slot[SLOT_CONTEXT] = rules.budget, rules.ctx
        slot[SLOT_IGNORE_END], slot[SLOT_BIASES] = rules.ignore_end, len(rules.biases)
        filters, penalties = rules.filters, rules.penalties
        slot[SLOT_WINDOW] = rules.window
        slot.view(np.float32)[SLOT_DRAFT_MIN_P] = rules.drafts.min_p
        p_cum = rules.drafts.p_cum
        if self._drafting(rules) and p_cum is not None:
            if self._thresholds is None:
                self._thresholds = self._device.zeros(self.ctx)
            self._device.upload(self._thresholds, p_cum.thresholds(self.ctx))
        if rules.slop is not None:
            masks, seen = functools.partial(self._engine.class_masks.on_device, self._device), rules.slop_drafts and self._drafting(rules)
            if self._slop is None or (seen and self._slop.head_masks is None):
                self._slop = SlopBuffers.make(self._device, self._model.shape.vocab, masks, seen, self._slop)
            slot.view(np.float32)[SLOT_SLOP_KNOBS : SLOT_SLOP_KNOBS + slop_tables.KNOBS] = rules.slop.values
            slot.view(np.uint32)[SLOT_SLOP_STATE : SLOT_SLOP_STATE + slop_tables.WORDS] = rules.slop_state.words
        self._rules = rules
        slot[SLOT_TOP_K] = filters.top_k
        slot.view(np.uint32)[SLOT_TOP_P] = filters.top_p_units
        slot.view(np.float32)[SLOT_MIN_P] = filters.least_weight
        slot.view(np.float32)[[SLOT_REPEAT, SLOT_PRESENCE, SLOT_FREQUENCY]] = penalties.repeat, penalties.presence, penalties.frequency
        slot[SLOT_LAST_N] = UNLIMITED if penalties.last_n < 0 else penalties.last_n
        self._device.upload(self.work.slots, slot)
        if rules.biases:
            self._device.upload(self.work.bias_ids, np.array([token for token, _ in rules.biases], np.int32))
            self._device.upload(self.work.biases, np.array([amount for _, amount in rules.biases], np.float32))

    def prefill(self, ids: Sequence[int], first: int = 0, progress: Callable[[float], None] | None = None, following: int | None = None) -> None:
        """Runs tokens at positions first, first+1, ... through the model, a chunk per submission, without logits.

        following: the token behind them, which the drafter's last cell holds; None where nothing will be drafted.
        """
        for start in range(0, len(ids), self._chunk):
            part = ids[start : start + self._chunk]
            behind = [*ids[start + 1 : start + 1 + len(part)], *([] if following is None else [following])][: len(part)]
            self._prefill_chunk(part, first + start, behind if following is not None else [])
            if progress is not None:
                progress(min(1.0, (start + self._chunk) / len(ids)))

    @_on_device
    def set_window(self, ids: Sequence[int], first: int) -> None:
        """The next round's rows: the last committed token at position `first`, then drafts. Raises BadValue outside window and context."""
        self._check(len(ids), first, len(ids))
        self._set(ids, first)

    @_on_device
    def round(self, rows: int = 1) -> Round:
        """Runs the table's rows (at most `rows`), picks, accepts, and leaves the next round's rows in the table: the last token's, and the
        drafts that the window rules keep."""
        self._replay("round", rows).run()
        out = self._device.download(self.work.out, np.int32, OUT_INTS)
        tokens, flags = tuple(out[OUT_TOKENS : OUT_TOKENS + out[OUT_COUNT]].tolist()), int(out[OUT_FLAGS])
        if flags & FLAG_BAD:
            return Round(tokens, flags, bad_position=int(out[OUT_BAD_POSITION]))
        if not self._drafting(self._rules):
            return Round(tokens, flags)
        drafted = int(out[OUT_DRAFTED])
        probabilities = tuple(out[OUT_PROBABILITIES : OUT_PROBABILITIES + drafted].view(np.float32).tolist())
        return Round(tokens, flags, tuple(out[OUT_DRAFTS : OUT_DRAFTS + drafted].tolist()), probabilities, int(out[OUT_KEPT]))

    @_on_device
    def draft_logits(self, ids: Sequence[int], depth: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
        """A chain of drafts behind `ids`, which stand at positions 0, 1, ...; each draft is the largest of its row.

        Returns logits float32 [depth, draft head], the drafts [depth], and the residuals before the head's norm, float32 [depth, embd], which a
        chain feeds back. Raises BadValue without a drafter or with fewer than two ids.
        """
        if self._drafter is None or len(ids) < 2:
            raise BadValue("draft_logits: it needs a drafter and at least two ids")
        self._check(1, 0, len(ids))
        self.prefill(ids[:-2], following=ids[-2]) if len(ids) > 2 else None
        work, drafter = self.draft_work, self._drafter
        self._set(ids[-2:-1], len(ids) - 2)
        self._replay("rows", 1).run()
        source, token, rows, drafts, residuals = self.work, ids[-1], [], [], []
        for step in range(depth):
            self._set_cells([token], len(ids) - 2 + step)
            self._device.upload(work.head_control, np.array([1], np.int32))
            self._replay("draft" if source is work else "first draft", 1).run()
            rows.append(self._device.download(work.logits, np.float32, drafter.n_ids))
            residuals.append(self._device.download(work.x, np.float32, drafter.shape.embd))
            token = int(rows[-1].argmax())
            token = token if drafter.vocabulary is None else int(drafter.vocabulary[token])
            drafts.append(token)
            source = work
        return np.array(rows), np.array(drafts), np.array(residuals)

    @_on_device
    def logits(self, ids: Sequence[int], first: int = 0, window: int = MAX_WINDOW) -> NDArray[np.float32]:
        """Logits float32 [len(ids), vocabulary] of tokens at positions first, ...; rows run `window` (1..8) at a time."""
        self._check(window, first, len(ids))
        work, parts = self.work, []
        for start in range(0, len(ids), window):
            part = ids[start : start + window]
            self._set(part, first + start)
            self._replay("logits", window).run()
            parts.append(self._device.download(work.logits, np.float32, len(part) * work.logits_stride).reshape(len(part), -1))
        return np.concatenate(parts)[:, : self._model.shape.vocab]

    @_on_device
    def window_ms(self, rows: int, first: int, repeats: int) -> list[float]:
        """Milliseconds of `repeats` rounds of `rows` rows at positions first, ..., after one to warm up."""
        self._check(rows, first, rows)
        times = []
        for _ in range(repeats + 1):
            self._set([1] * rows, first)
            self.start(Rules(self.ctx, ignore_end=True))
            begun = time.perf_counter()
            self.round(rows)
            times.append(1e3 * (time.perf_counter() - begun))
        return times[1:]

    @_on_device
    def _prefill_chunk(self, ids: Sequence[int], first: int, following: Sequence[int]) -> None:
        self._set(ids, first)
        if following and self._drafter is not None:
            self._set_cells(following, first)
        self._replay("prefill", cells=bool(following)).run()
        self._device.finish()  # so that progress is what was done, and Ctrl-C waits for no more than a chunk

    def _set_cells(self, tokens: Sequence[int], first: int) -> None:
        """The drafter's next rows: cells first, first + 1, ... with these tokens, from a residual whose row 0 is at position `first`."""
        self.draft_work.set_rows([(0, first + i, token, 1) for i, token in enumerate(tokens)])
        self._device.upload(self.draft_work.control, np.array([first], np.int32), 4 * CONTROL_FIRST)

    def _drafting(self, rules: Rules) -> bool:
        """Whether the device drafts under these rules."""
        return self._drafter is not None and rules.window > 1

    def _check(self, window: int, first: int, count: int) -> None:
        """Rows beyond the window or the context would be written behind the buffers' ends."""
        if not 1 <= window <= MAX_WINDOW:
            raise BadValue(f"window: {window!r} is not allowed; allowed: 1..{MAX_WINDOW}")
        if first < 0 or first + count > self.ctx:
            raise BadValue(f"positions {first}..{first + count - 1} are not allowed; allowed: 0..{self.ctx - 1}")

    def _set(self, ids: Sequence[int], first: int) -> None:
        self.work.set_rows([(0, first + i, token, 1) for i, token in enumerate(ids)])

    def _replay(self, kind: str, rows: int = MAX_WINDOW, cells: bool = False) -> Replay:
        """The recorded plan: "prefill" and "rows" (no logits; with the drafter's cells or without), "logits" (no picks), "round", or one row
        of the drafter with its logits: "first draft" behind the model's residual, "draft" behind its own."""
        tile, rules = self._engine.tile(rows), self._rules
        filtered = kind == "round" and rules.temperature > 0 and rules.filters.active
        drafts = rules.window - 1 if kind == "round" and self._drafting(rules) else 0
        thresholds = self._thresholds if drafts and rules.drafts.p_cum is not None else None
        slop = self._slop if kind == "round" and rules.slop is not None else None
        seen = slop is not None and drafts > 0 and rules.slop_drafts
        key = kind, tile, filtered, drafts, cells, thresholds is not None, slop is not None, seen
        if key not in self._replays:
            plan = self._plan(kind, tile, filtered, drafts, cells, thresholds, slop if seen or slop is None else slop.unseen)
            self._replays[key] = self._device.record(plan, self._engine.config.launch)
        return self._replays[key]

    def _plan(self, kind: str, tile: int, filtered: bool, drafts: int, cells: bool, thresholds: Any, slop: SlopBuffers | None) -> list[Launch]:
        work, drafter, most = self.work, self._drafter, self.work.rows_max if kind == "prefill" else MAX_WINDOW
        if drafter is not None and kind.endswith("draft"):
            source = self.draft_work if kind == "draft" else work
            return [*drafter.cells(self.draft_work, self.draft_state, source, 1, 1), *drafter.logits(self.draft_work)]
        launches: list[Launch] = self._model.rows(work, self.state, tile, most)
        if kind in ("logits", "round"):
            launches += self._model.logits(work, tile)
        if kind == "round":
            launches += [*work.picks(self._model.shape.vocab, filtered, slop), *self._model.commit(work, self.state)]
        if drafter is not None and cells:
            launches += drafter.cells(self.draft_work, self.draft_state, work, tile, most)
        if drafter is not None and drafts:
            launches += drafter.round(self.draft_work, self.draft_state, work, tile, drafts, thresholds, slop)
        return launches
