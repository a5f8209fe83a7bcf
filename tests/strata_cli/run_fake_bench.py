"""`strata bench` on a stand-in engine. As a process it is an arm's run, or with --parent ARGUMENTS... the command itself.

FAKE in an arm's environment says what its engine does: "drafts", "other" texts, "slow", or how it fails.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from backends.config import Chunk, Request, Result, Speculation, Timings
from backends.errors import BadValue, DeviceError
from strata_cli.benchmark import process
from tests.strata_cli import fake_backend

COMMAND = [sys.executable, "-m", "tests.strata_cli.run_fake_bench"]
FAKE = os.environ.get("FAKE", "")


class Tokenizer:
    """Words."""

    def encode(self, text: str, special: bool) -> list[str]:
        return text.split()

    def decode(self, ids: list[str]) -> str:
        return " ".join(ids)


class Engine(fake_backend.Engine):
    """Answers a prompt with its own words, a token each, at a speed that depends on FAKE alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer: Any = Tokenizer()
        self.ctx: int | None = None

    @classmethod
    def open(cls, model: Any, config: Any, progress: Any = None, first: Any = None) -> Engine:
        if FAKE == "no device":
            raise DeviceError("no such device")
        if FAKE == "notice":
            cls.script.notices = ["running on NumPy, slowly"]
        print("a driver's noise", flush=True)
        os.write(1, b"and more of it\n")
        engine = cls()
        engine.ctx = config.ctx
        return engine

    def wait_wide(self) -> None:
        pass

    def context_for(self, prompt_tokens: int, max_new: int) -> int:
        if FAKE == "small":
            raise BadValue(f"the prompt has {prompt_tokens} tokens, the context is 2")
        return self.ctx or max(4096, prompt_tokens + max_new)

    def sequence(self, ctx: int) -> None:
        pass

    def window_ms(self, rows: int, repeats: int, first: int) -> list[float]:
        return [1.0 + 0.1 * rows + (0.5 if FAKE == "slow" else 0.0)] * repeats

    def generate(self, request: Request, progress: Any = None) -> Iterator[Chunk]:
        words = (request.prompt or "").split()
        measured = request.max_new > 8
        if measured and FAKE == "hang":
            time.sleep(60)
        if measured and FAKE == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if measured and FAKE == "fails":
            raise DeviceError("the device gave up")
        if FAKE == "other" and request.temperature > 0:
            words = [*words[:-1], f"seed{request.seed}"]
        words = words[: request.max_new]
        yield Chunk(" ".join(words), tuple(map(len, words)))
        drafts = Speculation(rounds=2, drafted=4, accepted=3, by_position=((2, 2), (2, 1))) if FAKE == "drafts" else Speculation(rounds=len(words))
        self.result = Result(
            text=" ".join(words),
            token_ids=tuple(map(len, words)),
            finish_reason="stop",
            prompt_tokens=len(words) + 1,
            speculation=drafts,
            timings=Timings(prefill_ms=1.0 * len(words), decode_ms=(5.5 if FAKE == "slow" else 5.0) * len(words)),
            seed=request.seed or 0,
            ctx=4096,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--parent"]:
        from strata_cli.main import main

        signal.signal(signal.SIGINT, signal.default_int_handler)
        process.STRATA[:] = COMMAND
        sys.argv[1:] = sys.argv[2:]
        sys.exit(main())
    fake_backend.install(fake_backend.Script())
    sys.modules["backends.engine"].Engine = Engine  # type: ignore[attr-defined]
    from strata_cli.benchmark import child

    sys.exit(child.main())
