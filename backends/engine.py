"""Load a model, then the serial decode loop: draft -> verify -> accept -> commit, one replay and one small read-back a round."""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.config import DEFAULT_CTX, Chunk, DecodeConfig, Request, Result, RoundTrace, Timings
from backends.decode.drafts import Counts, Scripted, traced
from backends.decode.sampling import Filters, Penalties
from backends.decode.slop import fresh, in_force
from backends.decode.slop_masks import leaves_thinking
from backends.decode.stops import StopMatcher
from backends.decode.window import WindowRules, for_request
from backends.device import Device, Launch
from backends.devices import open_device
from backends.engine_thread import Args, EngineThread, T
from backends.errors import BadValue, ModelError, StrataError
from backends.memory import Need, check_room, explained, need_of
from backends.model.architecture import open_architecture
from backends.model.gguf import GGUFFile
from backends.model.mtp import Drafter, has_drafter, read_draft_vocabulary
from backends.model.template import ChatTemplate
from backends.model.tokenizer import StreamDecoder, Tokenizer
from backends.plan import MAX_BIASES, DraftWorkspace, SlopBuffers, Workspace, programs
from backends.sequence import UNLIMITED, Rules, SequenceState
from backends.slop_masks import ClassMasks
from backends.tables import FLAG_BAD, FLAG_BUDGET, FLAG_END, MAX_WINDOW

Progress = Callable[[str, float], None]
DEFAULT_WINDOW = 4  # rows, with a drafter
MAX_GROUPS = 1 << 16  # in GPU shape a launch has a work-group for each of its items


def _silent(stage: str, fraction: float) -> None:
    pass


class Engine:
    """A loaded model on a device. Use `open`, then `session`; `close` or a with statement ends it.

    notices: one-line warnings for the user. device_line: the device as `strata devices` names it; equal lines give equal bits.
    """

    def __init__(self, file: GGUFFile, config: DecodeConfig, progress: Progress, first: Request | None = None) -> None:
        self.config, self.notices = config, list[str]()
        self.model_path = Path(file.path)
        self.model_name = self.model_path.stem
        self.model = open_architecture(file)
        self.ctx_max = self.model.shape.ctx
        if config.ctx is not None and config.ctx > self.ctx_max:
            raise BadValue(f"ctx: {config.ctx} is not allowed; allowed: 2..{self.ctx_max}, the model's context")
        self.tokenizer = Tokenizer.from_gguf(file)
        self.template = ChatTemplate.from_gguf(file, self.tokenizer)
        self.drafter = self._open_drafter(file)
        # Without a drafter, windows of more than one row come only from a request's oracle.
        self.window = (DEFAULT_WINDOW if config.spec is None else max(1, config.spec)) if self.drafter is not None else 1
        self.class_masks = ClassMasks(self.tokenizer, self.drafter, config)
        if in_force(config.slop, None):
            _ = self.class_masks.host  # lists that do not fit are found before anything is loaded
        ctx = config.ctx or 2
        if first is not None:
            ctx = self.context_for(len(self.tokenize(first)), first.max_new)
        self._thread = EngineThread()
        self.device = self.on_device(open_device, config, self.notices)
        self.device_line = self.device.line
        self.groups = config.work_groups or (self.device.units if self.device.lanes > 1 else MAX_GROUPS)
        need = self.need(ctx)
        check_room(self.device, need)
        with explained(self.device, need):
            self.on_device(self.model.load, self.device, lambda fraction: progress("loading", fraction))
            if self.drafter is not None:
                self.on_device(self.drafter.load, self.device)
        launches = self._launches
        narrow = programs(self.on_device(launches, 1))
        for i, spec in enumerate(narrow):
            progress("compiling", i / len(narrow))
            self.device.compile([spec])
        progress("compiling", 1.0)
        self._wide = _Compilation(self.device, self.on_device(launches, MAX_WINDOW), self.notices)
        # A driver at work while the interpreter ends takes the process down.
        self._end = weakref.finalize(self, _end, self._wide, self._thread)

    @classmethod
    def open(
        cls, model: str | os.PathLike[str], config: DecodeConfig | None = None, progress: Progress | None = None, first: Request | None = None
    ) -> Engine:
        """Loads a GGUF file. progress(stage, fraction) is called while "loading" and "compiling".

        first: a request whose prompt is checked before anything is loaded, so that one that cannot run fails at once.

        Raises ModelError for a file it cannot run, DeviceError without a usable device, BadValue for a setting that does not fit.
        """
        return cls(GGUFFile.open(model), config or DecodeConfig(), progress or _silent, first)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def session(self) -> Session:
        """A new sequence of its own."""
        return Session(self)

    def close(self) -> None:
        """Ends the compilation behind the engine and waits for work in flight; the engine is of no use afterwards."""
        self._end()

    def tokenize(self, request: Request) -> list[int]:
        """The prompt's token ids. Raises BadValue for an empty prompt or an id outside the vocabulary."""
        tokenizer = self.tokenizer
        if request.token_ids is not None:
            ids = list(request.token_ids)
            for token in ids:
                if not 0 <= token < tokenizer.n_vocab:
                    raise BadValue(f"token_ids: {token!r} is not allowed; allowed: 0..{tokenizer.n_vocab - 1}")
        elif request.messages is None and (request.raw or self.template is None):
            if request.system is not None:
                raise BadValue(f"system: {self.model_path} has no chat template to put it in; leave it out")
            ids = self._encode(request.prompt or "")
            if ids and tokenizer.add_bos and tokenizer.bos_id is not None and ids[0] != tokenizer.bos_id:
                ids.insert(0, tokenizer.bos_id)
        else:
            ids = self._encode(self._render(request))
        if not ids or request.prompt == "":
            raise BadValue("the prompt is empty")
        return ids

    def _encode(self, text: str) -> list[int]:
        # A token stands for no more bytes than its text has characters, so a hopeless prompt is refused without the time to cut it up.
        least = len(text) // max(map(len, self.tokenizer.tokens))
        if least >= self.ctx_max:
            raise BadValue(f"the prompt has at least {least} tokens, the model's context is {self.ctx_max}: at most {self.ctx_max - 1} fit")
        return self.tokenizer.encode(text, special=True)

    def context_for(self, prompt_tokens: int, max_new: int) -> int:
        """The context a request runs in, in tokens. Raises BadValue where the prompt leaves no room for one token more."""
        wanted = self.ctx_max if max_new == -1 else prompt_tokens + max_new
        ctx = self.config.ctx or min(self.ctx_max, max(DEFAULT_CTX, wanted))
        if prompt_tokens >= self.ctx_max:
            raise BadValue(
                f"the prompt has {prompt_tokens} tokens, the model's context is {self.ctx_max}: at most {self.ctx_max - 1} fit, whatever --ctx"
            )
        if prompt_tokens >= ctx:
            raise BadValue(f"the prompt has {prompt_tokens} tokens, the context is {ctx}: --ctx {prompt_tokens + 1} to {self.ctx_max} makes room")
        return ctx

    def need(self, ctx: int) -> Need:
        """What the weights and one sequence of `ctx` positions need of the device's memory."""
        slop = self.class_masks if in_force(self.config.slop, None) else None
        rows = max(self.config.prefill_chunk, MAX_WINDOW)
        return need_of(self.device, self.model, self.drafter, rows, self.groups, ctx, slop, self.config.mtp_slop)

    def on_device(self, call: Callable[Args, T], *args: Args.args, **kwargs: Args.kwargs) -> T:
        """Runs a call on the engine's thread and waits for what it returns or raises."""
        return self._thread.run(call, *args, **kwargs)

    def tile(self, rows: int) -> int:
        """Rows a plan's programs take at once. Until those for more than one are compiled, rows run one by one, with the same bits."""
        return MAX_WINDOW if rows > 1 and self._wide.done() else 1

    def wait_wide(self) -> None:
        """Waits until the programs for windows of more than one row are compiled. Raises DeviceError when they do not compile."""
        self._wide.wait()

    def _launches(self, tile: int) -> list[Launch]:
        work = Workspace(self.device, self.model.sizes, 1, 1, 1)
        state = self.model.state(1)
        slop = SlopBuffers(work.x, work.x, work.x if self.config.mtp_slop else None) if in_force(self.config.slop, None) else None
        picks = work.picks(self.model.shape.vocab, filtered=tile > 1, slop=slop)
        launches = [*self.model.rows(work, state, tile), *self.model.logits(work, tile), *picks]
        if self.drafter is not None:
            draft_work = DraftWorkspace(self.device, self.drafter.sizes, 1, 1, 1)
            thresholds = None if self.config.spec_p_cum is None else draft_work.x
            launches += self.drafter.round(draft_work, self.drafter.state(1), work, tile, 1, thresholds, slop)
        return launches

    def _open_drafter(self, file: GGUFFile) -> Drafter | None:
        """The drafter that the configuration means, checked but not loaded; None where nothing is to be drafted."""
        config = self.config
        own = has_drafter(file)
        if config.mtp is False or (config.spec is not None and config.spec <= 1):
            return None
        if config.mtp_model is None and not own:
            if config.mtp:
                raise BadValue(f"{file.path} has no MTP layer (nextn tensors) to draft with; --mtp needs one, or a file with one by --mtp-model")
            if config.spec is not None:
                self.notices.append(f"--spec {config.spec}: {file.path} has no MTP layer to draft with; decoding plainly")
            return None
        source = file if config.mtp_model is None else GGUFFile.open(config.mtp_model)
        if source is not file and not has_drafter(source):
            raise ModelError(f"{source.path}: the file has no MTP layer: no tensor blk.N.nextn.eh_proj.weight")
        vocabulary = None if config.draft_vocab is None else read_draft_vocabulary(Path(config.draft_vocab), self.model.shape.vocab)
        return Drafter(source, self.model, vocabulary)

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
        text = self.template.render(messages)
        if not text:
            raise ModelError(f"{self.model_path}: the chat template makes nothing of the prompt; --raw does without it")
        return text


def _end(wide: _Compilation, thread: EngineThread) -> None:
    wide.stop()
    thread.close()


class _Compilation:
    """Compiles a plan's programs in a thread of its own. A failure gives a notice: the engine then does without them, slowly."""

    def __init__(self, device: Device, launches: Sequence[Launch], notices: list[str]) -> None:
        self._device, self._specs, self._notices = device, programs(launches), notices
        self._stopped = False
        self._error: StrataError | None = None
        self._thread = threading.Thread(target=self._run, name="strata-compile", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for spec in self._specs:
                if self._stopped:
                    return
                self._device.compile([spec])
        except StrataError as error:
            self._error = error
            self._notices.append(f"{error}; rows run one by one, which is slow for a long prompt")

    def done(self) -> bool:
        return not self._thread.is_alive() and self._error is None and not self._stopped

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._stopped = True
            self._thread.join()


class Session:
    """One conversation with a model at a time. Not for use from two threads at once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.result: Result | None = None
        self._sequence: SequenceState | None = None
        self._turn = 0

    def generate(self, request: Request, progress: Progress | None = None, trace: Callable[[RoundTrace], None] | None = None) -> Iterator[Chunk]:
        """Yields the text as it comes; afterwards `result` holds the whole. progress("prefill", fraction) is called on the way, trace after
        every round.

        Raises BadValue before any work (empty prompt, prompt longer than the context, ids outside the vocabulary), then StrataError when
        logits are not numbers or when a later generation of this session has begun, DeviceError.
        """
        engine, self.result = self.engine, None
        ids = engine.tokenize(request)
        ctx = engine.context_for(len(ids), request.max_new)
        slop = in_force(engine.config.slop, request.slop)
        rules = Rules(
            ctx=ctx,
            budget=UNLIMITED if request.max_new == -1 else request.max_new,
            temperature=request.temperature,
            filters=Filters(request.top_k, request.top_p, request.min_p),
            penalties=Penalties(request.repeat_penalty, request.presence_penalty, request.frequency_penalty, request.repeat_last_n),
            seed=secrets.randbits(64) if request.seed is None else request.seed,
            ignore_end=request.ignore_eos,
            biases=self._biases(request),
            window=engine.window if request.oracle is None else engine.config.spec or DEFAULT_WINDOW,
            drafts=for_request(WindowRules(engine.config.spec_min_p, engine.config.spec_p_cum), request.tune),
            slop=slop,
            slop_state=fresh(slop is not None and leaves_thinking(engine.tokenizer, engine.class_masks.host, ids)),
            slop_drafts=engine.config.mtp_slop,
        )
        return self._run(self.sequence(ctx), request, ids, rules, progress or _silent, trace)

    def _run(
        self,
        sequence: SequenceState,
        request: Request,
        ids: list[int],
        rules: Rules,
        progress: Progress,
        trace: Callable[[RoundTrace], None] | None,
    ) -> Iterator[Chunk]:
        started = time.perf_counter()
        self._turn = turn = self._turn + 1
        scripted = Scripted.of(request, rules.window, self.engine.tokenizer.n_vocab)
        if request.oracle is not None:
            rules = replace(rules, window=1)  # the device drafts nothing; the rows come from here
        sequence.start(rules)
        progress("prefill", 0.0)
        following = ids[-1] if rules.window > 1 else None
        sequence.prefill(ids[:-1], progress=lambda fraction: progress("prefill", fraction), following=following)
        progress("prefill", 1.0)
        prefilled = time.perf_counter()
        sequence.set_window(ids[-1:], len(ids) - 1)

        decoder, matcher = StreamDecoder(self.engine.tokenizer), StopMatcher(request.stop)
        tokens: list[int] = []
        texts: list[str] = []
        counts = Counts()
        rows, reason = 1, ""
        while not reason:
            if turn != self._turn:
                raise StrataError("a later generation of this session has begun; for two at a time use two sessions")
            depth, begun = len(ids) - 1 + len(tokens), time.perf_counter()
            made = sequence.round(rows)
            counts.add(rows, made)
            if trace is not None:
                trace(traced(rules.drafts, depth, rows, made, 1e3 * (time.perf_counter() - begun)))
            text, fresh = "", 0
            for fresh, token in enumerate(made.tokens, 1):
                tokens.append(token)
                ends = made.flags & FLAG_END and fresh == len(made.tokens)
                safe, stopped = matcher.push("" if ends else decoder.push([token]))
                text += safe
                if stopped:
                    reason = "stop"
                    break
            if not reason and made.flags & FLAG_BAD:
                yield Chunk(text, tuple(tokens[len(tokens) - fresh :]))
                where = f"position {made.bad_position} in slot 0"
                raise StrataError(f"the logits of {where} are not numbers: the model's weights or activations overflow, or a bias bans every token")
            if not reason and made.flags:
                reason = "stop" if made.flags & FLAG_END else "length" if made.flags & FLAG_BUDGET else "context"
                safe, stopped = matcher.push(decoder.flush())
                text += safe if stopped else safe + matcher.flush()
            texts.append(text)
            if reason:
                self.result = Result(
                    text="".join(texts),
                    token_ids=tuple(tokens),
                    finish_reason=reason,
                    prompt_tokens=len(ids),
                    speculation=counts.speculation(),
                    timings=Timings(1e3 * (prefilled - started), 1e3 * (time.perf_counter() - prefilled)),
                    seed=rules.seed,
                    ctx=rules.ctx,
                )
            else:
                rows = 1 + made.kept
                if scripted is not None:
                    room = min(rules.ctx - 2 - (len(ids) - 1 + len(tokens)), rules.budget - len(tokens) - 1)
                    drafts = scripted.drafts(len(tokens), made.drafts[: made.kept])[: max(0, room)]
                    sequence.set_window([tokens[-1], *drafts], len(ids) - 1 + len(tokens))
                    rows = 1 + len(drafts)
            yield Chunk(text, tuple(tokens[len(tokens) - fresh :]))

    def logits(self, ids: Sequence[int], first: int = 0, chunk: int = MAX_WINDOW) -> NDArray[np.float32]:
        """Logits float32 [len(ids), vocabulary] of tokens at positions first, first+1, ...; rows run `chunk` (1..8) at a time.

        Positions before `first` must have run before, in a context with room for all: `sequence(ctx)` makes it.
        Raises BadValue for an id or a position outside the model's, and where cells before `first` cannot be there.
        """
        self.engine.tokenize(Request(token_ids=tuple(ids)))
        ctx = max(first + len(ids), 2)
        if first > 0 and (self._sequence is None or self._sequence.ctx < ctx):
            raise BadValue(
                f"first: {first} is not allowed; no cells before it in a context of {ctx}: run all from 0 on, or call sequence({ctx}) first"
            )
        return self.sequence(ctx).logits(ids, first, chunk)

    def window_ms(self, rows: int, repeats: int, first: int) -> list[float]:
        """Milliseconds of `repeats` rounds (run, pick, accept, read back) of `rows` rows at positions first, ...; their tokens do not matter."""
        return self.sequence(max(1, first + rows)).window_ms(rows, first, repeats)

    def sequence(self, ctx: int) -> SequenceState:
        """The token-level state under this session, with room for `ctx` positions; growing loses what its cells held."""
        if not 1 <= ctx <= self.engine.ctx_max:
            raise BadValue(f"context: {ctx} is not allowed; allowed: 1..{self.engine.ctx_max}, the model's")
        if self._sequence is None or self._sequence.ctx < ctx:
            self._sequence = None  # its memory goes before the larger one is asked for
            need = self.engine.need(ctx)
            check_room(self.engine.device, need, loaded=True)
            with explained(self.engine.device, need):
                self._sequence = self.engine.on_device(SequenceState, self.engine, ctx)
        return self._sequence

    def _biases(self, request: Request) -> tuple[tuple[int, float], ...]:
        n_vocab = self.engine.tokenizer.n_vocab
        for token in request.logit_bias:
            if token >= n_vocab:
                raise BadValue(f"logit_bias: token {token} is not allowed; allowed: 0..{n_vocab - 1}")
        if len(request.logit_bias) > MAX_BIASES:
            raise BadValue(f"logit_bias: {len(request.logit_bias)} entries are not allowed; allowed: up to {MAX_BIASES}")
        return tuple(sorted(request.logit_bias.items()))
