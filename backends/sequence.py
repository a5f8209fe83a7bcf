"""One sequence on the device: its KV cells, tables and recorded plans, in token ids and positions only."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate

import numpy as np
from numpy.typing import NDArray

from backends.device import Launch, Replay
from backends.engine_thread import Args, T
from backends.errors import BadValue, StrataError
from backends.plan import Workspace
from backends.tables import (
    FLAG_BAD,
    MAX_WINDOW,
    OUT_BAD_POSITION,
    OUT_COUNT,
    OUT_FLAGS,
    OUT_INTS,
    OUT_TOKENS,
    SLOT_BIASES,
    SLOT_BUDGET,
    SLOT_CONTEXT,
    SLOT_IGNORE_END,
    SLOT_INTS,
    SLOT_SEED_HIGH,
    SLOT_SEED_LOW,
    SLOT_TEMPERATURE,
)

if TYPE_CHECKING:
    from backends.engine import Engine

UNLIMITED = 2**31 - 1


def _on_device(method: Callable[Concatenate[SequenceState, Args], T]) -> Callable[Concatenate[SequenceState, Args], T]:
    """Runs the method on the engine's thread."""

    @functools.wraps(method)
    def call(self: SequenceState, /, *args: Args.args, **kwargs: Args.kwargs) -> T:
        return self._engine.on_device(method, self, *args, **kwargs)

    return call


@dataclass(frozen=True, slots=True)
class Rules:
    """How tokens are picked and when a sequence stops. budget: tokens allowed. ctx: its context in tokens. biases: (id, amount)."""

    ctx: int
    budget: int = UNLIMITED
    temperature: float = 0.0
    seed: int = 0
    ignore_end: bool = False
    biases: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """What a round gave: the tokens it committed, and the FLAG_* that stopped the sequence (0: none)."""

    tokens: tuple[int, ...]
    flags: int


class SequenceState:
    """A sequence of up to `ctx` positions. Raises DeviceError when memory runs out."""

    def __init__(self, engine: Engine, ctx: int) -> None:
        self._engine, self.ctx = engine, ctx
        self._device, self._model = engine.device, engine.model
        self._chunk = engine.config.prefill_chunk
        ends = sorted(engine.tokenizer.end_ids)
        self.work = Workspace(self._device, self._model.sizes, max(self._chunk, MAX_WINDOW), engine.groups, end_ids=ends)
        self.state = self._model.state(ctx)
        self._replays: dict[tuple[str, int], Replay] = {}

    @_on_device
    def start(self, rules: Rules) -> None:
        """Sets the rules of a new sequence; what the cells hold is never read."""
        slot = np.zeros(SLOT_INTS, np.int32)
        slot[SLOT_TEMPERATURE] = np.float32(rules.temperature).view(np.int32)
        slot[SLOT_SEED_LOW], slot[SLOT_SEED_HIGH] = np.array([rules.seed & 0xFFFFFFFF, rules.seed >> 32], np.uint32).view(np.int32)
        slot[SLOT_BUDGET], slot[SLOT_CONTEXT] = rules.budget, rules.ctx
        slot[SLOT_IGNORE_END], slot[SLOT_BIASES] = rules.ignore_end, len(rules.biases)
        self._device.upload(self.work.slots, slot)
        if rules.biases:
            self._device.upload(self.work.bias_ids, np.array([token for token, _ in rules.biases], np.int32))
            self._device.upload(self.work.biases, np.array([amount for _, amount in rules.biases], np.float32))

    def prefill(self, ids: Sequence[int], first: int = 0, progress: Callable[[float], None] | None = None) -> None:
        """Runs tokens at positions first, first+1, ... through the model, a chunk per submission, without logits."""
        for start in range(0, len(ids), self._chunk):
            self._prefill_chunk(ids[start : start + self._chunk], first + start)
            if progress is not None:
                progress(min(1.0, (start + self._chunk) / len(ids)))

    @_on_device
    def set_window(self, ids: Sequence[int], first: int) -> None:
        """The next round's rows: the last committed token at position `first`, then drafts. Raises BadValue outside window and context."""
        self._check(len(ids), first, len(ids))
        self._set(ids, first)

    @_on_device
    def round(self, rows: int = 1) -> Round:
        """Runs the table's rows (at most `rows`), picks, accepts, and leaves the next round's row in the table.

        Raises StrataError when a logit row is not a number.
        """
        self._replay("round", rows).run()
        out = self._device.download(self.work.out, np.int32, OUT_INTS)
        if out[OUT_FLAGS] & FLAG_BAD:
            where = f"position {out[OUT_BAD_POSITION]} in slot 0"
            raise StrataError(f"the logits of {where} are not numbers: the model's weights or activations overflow, or a bias bans every token")
        return Round(tuple(out[OUT_TOKENS : OUT_TOKENS + out[OUT_COUNT]].tolist()), int(out[OUT_FLAGS]))

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
    def _prefill_chunk(self, ids: Sequence[int], first: int) -> None:
        self._set(ids, first)
        self._replay("prefill").run()
        self._device.finish()  # so that progress is what was done, and Ctrl-C waits for no more than a chunk

    def _check(self, window: int, first: int, count: int) -> None:
        """Rows beyond the window or the context would be written behind the buffers' ends."""
        if not 1 <= window <= MAX_WINDOW:
            raise BadValue(f"window: {window!r} is not allowed; allowed: 1..{MAX_WINDOW}")
        if first < 0 or first + count > self.ctx:
            raise BadValue(f"positions {first}..{first + count - 1} are not allowed; allowed: 0..{self.ctx - 1}")

    def _set(self, ids: Sequence[int], first: int) -> None:
        self.work.set_rows([(0, first + i, token, 1) for i, token in enumerate(ids)])

    def _replay(self, kind: str, rows: int = MAX_WINDOW) -> Replay:
        """The recorded plan: "prefill" (no logits), "logits" (no picks) or "round"."""
        tile = self._engine.tile(rows)
        if (kind, tile) not in self._replays:
            launches: list[Launch] = self._model.rows(self.work, self.state, tile)
            if kind != "prefill":
                launches += self._model.logits(self.work, tile)
            if kind == "round":
                launches += [*self.work.picks(self._model.shape.vocab), *self._model.commit(self.work, self.state)]
            self._replays[kind, tile] = self._device.record(launches, self._engine.config.launch)
        return self._replays[kind, tile]
