"""`strata generate`: text from one prompt."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from backends.config import INT_MAX, Request, Result, RoundTrace, Speculation, Timings
from backends.decode.slop import OFF
from backends.errors import BadValue, StrataError
from strata_cli import drafting
from strata_cli.grammar import Grammar, integer, refuse
from strata_cli.main import INTERRUPTED
from strata_cli.messages import complain, warn
from strata_cli.options import Settings, shared_options
from strata_cli.oracle import Oracle
from strata_cli.output import Unwritable, as_object, json_biases, statistics, write_json, write_stdout
from strata_cli.progress import Progress
from strata_cli.prompt import check_utf8, read_prompt
from strata_cli.trace import Trace

if TYPE_CHECKING:
    from backends.engine import Engine

CORRUPT = integer(0, INT_MAX)


@click.command("generate", short_help="Generate text from a prompt.")
@click.argument("prompt", required=False)
@click.option("-f", "--file", metavar="FILE", help="Read the prompt from a file; -: standard input.")
@click.option("--raw", is_flag=True, help="Use the prompt as it is, without the model's chat template.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt; not with --raw.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option(
    "--spec-oracle", "oracle", metavar="FILE", help="Draft from this continuation, what --json printed or a text, in place of an MTP layer."
)
@click.option("--spec-corrupt", "corrupt", metavar="N", help="Make every Nth draft a wrong one, for tests and measurements.")
@click.option(
    "--trace", "trace_file", metavar="FILE.jsonl", help="Write a JSON line for every round: its drafts, their probabilities, what was kept."
)
@shared_options
def command(
    settings: Settings,
    prompt: str | None,
    file: str | None,
    raw: bool,
    system: str | None,
    as_json: bool,
    oracle: str | None,
    corrupt: str | None,
    trace_file: str | None,
) -> int:
    """Generate text from PROMPT; without one, or with -, from standard input.

    The text streams to stdout, followed by one newline; the run ends with a line of statistics on stderr.
    """
    if raw and system is not None:
        raise BadValue("--system: it needs the chat template, which --raw leaves out; leave one out")
    text = read_prompt(prompt, file)
    if system is not None:
        check_utf8("--system", system)
    # Drawn here, not in the engine, so that an interrupted run can still say how to repeat it. 32 bits are easier to retype.
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    request = dataclasses.replace(
        settings.request(seed, text, system, raw), corrupt=0 if corrupt is None else _parsed("--spec-corrupt", CORRUPT, corrupt)
    )
    script = None if oracle is None else Oracle.read(oracle)
    if script is not None:
        settings = script.settings(settings)

    from backends.engine import Engine

    with contextlib.ExitStack() as stack:
        # Before the model is loaded: a file that cannot be written should not take minutes to say so.
        trace = None if trace_file is None else stack.enter_context(Trace(trace_file, reads=(settings.model, oracle, file)))
        started = time.perf_counter()
        with Progress() as progress:
            engine = Engine.open(settings.model, settings.config, progress, first=request)
        load_ms = (time.perf_counter() - started) * 1000
        stack.enter_context(contextlib.closing(engine))
        shown = len(engine.notices)
        for notice in engine.notices:
            warn(notice)
        if script is not None:
            request = dataclasses.replace(request, oracle=script.token_ids(engine.tokenizer))
        else:
            drafting.warn_of_flags(settings, engine)
            if request.corrupt and engine.drafter is None:
                warn(f"--spec-corrupt {request.corrupt}: no effect, nothing drafts")
        run = Run(engine, request, settings.config.ctx, stream=not as_json, trace=trace)
        result = run.finish()
        for notice in engine.notices[shown:]:
            warn(notice)
        if result is not None:
            if as_json:
                write_json(as_object(result, load_ms, describe(settings, engine, request, result)))
            complain(statistics(result, request.max_new))
    if run.failure is not None:
        raise run.failure
    return INTERRUPTED if run.interrupted else 0


def _parsed(flag: str, grammar: Grammar, text: str) -> Any:
    try:
        return grammar.parse(text)
    except ValueError as reason:
        raise BadValue(refuse(flag, text, grammar, reason)) from None


class Run:
    """One generation to its end, whichever that is: finished, `interrupted` by Ctrl-C, or a `failure`."""

    def __init__(self, engine: Engine, request: Request, ctx: int | None, stream: bool, trace: Callable[[RoundTrace], None] | None = None) -> None:
        self.interrupted = False
        self.failure: StrataError | None = None
        self._engine, self._request, self._ctx, self._stream, self._trace = engine, request, ctx, stream, trace
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._prefilled = 0.0

    def finish(self) -> Result | None:
        """Generate, streaming if asked to. None if it stopped before there was anything to show."""
        started = self._prefilled = time.perf_counter()
        session = self._engine.session()
        try:
            with Progress() as progress:
                for chunk in session.generate(self._request, functools.partial(self._prefill, progress), self._trace):
                    progress.close()
                    self._token_ids += chunk.token_ids
                    self._texts.append(chunk.text)
                    self._write(chunk.text)
        except KeyboardInterrupt:
            self.interrupted = True
        except Unwritable:
            raise  # there is no place for a newline, and no use for statistics
        except StrataError as error:
            self.failure = error
        result: Result | None = session.result
        if result is None and self._token_ids:
            result = self._partial(started, time.perf_counter())
        if result is not None:
            self._write("\n")
        return result

    def _prefill(self, progress: Progress, stage: str, fraction: float) -> None:
        if fraction >= 1:
            self._prefilled = time.perf_counter()
        progress(stage, fraction)

    def _write(self, text: str) -> None:
        if self._stream and text:
            write_stdout(text)

    def _partial(self, started: float, ended: float) -> Result:
        """What is known of a generation that did not end by itself; its rounds are not."""
        return Result(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason="interrupted" if self.interrupted else "error",
            prompt_tokens=len(self._engine.tokenize(self._request)),
            speculation=Speculation(),
            timings=Timings(prefill_ms=(self._prefilled - started) * 1000, decode_ms=(ended - self._prefilled) * 1000),
            seed=self._request.seed or 0,
            ctx=self._ctx or 0,
        )


def describe(settings: Settings, engine: Engine, request: Request, result: Result) -> dict[str, Any]:
    """The settings of a run, for --json; the device as it was chosen."""
    config = settings.config
    return {
        "model": str(settings.model),
        "device": engine.device_line,
        "backend": config.backend,
        "kv": config.kv,
        "ctx": result.ctx or None,  # not known of a run that was cut short
        "max_new": request.max_new,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "repeat_penalty": request.repeat_penalty,
        "repeat_last_n": request.repeat_last_n,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "seed": result.seed,
        "logit_bias": json_biases(request.logit_bias),
        "stop": list(request.stop),
        "ignore_eos": request.ignore_eos,
        "raw": request.raw,
        "system": request.system,
        "prefill_chunk": config.prefill_chunk,
        "work_groups": config.work_groups,
        "instructions": config.instructions,
        "launch": config.launch,
        "kernel_shape": config.kernel_shape,
        **drafting.described(settings, engine, request),
        "slop": str(config.slop or OFF),
        "slop_lexicon": config.slop_lexicon if config.slop else None,
        "slop_openers": config.slop_openers if config.slop else None,
        "mtp_slop": config.mtp_slop,
        "spec_oracle": request.oracle is not None,
        "spec_corrupt": request.corrupt,
    }
