"""One run of an arm of Strata, in a process of its own: a job as JSON on standard input, JSON lines on standard output.

docs/bench.md describes job and lines, which are the same for other programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from backends.config import Request, Result
from backends.errors import BadValue, StrataError
from strata_cli.benchmark.arms import DEFAULTS
from strata_cli.main import INTERRUPTED
from strata_cli.messages import complain
from strata_cli.options import Settings, resolve

if TYPE_CHECKING:
    from backends.engine import Engine, Session

Say = Callable[[Mapping[str, Any]], None]
WARM_UP = 8
"""Tokens of the generation that nobody times: the first of a process records the plans."""
PACKAGES = ("numpy", "pyopencl", "intel-opencl-rt", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0")


def main() -> int:
    """Measures; returns the exit code. What goes wrong is one line on stderr."""
    try:
        say = _own_stdout()
        job = json.loads(sys.stdin.buffer.read())
        # A measurement's flags were checked before the first one began, and what they warn of has been said then.
        flags = {key: tuple(value) if isinstance(value, list) else value for key, value in job["flags"].items()}
        settings = resolve(flags, False, os.environ, DEFAULTS)
        _measure(job, settings, say)
    except StrataError as error:
        complain(f"strata: error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1
    except Exception as error:
        complain(f"strata: internal error: {type(error).__name__}: {error}")
        return 1
    return 0


def _own_stdout() -> Say:
    """Keeps standard output for the lines: what a driver prints there goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: Mapping[str, Any]) -> None:
        lines.write(json.dumps(value) + "\n")
        lines.flush()

    return say


def _measure(job: Mapping[str, Any], settings: Settings, say: Say) -> None:
    from backends.engine import Engine

    started = time.perf_counter()
    engine = Engine.open(settings.model, settings.config)
    load_ms = 1e3 * (time.perf_counter() - started)
    with contextlib.closing(engine):
        filling = _filling(job["document"], job["depth"], settings, engine)
        engine.wait_wide()  # a program that compiles behind a measurement would slow it, and wide windows would run row by row
        requests = [_request(entry, settings, filling) for entry in job["prompts"]]
        ids = [engine.tokenize(request) for request in requests]
        ctx = max(engine.context_for(len(prompt), request.max_new) for prompt, request in zip(ids, requests, strict=True))
        about = {"about": _about(engine), "model": str(settings.model), "notices": list(engine.notices), "ctx": ctx, "load_ms": load_ms}
        if job["rehearsal"]:
            about["token_ids"] = [list(prompt) for prompt in ids]
        session = engine.session()
        session.sequence(ctx)  # one that grows on the way would be made anew between two prompts
        longest = max(range(len(ids)), key=lambda index: len(ids[index]))
        for mode in sorted({entry["mode"] for entry in job["prompts"]}):
            index = next((i for i in (longest, *range(len(ids))) if job["prompts"][i]["mode"] == mode), longest)
            _generate(session, dataclasses.replace(requests[index], max_new=WARM_UP))
        if not job["rehearsal"]:
            for entry, request in zip(job["prompts"], requests, strict=True):
                say(_record(entry, _generate(session, request)))
            about["window_ms"] = _windows(job, session, requests[longest], len(ids[longest]), ctx)
        say(about)


def _request(entry: Mapping[str, Any], settings: Settings, filling: str) -> Request:
    request = settings.request(entry["seed"], filling + entry["prompt"], entry["system"])
    return dataclasses.replace(request, temperature=0.0) if entry["mode"] == "greedy" else request


def _filling(document: str, depth: int, settings: Settings, engine: Engine) -> str:
    """The first `depth` tokens of the document, which is repeated as often as it takes. Raises BadValue where the context has no room."""
    if not depth:
        return ""
    try:
        engine.context_for(depth, settings.generation["max_new"])  # before a text is made that takes long and fits nowhere
    except BadValue as error:
        raise BadValue(f"--depth {depth}: {error}") from None
    ids = engine.tokenizer.encode(document, special=False)
    return engine.tokenizer.decode((ids * (depth // len(ids) + 1))[:depth]) + "\n\n"


def _generate(session: Session, request: Request) -> Result:
    for _ in session.generate(request):
        pass
    assert session.result is not None
    return session.result


def _record(entry: Mapping[str, Any], result: Result) -> dict[str, Any]:
    return {
        "id": entry["id"],
        "mode": entry["mode"],
        "token_ids": list(result.token_ids),
        "text": result.text,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "prefill_ms": result.timings.prefill_ms,
        "decode_ms": result.timings.decode_ms,
        "speculation": dataclasses.asdict(result.speculation),
    }


def _windows(job: Mapping[str, Any], session: Session, request: Request, depth: int, ctx: int) -> dict[str, list[float]]:
    """Milliseconds of windows of so many rows behind the longest prompt; those for which the context has no room are left out."""
    sizes = [rows for rows in job["windows"] if depth + rows <= ctx]
    if sizes:
        _generate(session, dataclasses.replace(request, max_new=1))  # so that the cells before the window hold what they should
    return {str(rows): session.window_ms(rows, job["repeats"], depth) for rows in sizes}


def _about(engine: Engine) -> dict[str, str]:
    import strata_cli

    about = {"device": engine.device_line, "strata": strata_cli.__version__, "Python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            about[package] = importlib.metadata.version(package)
    return about
