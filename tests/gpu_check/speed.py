"""How fast one model decodes on one device, and what limits it. docs/benchmarks.md says what each figure means."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from backends.config import DecodeConfig, Request
from backends.device import Device, Launch, Replay
from backends.engine import Engine, Session
from backends.errors import OutOfMemory
from backends.model.gguf import GGUFFile
from backends.sequence import Rules, SequenceState
from tests.gpu_check.profile import profile, weight_bytes
from tests.gpu_check.shapes import CTX, SHAPES, random_file
from tests.gpu_check.weights import random_weights

PROMPT = tuple(range(5, 21))
WINDOWS = (1, 2, 4, 8)
ALWAYS_FIT = ("tiny", "135M")
PREFILL, TOKENS, REPEATS, SUBMISSIONS = 512, 64, 15, 31

Figures = dict[str, Any]


class Deadline:
    """What is still measured. left_out: the names of what was not."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.left_out: list[str] = []

    def allows(self, name: str, seconds: float = 0.0) -> bool:
        """Whether there is time for it; it is noted where there is not."""
        if time.monotonic() + seconds < self._end:
            return True
        self.left_out.append(name)
        return False


def measure(model: str, config: DecodeConfig, weight_type: str, seconds: float, quick: bool, is_file: bool) -> Figures:
    """The figures of one model: a shape's name with random weights, or a GGUF file's path. "skipped" says why there are none.

    seconds: measurements that have not begun by then are left out, and named in "left_out".
    """
    deadline = Deadline(seconds)
    about: Figures = {"model": model, "type": None if is_file else weight_type, "parameters": None if is_file else SHAPES[model].parameters}
    begun = time.perf_counter()
    try:
        if is_file:
            engine = Engine(GGUFFile.open(model), config, lambda stage, fraction: None)
        else:
            with random_weights():
                engine = Engine(random_file(model, weight_type), config, lambda stage, fraction: None)
        with engine:
            engine.wait_wide()
            about["load_s"] = time.perf_counter() - begun
            about |= _figures(engine, deadline, quick)
    except OutOfMemory as error:
        # No GPU is too small for it: what a driver calls memory is something else then.
        return about | {"failure" if model in ALWAYS_FIT else "skipped": str(error)}
    return about | {"left_out": deadline.left_out}


def _figures(engine: Engine, deadline: Deadline, quick: bool) -> Figures:
    session, found = engine.session(), Figures()
    ctx = min(CTX, engine.ctx_max)
    sequence = session.sequence(ctx)
    rounds = _replays_of(engine, lambda: session.window_ms(1, 1, 0))
    found["launches"], found["replay"] = len(rounds.launches), rounds.kind
    found["weight_bytes"] = weight_bytes(engine.model, rounds.launches)
    step = statistics.median(session.window_ms(1, 3, 0)) / 1e3
    if deadline.allows("decode", step * TOKENS):
        tokens = max(4, min(TOKENS // 4 if quick else TOKENS, ctx - len(PROMPT)))
        _decode_ms(session, 2)
        decode_ms = _decode_ms(session, tokens)
        found["decode_tok_s"], found["step_ms"] = 1e3 * tokens / decode_ms, decode_ms / tokens
        found["weight_gb_s"] = found["weight_bytes"] * tokens / decode_ms / 1e6
    found["window_ms"] = {}
    for rows in WINDOWS:
        repeats = max(3, min(REPEATS, int(1 / step)))
        if deadline.allows(f"window {rows}", step * repeats):
            found["window_ms"][str(rows)] = statistics.median(session.window_ms(rows, repeats, len(PROMPT)))
    if {"1", "4"} <= set(found["window_ms"]):
        found["window_ratio"] = found["window_ms"]["4"] / found["window_ms"]["1"]
    if deadline.allows("host", step * SUBMISSIONS):
        found["host_us"] = _host_us(engine, sequence, rounds)
    if deadline.allows("profile", 30 * step):
        found["profile_step_ms"] = statistics.median(session.window_ms(1, 3, ctx // 2))
        found["profile"] = engine.on_device(profile, engine, sequence, rounds.launches, ctx // 2)
    # Last, since it takes longest: half a thousand rows.
    if deadline.allows("prefill", step * PREFILL / 4):
        found["prefill_tok_s"] = _prefill_tok_s(session, min(PREFILL, ctx - 2))
    return found


def _replays_of(engine: Engine, call: Callable[[], Any]) -> Replay:
    """The replay that a call records last."""
    made: list[Replay] = []
    record = engine.device.record

    def spy(launches: list[Launch], style: str = "auto") -> Replay:
        made.append(record(launches, style))
        return made[-1]

    engine.device.record = spy  # type: ignore[method-assign,assignment]
    try:
        call()
    finally:
        del engine.device.record  # the class's own again
    return made[-1]


def _decode_ms(session: Session, tokens: int) -> float:
    for _ in session.generate(Request(token_ids=PROMPT, max_new=tokens, ignore_eos=True)):
        pass
    assert session.result is not None
    return session.result.timings.decode_ms


def _prefill_tok_s(session: Session, rows: int) -> float:
    """Prompt rows a second, the last one's logits not among them; the first, small prompt records the plan."""

    def prefill_ms(count: int) -> float:
        ids = tuple(5 + i % 50 for i in range(count + 1))
        for _ in session.generate(Request(token_ids=ids, max_new=1, ignore_eos=True)):
            pass
        assert session.result is not None
        return session.result.timings.prefill_ms

    prefill_ms(8)
    return 1e3 * rows / prefill_ms(rows)


def _host_us(engine: Engine, sequence: SequenceState, rounds: Replay) -> float:
    """Microseconds that submitting a round takes the host, which does not wait for it; the device has nothing else to do then."""
    device: Device = engine.device

    def submissions() -> list[float]:
        times = []
        for _ in range(SUBMISSIONS):
            sequence.start(Rules(sequence.ctx, ignore_end=True))
            sequence.set_window([5], 0)
            device.finish()
            begun = time.perf_counter()
            rounds.run()
            times.append(1e6 * (time.perf_counter() - begun))
            device.finish()
        return times

    return statistics.median(engine.on_device(submissions))
