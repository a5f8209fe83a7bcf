"""Speculation never changes the text: a tiny model and its random MTP layer, under every rule, and drafts that are right or wrong on purpose.

The target's picks are narrowed to a few tokens by a bias, which the drafter does not see, and the draft vocabulary to the same few: so random
weights agree often enough for windows of every size to be accepted whole, in part and not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from backends.config import DecodeConfig, Request, Result, RoundTrace, Tune
from backends.decode.window import PCum, WindowRules
from backends.engine import Engine
from backends.errors import StrataError
from backends.tables import MAX_WINDOW
from tests.tiny import IM_END, write_tiny_drafter, write_tiny_llama

CTX, LENGTH = 192, 48
FEW = (7, 20, 33, IM_END)
PROMPT = tuple(range(5, 75))  # into the second KV block, so that rounds lie beyond PCUM's ramp from 64 on
BIAS = dict.fromkeys(FEW, 40.0)
GREEDY = Request(token_ids=PROMPT, max_new=LENGTH, ignore_eos=True, logit_bias=BIAS, frequency_penalty=0.5, repeat_last_n=7)
SAMPLED = replace(GREEDY, temperature=1.5, seed=11, repeat_penalty=1.2, frequency_penalty=0.1, top_p=0.97)
P_CUMS = (None, PCum(0.3), PCum(0.75), PCum(0.9, 0.5, 64, 128))
# The GPU shape has the same host and the same kernel text, and is slow on a processor: tests/backends/test_drafts_gpu_shape.py tries less.
PLACES: dict[str, dict[str, Any]] = {"cpu": {"backend": "opencl"}}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return write_files(tmp_path_factory.mktemp("drafts"))


def write_files(folder: Path) -> tuple[Path, str]:
    """The model and a draft vocabulary of the few tokens, not in order."""
    np.array([33, IM_END, 20, 7], "<i4").tofile(folder / "few.bin")
    return write_tiny_llama(folder / "tiny.gguf", n_vocab=99, ctx=CTX, seed=3, nextn=True), str(folder / "few.bin")


def write_preferring(folder: Path, n_vocab: int, few: Sequence[int]) -> Path:
    """A drafter whose own head, over all ids, is 0 for all but a few: one of those nearly always has the largest logit."""
    path = write_tiny_drafter(folder / "preferring.gguf", n_vocab=n_vocab, ctx=CTX, own_head=True, seed=5)
    head = next(tensor for tensor in gguf.GGUFReader(path, "r+").tensors if tensor.name.endswith("shared_head_head.weight"))
    head.data[[token for token in range(n_vocab) if token not in few]] = 0
    return path


@pytest.fixture(scope="module")
def engine(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    """It drafts from the few; tests change its rules on the spot, which opening one for each would take minutes."""
    with Engine.open(files[0], DecodeConfig(spec=8, draft_vocab=files[1], cache_dir=cache_dir, **place)) as engine:
        engine.wait_wide()
        yield engine


@pytest.fixture(scope="module")
def whole_vocabulary(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    """Its drafter has a head over all ids, which prefers the few: else its drafts would all be wrong."""
    drafter = str(write_preferring(files[0].parent, 99, FEW))
    with Engine.open(files[0], DecodeConfig(spec=8, mtp_model=drafter, cache_dir=cache_dir, **place)) as engine:
        engine.wait_wide()
        yield engine


@pytest.fixture(scope="module")
def plain(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with Engine.open(files[0], DecodeConfig(mtp=False, cache_dir=cache_dir, **place)) as engine:
        assert engine.drafter is None
        yield engine


def rule(engine: Engine, spec: int, min_p: float = 0.0, p_cum: PCum | None = None) -> None:
    engine.config = replace(engine.config, spec=spec, spec_min_p=min_p, spec_p_cum=p_cum)
    engine.window = max(1, spec)


def run(engine: Engine, request: Request, trace: list[RoundTrace] | None = None) -> Result:
    session = engine.session()
    for _ in session.generate(request, trace=None if trace is None else trace.append):
        pass
    assert session.result is not None
    return session.result


@pytest.fixture(scope="module")
def texts(plain: Engine) -> dict[str, Result]:
    return {"greedy": run(plain, GREEDY), "sampled": run(plain, SAMPLED)}


REQUESTS = {"greedy": GREEDY, "sampled": SAMPLED}
GRID = list(itertools.product(range(9), (0.0, 0.5, 0.9), P_CUMS, REQUESTS))
QUICK = [arm for i, arm in enumerate(GRID) if i % 7 == 0 or arm[:3] == (8, 0.0, None)]


def same_but_for_rounds(made: Result, expected: Result) -> bool:
    return (made.text, made.token_ids, made.finish_reason, made.prompt_tokens) == (
        expected.text,
        expected.token_ids,
        expected.finish_reason,
        expected.prompt_tokens,
    )


def check_arms(engine: Engine, texts: dict[str, Result], arms: Sequence[tuple[int, float, PCum | None, str]], request_change: dict[str, Any]) -> None:
    accepted = drafted = 0
    for spec, min_p, p_cum, name in arms:
        rule(engine, spec, min_p, p_cum)
        made = run(engine, replace(REQUESTS[name], **request_change))
        assert same_but_for_rounds(made, texts[name]), (spec, min_p, p_cum, name)
        counted = made.speculation
        assert len(counted.by_position) <= max(0, spec - 1)
        assert made.speculation.rounds + counted.accepted == len(made.token_ids)
        accepted, drafted = accepted + counted.accepted, drafted + counted.drafted
    # With every draft corrupted none can be right; else the arms would prove nothing without both kinds.
    assert drafted > accepted and (accepted > 0 or request_change.get("corrupt") == 1)


def test_drafter(engine: Engine, texts: dict[str, Result]) -> None:
    check_arms(engine, texts, QUICK, {})


def test_drafter_over_the_whole_vocabulary(whole_vocabulary: Engine, texts: dict[str, Result]) -> None:
    check_arms(whole_vocabulary, texts, QUICK[::3], {})


def test_corrupted_drafts(engine: Engine, texts: dict[str, Result]) -> None:
    for every in (1, 2, 3):
        check_arms(engine, texts, QUICK[every::5], {"corrupt": every})


@pytest.mark.parametrize("corrupt", [0, 1, 3, 4])
def test_oracle(plain: Engine, texts: dict[str, Result], corrupt: int) -> None:
    """Drafts from the known text need no drafter; all are right, unless corrupted."""
    for spec, name in itertools.product((2, 3, 5, 8), REQUESTS):
        plain.config = replace(plain.config, spec=spec)
        made = run(plain, replace(REQUESTS[name], oracle=texts[name].token_ids, corrupt=corrupt))
        assert same_but_for_rounds(made, texts[name])
        counted = made.speculation
        if corrupt == 0:
            assert counted.drafted == counted.accepted == LENGTH - made.speculation.rounds
            assert made.speculation.rounds == 1 + -(-(LENGTH - 1) // spec)  # the first round is the last prompt token alone
        if corrupt == 1:
            assert counted.accepted == 0 and counted.drafted > 0
    plain.config = replace(plain.config, spec=None)


@pytest.mark.slow
def test_the_whole_grid(engine: Engine, whole_vocabulary: Engine, texts: dict[str, Result]) -> None:
    check_arms(engine, texts, GRID, {})
    check_arms(whole_vocabulary, texts, GRID, {})
    for every in (2, 5):
        check_arms(engine, texts, GRID, {"corrupt": every})


def test_every_window_size_is_accepted_in_part(engine: Engine) -> None:
    """The tests above would see a fault: over a few prompts windows of all sizes come, with some drafts accepted and some rejected."""
    rule(engine, 8)
    sizes, accepted, drafted = set(), 0, 0
    for seed in range(6):
        trace: list[RoundTrace] = []
        made = run(engine, replace(SAMPLED, seed=seed, tune=Tune(spec_min_p=0.3)), trace)
        sizes |= {entry.rows for entry in trace}
        accepted += made.speculation.accepted
        drafted += made.speculation.drafted
    assert sizes == set(range(1, MAX_WINDOW + 1))
    assert 0 < accepted < drafted


def test_the_drafter_stops_where_the_window_stops(engine: Engine) -> None:
    """It computes what is kept and at most the one draft that fails, by the host's rules; and a request's own rules act like the engine's."""
    for min_p, p_cum in itertools.product((0.0, 0.3, 0.5), P_CUMS):
        rule(engine, 6, min_p, p_cum)
        trace: list[RoundTrace] = []
        made = run(engine, SAMPLED, trace)
        rules = WindowRules(min_p, p_cum)
        for entry, following in itertools.pairwise(trace):
            probabilities = [np.float32(p) for p in entry.probabilities]
            room = min(5, LENGTH - following.depth + len(PROMPT) - 2, CTX - 2 - following.depth)
            assert entry.kept == rules.kept(probabilities, following.depth), entry
            assert len(entry.drafts) == min(entry.kept + 1, room), entry
            assert following.rows == entry.kept + 1
            assert entry.next_depth == following.depth
        if p_cum is None or p_cum.d0 != 64:
            rule(engine, 6, 0.0, None)
            tune = Tune(spec_p_cum=None if p_cum is None else p_cum.base, spec_min_p=min_p)
            assert run(engine, replace(SAMPLED, tune=tune)).speculation == made.speculation


def test_drafts_do_not_depend_on_chunks_launches_or_repeats(files: tuple[Path, str], engine: Engine, place: dict[str, Any], cache_dir: str) -> None:
    rule(engine, 5, 0.2, PCum(0.1))
    expected: list[RoundTrace] = []
    run(engine, SAMPLED, expected)
    again: list[RoundTrace] = []
    run(engine, SAMPLED, again)
    assert without_ms(again) == without_ms(expected)
    for settings in ({"prefill_chunk": 1}, {"prefill_chunk": 7}, {"work_groups": 1}, {"work_groups": 5}, {"launch": "queue"}):
        config = DecodeConfig(spec=5, spec_min_p=0.2, spec_p_cum=PCum(0.1), draft_vocab=files[1], cache_dir=cache_dir, **place, **settings)
        with Engine.open(files[0], config) as other:
            found: list[RoundTrace] = []
            run(other, SAMPLED, found)
            assert without_ms(found) == without_ms(expected), settings


def without_ms(trace: list[RoundTrace]) -> list[RoundTrace]:
    return [replace(entry, ms=0.0) for entry in trace]


def test_sessions_and_requests_do_not_meet(engine: Engine, texts: dict[str, Result]) -> None:
    """Rules may change between the requests of a session, and a stale cell of another request is never read."""
    session = engine.session()
    for spec, request, name in ((8, GREEDY, "greedy"), (1, SAMPLED, "sampled"), (3, SAMPLED, "sampled"), (8, GREEDY, "greedy")):
        rule(engine, spec, 0.0, PCum(0.2) if spec == 3 else None)
        for _ in session.generate(request):
            pass
        assert session.result is not None and same_but_for_rounds(session.result, texts[name])


# What stops a sequence, at every place of a window: against decoding one by one.


@pytest.mark.parametrize("spec", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "change",
    [{"max_new": budget} for budget in (1, 2, 3, 5, 7)]
    + [{"ignore_eos": False, "seed": seed} for seed in range(4)]
    + [{"max_new": -1, "token_ids": tuple(range(5, 75)) + (9,) * (CTX - 70 - left)} for left in (1, 2, 4, 9)],
    ids=str,
)
def test_stops(engine: Engine, plain: Engine, spec: int, change: dict[str, Any]) -> None:
    rule(engine, spec)
    request = replace(SAMPLED, **change)
    expected = run(plain, request)
    assert same_but_for_rounds(run(engine, request), expected)
    plain.config = replace(plain.config, spec=spec)
    assert same_but_for_rounds(run(plain, replace(request, oracle=(*expected.token_ids, 9, 9, 9))), expected)
    plain.config = replace(plain.config, spec=None)


@pytest.mark.parametrize("spec", [2, 5, 8])
def test_stop_texts(engine: Engine, plain: Engine, texts: dict[str, Result], spec: int) -> None:
    """One that the first of several accepted tokens completes, and ones over two and more rounds."""
    text = texts["sampled"].text
    for begin, size in ((3, 1), (4, 2), (9, 5), (20, 11)):
        request = replace(SAMPLED, stop=(text[begin : begin + size],))
        expected = run(plain, request)
        rule(engine, spec)
        assert same_but_for_rounds(run(engine, request), expected)
        plain.config = replace(plain.config, spec=spec)
        assert same_but_for_rounds(run(plain, replace(request, oracle=texts["sampled"].token_ids)), expected)
        plain.config = replace(plain.config, spec=None)


def test_penalties_and_bans(engine: Engine, plain: Engine) -> None:
    """Each row is penalised by the tokens before it, drafts of its own window included; a ban is never emitted, drafted or not."""
    for change in (
        {"presence_penalty": 3.0, "repeat_last_n": 3},
        {"frequency_penalty": 1.0, "repeat_last_n": -1},
        {"logit_bias": BIAS | {FEW[0]: -100.0}},
        {"repeat_penalty": 5.0, "temperature": 0.0},
    ):
        expected = run(plain, replace(SAMPLED, **change))
        for spec in (2, 5, 8):
            rule(engine, spec)
            assert run(engine, replace(SAMPLED, **change)).token_ids == expected.token_ids
    assert FEW[0] not in run(engine, replace(SAMPLED, logit_bias=BIAS | {FEW[0]: -100.0})).token_ids


def test_seeds(engine: Engine, plain: Engine) -> None:
    """What a window of several rows draws is what plain decoding draws, seed by seed; so it follows the distribution as that does."""
    rule(engine, 4)
    drawn = set()
    for seed in range(12):
        request = replace(SAMPLED, seed=seed, max_new=12)
        drawn.add(run(plain, request).token_ids)
        assert run(engine, request).token_ids in drawn
    assert len(drawn) == 12


def test_rows_that_are_not_numbers(engine: Engine) -> None:
    """All banned: an error that names the position, whatever the window; nothing was emitted."""
    rule(engine, 4)
    with pytest.raises(StrataError, match="position 69 in slot 0"):
        run(engine, replace(GREEDY, logit_bias=dict.fromkeys(range(99), float("-inf"))))


def test_a_draft_that_is_not_a_number_is_dropped(files: tuple[Path, str], place: dict[str, Any], cache_dir: str, texts: dict[str, Result]) -> None:
    with Engine.open(files[0], DecodeConfig(spec=4, spec_min_p=0.0, cache_dir=cache_dir, **place)) as engine:
        assert engine.drafter is not None
        engine.device.upload(engine.drafter.head_norm, np.full(64, np.nan, np.float32))
        trace: list[RoundTrace] = []
        made = run(engine, GREEDY, trace)
        assert same_but_for_rounds(made, texts["greedy"])
        assert made.speculation.drafted == 0
        assert {entry.drafts for entry in trace} == {(-1,), ()}  # none where there is no room for one


def test_unset_means_not_there(engine: Engine, plain: Engine) -> None:
    """Without PCUM no launch knows of it, and with a window of 1 the plan is that of an engine without a drafter."""

    def plan(engine: Engine, spec: int, p_cum: PCum | None) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
        rule(engine, spec, 0.0, p_cum)
        session = engine.session()
        for _ in session.generate(replace(GREEDY, max_new=4)):
            pass
        sequence = session.sequence(1)
        assert (sequence._thresholds is None) == (p_cum is None)
        return [(launch.spec.kernel, launch.spec.constants) for launch in sequence._replay("round", 1).launches]

    without = plan(plain, 1, None)
    assert plan(engine, 1, None) == without
    drafting = plan(engine, 3, None)
    assert drafting[: len(without)] == without
    assert all(dict(constants).get("PCUM", 0) == 0 for _, constants in drafting)
    assert [kernel for kernel, _ in drafting].count("draft_pick") == 2
    assert any(dict(constants).get("PCUM") == 1 for _, constants in plan(engine, 3, PCum(0.0)))
