"""Engine and session: stops, counts, errors, threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from backends.config import DecodeConfig, Request, Result
from backends.device import KernelSpec
from backends.engine import Engine, Session
from backends.errors import BadValue, DeviceError, StrataError
from backends.numpy_device import NumpyDevice
from tests.tiny import IM_END, write_tiny_llama

CTX = 96
PROMPT = (5, 9, 20, 33)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("engine") / "tiny.gguf", ctx=CTX, seed=4)


@pytest.fixture(scope="module", params=["opencl", "numpy"])
def engine(request: pytest.FixtureRequest, model: Path, cache_dir: str) -> Iterator[Engine]:
    with Engine.open(model, DecodeConfig(backend=request.param, cache_dir=cache_dir)) as engine:
        yield engine


def run(where: Engine | Session, **settings: object) -> Result:
    """The result of one generation; its chunks must add up to it."""
    session = where.session() if isinstance(where, Engine) else where
    request = Request(**({"token_ids": PROMPT, "max_new": 24, "ignore_eos": True} | settings))  # type: ignore[arg-type]
    chunks = list(session.generate(request))
    result = session.result
    assert result is not None
    assert "".join(chunk.text for chunk in chunks) == result.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == result.token_ids
    return result


def test_length(engine: Engine) -> None:
    for max_new in (1, 2, 24):
        result = run(engine, max_new=max_new)
        assert (len(result.token_ids), result.finish_reason, result.prompt_tokens) == (max_new, "length", len(PROMPT))
        assert result.text == engine.tokenizer.decode(result.token_ids)
        assert result.speculation.rounds == max_new


def test_shorter_runs_are_prefixes(engine: Engine) -> None:
    long = run(engine, max_new=24)
    assert run(engine, max_new=7).token_ids == long.token_ids[:7]


def test_context_end(engine: Engine, model: Path, cache_dir: str) -> None:
    """Prompt and text together fill the context to its last position."""
    result = run(engine, max_new=-1)
    assert (result.finish_reason, len(PROMPT) + len(result.token_ids)) == ("context", CTX)
    with Engine.open(model, DecodeConfig(backend=engine.config.backend, cache_dir=cache_dir, ctx=20)) as small:
        cut = run(small, max_new=-1)
        assert (cut.finish_reason, cut.token_ids) == ("context", result.token_ids[: 20 - len(PROMPT)])


def test_end_token(engine: Engine) -> None:
    """END counts in usage, not in text; with ignore_eos it does not stop."""
    result = run(engine, ignore_eos=False, logit_bias={IM_END: 1000.0})
    assert (result.token_ids, result.text, result.finish_reason) == ((IM_END,), "", "stop")
    assert run(engine, max_new=3, logit_bias={IM_END: 1000.0}).token_ids == (IM_END,) * 3


def test_every_stop_text(engine: Engine) -> None:
    """Each piece of a plain run as its stop text: the text ends before it, usage counts the token that completes it."""
    plain = run(engine, max_new=24)
    assert len(plain.text) > 12
    for length in (1, 2, 5):
        for start in range(len(plain.text) - length):
            stop = plain.text[start : start + length]
            if "\ufffd" in stop:
                continue
            result = run(engine, stop=(stop,))
            at = plain.text.index(stop)
            assert (result.text, result.finish_reason) == (plain.text[:at], "stop"), stop
            used = next(n for n in range(25) if stop in engine.tokenizer.decode(plain.token_ids[:n]))
            assert result.token_ids == plain.token_ids[:used], stop


def test_drawn_seed_repeats(engine: Engine) -> None:
    drawn = run(engine, temperature=1.5)
    assert run(engine, temperature=1.5, seed=drawn.seed).token_ids == drawn.token_ids
    assert run(engine, temperature=1.5, seed=drawn.seed ^ 1).token_ids != drawn.token_ids


def test_banned_token_is_never_emitted(engine: Engine) -> None:
    usual = set(run(engine, max_new=-1).token_ids)
    result = run(engine, max_new=-1, logit_bias=dict.fromkeys(usual, -100.0))
    assert not usual & set(result.token_ids)


def test_sessions_do_not_meet(engine: Engine) -> None:
    alone = [run(engine, token_ids=ids).token_ids for ids in ((7, 8, 30), (40, 41))]
    streams = [engine.session().generate(Request(token_ids=ids, max_new=24, ignore_eos=True)) for ids in ((7, 8, 30), (40, 41))]
    mixed: list[list[int]] = [[], []]
    for chunks in zip(*streams, strict=True):
        for out, chunk in zip(mixed, chunks, strict=True):
            out.extend(chunk.token_ids)
    assert [tuple(out) for out in mixed] == alone


def test_an_abandoned_generation_leaves_no_trace(engine: Engine) -> None:
    session = engine.session()
    expected = run(engine).token_ids
    next(session.generate(Request(token_ids=(50, 51, 52, 53, 54, 55), max_new=20)))
    assert run(session).token_ids == expected
    assert run(session, max_new=-1).token_ids[:24] == expected  # a larger context, after a smaller one


@pytest.mark.parametrize("tokens", [CTX, CTX + 1, 500])
def test_prompt_that_the_model_cannot_hold(engine: Engine, tokens: int) -> None:
    with pytest.raises(BadValue, match=rf"{tokens} tokens.*{CTX}"):
        engine.session().generate(Request(token_ids=(5,) * tokens))


def test_prompt_longer_than_the_context(model: Path) -> None:
    with Engine.open(model, DecodeConfig(backend="numpy", ctx=20)) as engine:
        with pytest.raises(BadValue, match=r"20 tokens.* 20: --ctx 21 to 96"):
            engine.session().generate(Request(token_ids=(5,) * 20))
        assert len(run(engine, token_ids=(5,) * 19).token_ids) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": "", "raw": True}, "empty"),
        ({"token_ids": ()}, "empty"),
        ({"token_ids": (5, 96)}, r"96.*0\.\.95"),
        ({"token_ids": (-1,)}, r"-1.*0\.\.95"),
        ({"token_ids": (5,), "logit_bias": {96: 1.0}}, r"96.*0\.\.95"),
    ],
)
def test_requests_that_do_not_fit(engine: Engine, settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        engine.session().generate(Request(**settings))  # type: ignore[arg-type]


def test_context_larger_than_the_models(model: Path) -> None:
    with pytest.raises(BadValue, match=r"97.*2\.\.96"):
        Engine.open(model, DecodeConfig(backend="numpy", ctx=97))


def test_a_hopeless_prompt_is_refused_unread(model: Path) -> None:
    longest = 13  # <|endoftext|>: no token of the tiny vocabulary is longer
    with Engine.open(model, DecodeConfig(backend="numpy")) as engine, pytest.raises(BadValue, match=r"at least \d+ tokens.*96"):
        assert max(map(len, engine.tokenizer.tokens)) <= longest
        engine.session().generate(Request(prompt="a" * (longest * CTX), raw=True))


def test_a_system_message_needs_a_template(model: Path) -> None:
    with Engine.open(model, DecodeConfig(backend="numpy")) as engine:
        engine.template = None
        with pytest.raises(BadValue, match="template"):
            engine.tokenize(Request(prompt="a", system="b"))


def test_a_prompt_is_checked_before_loading(model: Path) -> None:
    stages: list[str] = []
    with pytest.raises(BadValue, match="200 tokens"):
        Engine.open(model, DecodeConfig(backend="numpy"), lambda stage, _: stages.append(stage), first=Request(token_ids=(5,) * 200))
    assert stages == []


def test_weights_that_are_not_numbers(model: Path, cache_dir: str) -> None:
    for backend in ("opencl", "numpy"):
        with Engine.open(model, DecodeConfig(backend=backend, cache_dir=cache_dir)) as engine:
            engine.device.upload(engine.model.final_norm, np.full(64, np.nan, np.float32))
            with pytest.raises(StrataError, match=r"position 3 in slot 0 are not numbers"):
                run(engine)


def test_a_closed_engine_says_so(model: Path, cache_dir: str) -> None:
    engine = Engine.open(model, DecodeConfig(cache_dir=cache_dir))
    session = engine.session()
    stream = session.generate(Request(token_ids=PROMPT, ignore_eos=True))
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(StrataError, match="closed"):
        next(stream)
    with pytest.raises(StrataError, match="closed"):
        run(session)


def test_any_thread_may_ask(engine: Engine) -> None:
    """And the caller's threads keep the cores they had."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    expected, found = run(engine).token_ids, []
    thread = threading.Thread(target=lambda: found.append(run(engine).token_ids))
    thread.start()
    thread.join()
    assert found == [expected]
    assert cores == (os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None)


def test_a_later_generation_ends_the_earlier(engine: Engine) -> None:
    """A session's cells belong to one conversation: the earlier generation must not go on in the later one's."""
    session = engine.session()
    earlier = session.generate(Request(token_ids=PROMPT, ignore_eos=True))
    next(earlier)
    later = session.generate(Request(token_ids=PROMPT, max_new=3, ignore_eos=True))
    next(later)
    with pytest.raises(StrataError, match="later generation"):
        next(earlier)
    assert len(list(later)) == 2


def test_logits_in_parts(engine: Engine) -> None:
    """Positions go on where the cells are; where a larger context would lose them, that is an error and not other logits."""
    ids = list(range(3, 43))
    whole = engine.session().logits(ids)
    session = engine.session()
    session.sequence(len(ids))
    parts = [session.logits(ids[:20]), session.logits(ids[20:], 20)]
    assert np.array_equal(np.concatenate(parts), whole)
    session = engine.session()
    session.logits(ids[:20])
    for growing in (session, engine.session()):
        with pytest.raises(BadValue, match="first: 20"):
            growing.logits(ids[20:], 20)


@pytest.mark.parametrize("rows", [0, 9])
def test_windows_that_do_not_fit(engine: Engine, rows: int) -> None:
    sequence = engine.session().sequence(40)
    with pytest.raises(BadValue, match=rf"window: {rows}"):
        sequence.set_window([1] * rows, 0)
    with pytest.raises(BadValue, match=rf"window: {rows}"):
        engine.session().window_ms(rows, 1, 0)
    with pytest.raises(BadValue, match=r"38\.\.40.*0\.\.39"):
        sequence.set_window([1] * 3, 38)


def test_many_end_ids(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a hundred would end the text."""
    monkeypatch.setattr(engine.tokenizer, "end_ids", frozenset(range(96)))
    assert run(engine, ignore_eos=False, logit_bias={90: 1000.0}).finish_reason == "stop"


def test_wide_programs_that_do_not_compile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows then run one by one, to the same text, and a notice says so."""

    def compile_narrow(device: NumpyDevice, specs: Sequence[KernelSpec]) -> None:
        if any(("TILE", 8) in spec.constants for spec in specs):
            raise DeviceError("too wide")

    with Engine.open(model, DecodeConfig(backend="numpy")) as whole:
        expected = run(whole).token_ids
    monkeypatch.setattr(NumpyDevice, "compile", compile_narrow)
    with Engine.open(model, DecodeConfig(backend="numpy")) as engine:
        with pytest.raises(DeviceError, match="too wide"):
            engine.wait_wide()
        assert engine.tile(8) == 1
        assert run(engine).token_ids == expected
        assert [notice for notice in engine.notices if "too wide" in notice and "one by one" in notice]
