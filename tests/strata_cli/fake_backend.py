"""A stand-in for backends.engine and backends.devices: it answers from `Script`, so the command line is tested without a device."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from backends.config import Chunk, DecodeConfig, Request, Result, RoundTrace, Speculation, Timings


@dataclass
class Script:
    """What the engine will do, and what it was asked."""

    pieces: list[str] = field(default_factory=lambda: ["Hello", ",", " world"])
    finish_reason: str = "stop"
    speculation: Speculation = field(default_factory=lambda: Speculation(rounds=3))
    notices: list[str] = field(default_factory=list)
    endless: bool = False
    open_error: BaseException | None = None
    fail_after: int | None = None
    error: BaseException | None = None
    errors: dict[str, BaseException] = field(default_factory=dict)  # by prompt
    delay: float = 0.0  # seconds a token takes
    opened: list[tuple[str, DecodeConfig]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    closed: int = 0
    drafter: bool = False  # whether the model drafts
    n_vocab: int = 100
    traces: list[RoundTrace] = field(default_factory=list)  # one for each token


@dataclass
class Words:
    """A tokenizer: a word's token is its length."""

    n_vocab: int

    def encode(self, text: str, special: bool) -> list[int]:
        return list(map(len, text.split()))


class Engine:
    """Engine and session in one."""

    script: ClassVar[Script] = Script()
    device_line = "opencl cpu/0: Test CPU (2 units, Test OpenCL)"
    model_name = "Test model"

    def __init__(self) -> None:
        self.result: Result | None = None
        self.notices = list(self.script.notices)
        self.drafter = object() if self.script.drafter else None
        self.window = 4 if self.script.drafter else 1
        self.tokenizer = Words(self.script.n_vocab)

    @classmethod
    def open(cls, model: Any, config: DecodeConfig, progress: Callable[[str, float], None] | None = None, first: Any = None) -> Engine:
        if progress is not None:
            progress("loading", 0.0)
            progress("compiling", 1.0)
        cls.script.opened.append((str(model), config))
        if cls.script.open_error is not None:
            raise cls.script.open_error
        return cls()

    def tokenize(self, request: Request) -> list[int]:
        return list(range(len((request.prompt or "").split())))

    def session(self) -> Engine:
        return self

    def close(self) -> None:
        self.script.closed += 1

    def generate(
        self,
        request: Request,
        progress: Callable[[str, float], None] | None = None,
        trace: Callable[[RoundTrace], None] | None = None,
    ) -> Iterator[Chunk]:
        script = self.script
        script.requests.append(request)
        if progress is not None:
            progress("prefill", 1.0)
        if request.prompt in script.errors:
            raise script.errors[request.prompt]
        ids: list[int] = []
        while True:
            for index, piece in enumerate(script.pieces):
                if script.error is not None and index == script.fail_after:
                    raise script.error
                ids.append(index)
                if trace is not None and index < len(script.traces):
                    trace(script.traces[index])
                time.sleep(script.delay)
                yield Chunk(piece, (index,))
                if script.endless:
                    time.sleep(0.001)
            if not script.endless:
                break
        self.result = Result(
            text="".join(script.pieces),
            token_ids=tuple(ids),
            finish_reason=script.finish_reason,
            prompt_tokens=len(self.tokenize(request)),
            speculation=script.speculation,
            timings=Timings(prefill_ms=100.0, decode_ms=50.0),
            seed=0 if request.seed is None else request.seed,
            ctx=4096,
        )


@dataclass
class DeviceInfo:
    """As backends.devices has it."""

    name: str = "cpu/0"
    backend: str = "opencl"
    description: str = "Test CPU"
    driver: str = "Test OpenCL"
    units: int = 2
    memory: int = 8 * 2**30
    default: bool = True
    details: dict[str, str] = field(default_factory=lambda: {"fast dot": "avx512-vnni", "submissions per round": "1"})


def modules(script: Script, devices: list[DeviceInfo] | None = None, missing: list[str] | None = None) -> dict[str, types.ModuleType]:
    """The modules to put in place of the real ones."""
    Engine.script = script
    engine, listing = types.ModuleType("backends.engine"), types.ModuleType("backends.devices")
    engine.Engine = Engine  # type: ignore[attr-defined]
    engine.DEFAULT_WINDOW = 4  # type: ignore[attr-defined]
    found = [DeviceInfo(), DeviceInfo("numpy", "numpy", "NumPy reference", "", 1, 0, False, {})] if devices is None else devices
    listing.DeviceInfo = DeviceInfo  # type: ignore[attr-defined]
    listing.list_devices = lambda: found  # type: ignore[attr-defined]
    listing.missing = lambda: list(missing or [])  # type: ignore[attr-defined]
    return {"backends.engine": engine, "backends.devices": listing}


def install(script: Script) -> None:
    """Put them in place for good: for the processes that tests start."""
    sys.modules.update(modules(script))
