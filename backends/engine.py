"""Load a model, then the serial decode loop: draft -> verify -> accept -> commit, one replay and one small read-back a round."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from backends.config import DEFAULT_CTX, Chunk, DecodeConfig, Request, Result, Speculation, Timings
from backends.decode.stops import StopMatcher
from backends.device import Launch, Replay
from backends.devices import open_device
from backends.errors import BadValue, ModelError, StrataError
from backends.model.architecture import open_architecture
from backends.model.gguf import GGUFFile
from backends.model.template import ChatTemplate
from backends.model.tokenizer import StreamDecoder, Tokenizer
from backends.plan import MAX_BIASES, MAX_END_IDS, Workspace, programs
from backends.tables import (
    FLAG_BAD,
    FLAG_BUDGET,
    FLAG_END,
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

Progress = Callable[[str, float], None]


def _silent(stage: str, fraction: float) -> None:
    pass


class Engine:
    """A loaded model on a device. Use `open`, then `session`.

    notices: one-line warnings for the user. device_line: the device as `strata devices` names it; equal lines give equal bits.
    """

    def __init__(self, file: GGUFFile, config: DecodeConfig, progress: Progress) -> None:
        self.config, self.notices = config, list[str]()
        self.model_path = Path(file.path)
        self.model_name = self.model_path.stem
        self.model = open_architecture(file)
        self.ctx_max = self.model.shape.ctx
        if config.ctx is not None and config.ctx > self.ctx_max:
            raise BadValue(f"ctx: {config.ctx} is not allowed; allowed: 2..{self.ctx_max}, the model's context")
        self.tokenizer = Tokenizer.from_gguf(file)
        self.template = ChatTemplate.from_gguf(file, self.tokenizer)
        self.device = open_device(config, self.notices)
        self.device_line = self.device.line
        self.groups = config.work_groups or self.device.units
        self.model.load(self.device, lambda fraction: progress("loading", fraction))
        self._wide = threading.Event()
        self._compile(progress)

    @classmethod
    def open(cls, model: str | os.PathLike[str], config: DecodeConfig | None = None, progress: Progress | None = None) -> Engine:
        """Loads a GGUF file. progress(stage, fraction) is called while "loading" and "compiling".

        Raises ModelError for a file it cannot run, DeviceError without a usable device, BadValue for a setting that does not fit.
        """
        return cls(GGUFFile.open(model), config or DecodeConfig(), progress or _silent)

    def session(self) -> Session:
        """A new sequence of its own."""
        return Session(self)

    def close(self) -> None:
        """Waits for work in flight; the memory goes with the object."""
        self.device.finish()

    def tokenize(self, request: Request) -> list[int]:
        """The prompt's token ids. Raises BadValue for an empty prompt or an id outside the vocabulary."""
        if request.token_ids is not None:
            ids = list(request.token_ids)
            for token in ids:
                if not 0 <= token < self.tokenizer.n_vocab:
                    raise BadValue(f"token_ids: {token!r} is not allowed; allowed: 0..{self.tokenizer.n_vocab - 1}")
        elif request.messages is None and (request.raw or self.template is None):
            ids = self.tokenizer.encode(request.prompt or "", special=True)
            if self.tokenizer.add_bos and self.tokenizer.bos_id is not None and ids[:1] != [self.tokenizer.bos_id]:
                ids.insert(0, self.tokenizer.bos_id)
        else:
            ids = self.tokenizer.encode(self._render(request), special=True)
        if not ids or request.prompt == "":
            raise BadValue("the prompt is empty")
        return ids

    def context_for(self, prompt_tokens: int, max_new: int) -> int:
        """The context a request runs in, in tokens. Raises BadValue where the prompt leaves no room for one token more."""
        wanted = self.ctx_max if max_new == -1 else prompt_tokens + max_new
        ctx = self.config.ctx or min(self.ctx_max, max(DEFAULT_CTX, wanted))
        if prompt_tokens >= ctx:
            if prompt_tokens >= self.ctx_max:
                raise BadValue(f"the prompt has {prompt_tokens} tokens, the model's context {self.ctx_max}: shorten the prompt to at most {self.ctx_max - 1} tokens")
            raise BadValue(f"the prompt has {prompt_tokens} tokens, the context {ctx}: --ctx {prompt_tokens + 1} to {self.ctx_max} makes room")
        return ctx

    def wide(self) -> bool:
        """Whether the programs for windows of more than one row are ready. Until then rows run one by one, with the same bits."""
        return self._wide.is_set()

    def wait_wide(self) -> None:
        """Waits until the programs for windows of more than one row are ready."""
        self._wide_thread.join()
        if not self._wide.is_set():
            raise self._wide_error

    def _render(self, request: Request) -> str:
        if self.template is None:
            raise ModelError(f"{self.model_path}: the file has no chat template, so messages cannot be rendered; a raw prompt can")
        messages: Sequence[Mapping[str, str]]
        if request.messages is not None:
            messages = request.messages
        else:
            messages = [{"role": "user", "content": request.prompt or ""}]
            if request.system is not None:
                messages = [{"role": "system", "content": request.system}, *messages]
        return self.template.render(messages)

    def _compile(self, progress: Progress) -> None:
        """Programs for one row now, those for up to eight behind them: a cold start's first text needs only the former."""
        work = Workspace(self.device, self.model.sizes, 1, 1)
        state = self.model.state(1)

        def specs(tile: int) -> list[Launch]:
            return [*self.model.rows(work, state, tile), *self.model.logits(work, tile), *work.picks(self.model.shape.vocab)]

        narrow = programs(specs(1))
        for i, spec in enumerate(narrow):
            progress("compiling", i / len(narrow))
            self.device.compile([spec])
        progress("compiling", 1.0)

        def widen() -> None:
            try:
                self.device.compile(programs(specs(MAX_WINDOW)))
                self._wide.set()
            except StrataError as error:
                self._wide_error = error

        self._wide_thread = threading.Thread(target=widen, name="strata-compile", daemon=True)
        self._wide_thread.start()


class Session:
    """One sequence: its KV cells, tables and recorded plans. Not for use from two threads at once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.result: Result | None = None
        self._ctx = 0
        self._plans: dict[tuple[str, int], Replay] = {}

    def generate(self, request: Request, progress: Progress | None = None) -> Iterator[Chunk]:
        """Yields the text as it comes; afterwards `result` holds the whole. progress("prefill", fraction) is called on the way.

        Raises BadValue before any work (empty prompt, prompt longer than the context, ids outside the vocabulary), StrataError when a
        logit row is not a number, DeviceError.
        """
        engine, self.result = self.engine, None
        ids = engine.tokenize(request)
        ctx = engine.context_for(len(ids), request.max_new)
        biases = self._biases(request)
        seed = secrets.randbits(64) if request.seed is None else request.seed
        self._allocate(ctx)
        return self._run(request, ids, ctx, biases, seed, progress or _silent)

    def _run(self, request: Request, ids: list[int], ctx: int, biases: list[tuple[int, float]], seed: int, progress: Progress) -> Iterator[Chunk]:
        started = time.perf_counter()
        self._set_slot(request, ctx, biases, seed)
        self.prefill(ids[:-1], progress=progress)
        self.engine.device.finish()
        prefilled = time.perf_counter()
        self.work.set_rows([(0, len(ids) - 1, ids[-1], 1)])

        tokenizer = self.engine.tokenizer
        decoder, matcher = StreamDecoder(tokenizer), StopMatcher(request.stop)
        tokens: list[int] = []
        texts: list[str] = []
        rounds, reason = 0, ""
        while not reason:
            flags, new = self._round()
            rounds += 1
            text, fresh = "", 0
            for fresh, token in enumerate(new, 1):
                tokens.append(token)
                ends = flags & FLAG_END and fresh == len(new)
                safe, stopped = matcher.push("" if ends else decoder.push([token]))
                text += safe
                if stopped:
                    reason = "stop"
                    break
            if not reason and flags:
                reason = "stop" if flags & FLAG_END else "length" if flags & FLAG_BUDGET else "context"
                safe, stopped = matcher.push(decoder.flush())
                text += safe + ("" if stopped else matcher.flush())
            texts.append(text)
            if reason:
                self.result = Result(
                    text="".join(texts), token_ids=tuple(tokens), finish_reason=reason, prompt_tokens=len(ids), speculation=Speculation(rounds=rounds),
                    timings=Timings(1e3 * (prefilled - started), 1e3 * (time.perf_counter() - prefilled)), seed=seed, ctx=ctx,
                )  # fmt: skip
            yield Chunk(text, tuple(tokens[len(tokens) - fresh :]))

    def prefill(self, ids: Sequence[int], first: int = 0, progress: Progress = _silent) -> None:
        """Runs tokens at positions first, first+1, ... through the model, a chunk per submission, without logits."""
        chunk = self.engine.config.prefill_chunk
        for start in range(0, len(ids), chunk):
            progress("prefill", start / len(ids))
            self.work.set_rows([(0, first + start + i, token, 1) for i, token in enumerate(ids[start : start + chunk])])
            self._plan("prefill").run()
        progress("prefill", 1.0)

    def _round(self) -> tuple[int, list[int]]:
        self._plan("decode").run()
        out = self.engine.device.download(self.work.out, np.int32, OUT_INTS)
        if out[OUT_FLAGS] & FLAG_BAD:
            raise StrataError(f"the logits of position {out[OUT_BAD_POSITION]} in slot 0 are not numbers: the model file is damaged or the context too long for it")
        return int(out[OUT_FLAGS]), out[OUT_TOKENS : OUT_TOKENS + out[OUT_COUNT]].tolist()

    def _plan(self, kind: str) -> Replay:
        engine = self.engine
        tile = MAX_WINDOW if kind == "prefill" and engine.wide() else 1
        if (kind, tile) not in self._plans:
            launches = engine.model.rows(self.work, self._state, tile)
            if kind == "decode":
                launches += [*engine.model.logits(self.work, tile), *self.work.picks(engine.model.shape.vocab)]
            self._plans[kind, tile] = engine.device.record(launches, engine.config.launch)
        return self._plans[kind, tile]

    def _allocate(self, ctx: int) -> None:
        if ctx <= self._ctx:
            return
        engine = self.engine
        self._plans.clear()
        self.work = Workspace(engine.device, engine.model.sizes, max(engine.config.prefill_chunk, MAX_WINDOW), engine.groups)
        self._state = engine.model.state(ctx)
        ends = sorted(engine.tokenizer.end_ids)[:MAX_END_IDS]
        engine.device.upload(self.work.end_ids, np.array([len(ends), *ends], np.int32))
        self._ctx = ctx

    def _biases(self, request: Request) -> list[tuple[int, float]]:
        n_vocab = self.engine.tokenizer.n_vocab
        for token in request.logit_bias:
            if token >= n_vocab:
                raise BadValue(f"logit_bias: token {token} is not allowed; allowed: 0..{n_vocab - 1}")
        if len(request.logit_bias) > MAX_BIASES:
            raise BadValue(f"logit_bias: {len(request.logit_bias)} entries are not allowed; allowed: up to {MAX_BIASES}")
        return sorted(request.logit_bias.items())

    def _set_slot(self, request: Request, ctx: int, biases: list[tuple[int, float]], seed: int) -> None:
        device = self.engine.device
        slot = np.zeros(SLOT_INTS, np.int32)
        slot[SLOT_TEMPERATURE] = np.float32(request.temperature).view(np.int32)
        slot[SLOT_SEED_LOW], slot[SLOT_SEED_HIGH] = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)
        slot[SLOT_BUDGET] = 2**31 - 1 if request.max_new == -1 else request.max_new
        slot[SLOT_CONTEXT] = ctx
        slot[SLOT_IGNORE_END] = request.ignore_eos
        slot[SLOT_BIASES] = len(biases)
        device.upload(self.work.slots, slot)
        if biases:
            device.upload(self.work.bias_ids, np.array([token for token, _ in biases], np.int32))
            device.upload(self.work.biases, np.array([amount for _, amount in biases], np.float32))
