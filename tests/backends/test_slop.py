"""The slop policy in whole generations: one text whatever is drafted and whether drafts see it, and nothing of it where it is off.

As in test_drafts.py picks and drafts are narrowed to a few tokens; here those have classes that move the policy's state on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.config import DecodeConfig, Request, Result
from backends.decode.slop import Knobs, fresh
from backends.decode.slop_tables import (
    BLANK,
    BOLD,
    BULLET,
    CLAUSE,
    DASH,
    END,
    HEADING,
    LEXICAL,
    NEWLINE,
    OPENER,
    THINK_CLOSE,
    THINK_OPEN,
    VISIBLE,
)
from backends.engine import Engine
from backends.sequence import SequenceState
from tests.backends.test_drafts import rule, same_but_for_rounds, write_preferring
from tests.tiny import IM_END, write_tiny_llama

CTX, LENGTH, VOCAB = 192, 48, 99
# What the few tokens are to the policy, whatever their texts.
OPEN, CLOSE, BREAK, ITEM, STAR, STREAK, WORD = 4, 7, 20, 33, 41, 52, 60
CLASSES = {
    OPEN: THINK_OPEN | VISIBLE,
    CLOSE: THINK_CLOSE | VISIBLE,
    BREAK: NEWLINE | BLANK,
    ITEM: BULLET | HEADING | VISIBLE,
    STAR: BOLD | VISIBLE,
    STREAK: DASH | CLAUSE | VISIBLE,
    WORD: LEXICAL | OPENER | VISIBLE,
    IM_END: END,
}
FEW = tuple(CLASSES)
PROMPT = tuple(range(5, 75))
THINKING = (*PROMPT, OPEN)
BIAS = dict.fromkeys(FEW, 40.0)
GREEDY = Request(token_ids=PROMPT, max_new=LENGTH, ignore_eos=True, logit_bias=BIAS, frequency_penalty=1.0, repeat_last_n=9)
SAMPLED = replace(GREEDY, temperature=1.5, seed=11, frequency_penalty=0.3, top_p=0.97)
UNFILTERED = replace(SAMPLED, token_ids=THINKING, seed=12, top_k=0, top_p=1.0, min_p=0.0)
ENDING = replace(SAMPLED, ignore_eos=False, seed=13)
REQUESTS = {"greedy": GREEDY, "sampled": SAMPLED, "unfiltered": UNFILTERED, "ending": ENDING}
STRONG, WEAK = Knobs(3, 4, 2, 5), Knobs(0.4, 0.3, 0.2, 0.5)
# The GPU shape has the same host and the same kernel text, and is slow on a processor: tests/backends/test_slop_gpu_shape.py tries less.
PLACES: dict[str, dict[str, Any]] = {"cpu": {"backend": "opencl"}}


def class_masks() -> NDArray[np.uint32]:
    found = np.full(VOCAB, VISIBLE, np.uint32)
    found[list(CLASSES)] = list(CLASSES.values())
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return write_files(tmp_path_factory.mktemp("slop"))


def write_files(folder: Path) -> tuple[Path, str]:
    """The model and a draft vocabulary of the few tokens, all but one and not in order."""
    np.array([33, IM_END, 20, 7, 52, 41, 60], "<i4").tofile(folder / "few.bin")
    return write_tiny_llama(folder / "tiny.gguf", n_vocab=VOCAB, ctx=CTX, seed=3, nextn=True), str(folder / "few.bin")


def opened(files: tuple[Path, str], place: dict[str, Any], cache_dir: str, **settings: Any) -> Engine:
    engine = Engine.open(files[0], DecodeConfig(**{"spec": 8, "draft_vocab": files[1], "cache_dir": cache_dir} | place | settings))
    engine.class_masks.host = class_masks()
    engine.wait_wide()
    return engine


@pytest.fixture(scope="module")
def engine(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with opened(files, place, cache_dir) as engine:
        yield engine


@pytest.fixture(scope="module")
def whole_vocabulary(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    """Its drafter has a head over all ids, which prefers the few: else its drafts would all be wrong."""
    with opened(files, place, cache_dir, draft_vocab=None, mtp_model=str(write_preferring(files[0].parent, VOCAB, FEW))) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with opened(files, place, cache_dir, mtp=False, spec=None) as engine:
        yield engine


def run(engine: Engine, request: Request) -> Result:
    session = engine.session()
    for _ in session.generate(request):
        pass
    assert session.result is not None
    return session.result


@pytest.fixture(scope="module")
def texts(plain: Engine) -> dict[tuple[str, Knobs | None], Result]:
    return {(name, knobs): run(plain, replace(request, slop=knobs)) for name, request in REQUESTS.items() for knobs in (None, STRONG, WEAK)}


def test_the_policy_changes_texts(texts: dict[tuple[str, Knobs | None], Result]) -> None:
    """And every class comes in them, so the tests below see what it does."""
    for name in REQUESTS:
        assert len({texts[name, knobs].token_ids for knobs in (None, STRONG, WEAK)}) == 3, name
    assert {token for result in texts.values() for token in result.token_ids} == set(FEW)
    for knobs in (STRONG, WEAK):
        assert texts["ending", knobs].finish_reason == "stop"
        assert len(texts["ending", knobs].token_ids) > 1


ARMS = list(itertools.product(range(1, 9), (0.0, 0.5), (False, True), (0, 2), REQUESTS, (STRONG, WEAK)))
QUICK = [arm for i, arm in enumerate(ARMS) if i % 11 == 0]


def check_arms(engine: Engine, texts: dict[tuple[str, Knobs | None], Result], arms: Sequence[tuple[int, float, bool, int, str, Knobs]]) -> None:
    accepted = drafted = 0
    for spec, min_p, seen, corrupt, name, knobs in arms:
        rule(engine, spec, min_p)
        engine.config = replace(engine.config, mtp_slop=seen)
        made = run(engine, replace(REQUESTS[name], slop=knobs, corrupt=corrupt))
        assert same_but_for_rounds(made, texts[name, knobs]), (spec, min_p, seen, corrupt, name, knobs)
        accepted += made.speculation.accepted
        drafted += made.speculation.drafted
    assert 0 < accepted < drafted


def test_one_text(engine: Engine, texts: dict[tuple[str, Knobs | None], Result]) -> None:
    check_arms(engine, texts, QUICK)


def test_one_text_over_the_whole_vocabulary(whole_vocabulary: Engine, texts: dict[tuple[str, Knobs | None], Result]) -> None:
    rule(whole_vocabulary, 4)
    for seen in (False, True):
        whole_vocabulary.config = replace(whole_vocabulary.config, mtp_slop=seen)
        for name, request in REQUESTS.items():
            assert same_but_for_rounds(run(whole_vocabulary, replace(request, slop=STRONG)), texts[name, STRONG]), name


@pytest.mark.slow
def test_the_whole_grid(engine: Engine, whole_vocabulary: Engine, texts: dict[tuple[str, Knobs | None], Result]) -> None:
    check_arms(engine, texts, ARMS)
    check_arms(whole_vocabulary, texts, ARMS)


@pytest.mark.parametrize("corrupt", [0, 1, 3])
def test_oracle(plain: Engine, texts: dict[tuple[str, Knobs | None], Result], corrupt: int) -> None:
    """Windows accepted whole, in part and not at all: a rejected row leaves no trace in the state."""
    for spec, name in itertools.product((2, 5, 8), REQUESTS):
        plain.config = replace(plain.config, spec=spec)
        expected = texts[name, STRONG]
        made = run(plain, replace(REQUESTS[name], slop=STRONG, oracle=(*expected.token_ids, 9, 9), corrupt=corrupt))
        assert same_but_for_rounds(made, expected), (spec, name)
    plain.config = replace(plain.config, spec=None)


def test_requests_of_one_session_do_not_meet(engine: Engine, texts: dict[tuple[str, Knobs | None], Result]) -> None:
    session = engine.session()
    for spec, seen, name, knobs in (
        (8, True, "greedy", STRONG),
        (3, False, "sampled", None),
        (1, True, "unfiltered", WEAK),
        (8, True, "greedy", STRONG),
    ):
        rule(engine, spec)
        engine.config = replace(engine.config, mtp_slop=seen)
        for _ in session.generate(replace(REQUESTS[name], slop=knobs)):
            pass
        assert session.result is not None and same_but_for_rounds(session.result, texts[name, knobs])


# Off: nothing of it is there.


def plan(engine: Engine, request: Request) -> tuple[SequenceState, list[tuple[Any, ...]]]:
    """The sequence of a short generation, and the launches of its rounds; buffers by whether they are some."""
    session = engine.session()
    for _ in session.generate(replace(request, max_new=3)):
        pass
    sequence = session.sequence(1)
    replay = sequence._replay("round", 1)
    return sequence, [(x.spec, x.groups, tuple(arg if isinstance(arg, (int, float)) else None for arg in x.args)) for x in replay.launches]


def test_off_means_not_there(files: tuple[Path, str], place: dict[str, Any], cache_dir: str, texts: dict[tuple[str, Knobs | None], Result]) -> None:
    """By the engine, by a request, by all knobs at zero: the plan of before launch for launch, no masks, no buffer, the same text."""
    found: dict[tuple[int, str], list[Any]] = {}
    for slop, own, seen in ((None, None, False), (Knobs(), None, True), (STRONG, Knobs(), True)):
        config = DecodeConfig(draft_vocab=files[1], cache_dir=cache_dir, slop=slop, mtp_slop=seen, **place)
        with Engine.open(files[0], config) as other:
            other.wait_wide()
            for spec, name in itertools.product((1, 4), ("greedy", "sampled")):
                rule(other, spec)
                sequence, launches = plan(other, replace(REQUESTS[name], slop=own))
                assert sequence._slop is None and not other.class_masks._on_device
                assert slop is STRONG or "host" not in vars(other.class_masks)
                assert same_but_for_rounds(run(other, replace(REQUESTS[name], slop=own)), texts[name, None])
                found.setdefault((spec, name), []).append(launches)
    for plans in found.values():
        assert plans[0] == plans[1] == plans[2]
        assert not any("slop.h" in spec.headers or dict(spec.constants).get("SLOP") for spec, *_ in plans[0])


def test_on_costs_one_launch_and_one_more_for_each_draft_that_sees_it(engine: Engine) -> None:
    rule(engine, 4)
    kernels = {}
    for seen, knobs in itertools.product((False, True), (None, STRONG)):
        engine.config = replace(engine.config, mtp_slop=seen)
        sequence, launches = plan(engine, replace(SAMPLED, slop=knobs))
        assert (sequence._slop is None) == (knobs is None)
        assert sequence._slop is None or (sequence._slop.head_masks is not None) == seen
        kernels[seen, knobs] = [spec.kernel for spec, *_ in launches]
    before = kernels[False, None]
    assert kernels[True, None] == before
    at = before.index("filter")
    with_policy = [*before[:at], "slop_parts", *before[at:]]
    assert kernels[False, STRONG] == with_policy
    aligned = list(itertools.chain.from_iterable(["slop_draft", name] if name == "draft_parts" else [name] for name in with_policy))
    assert kernels[True, STRONG] == aligned and aligned.count("slop_draft") == 3


def test_a_prompt_that_leaves_thinking_open(plain: Engine) -> None:
    """No token of the prompt is stepped, not even the last one, which is the first round's input; END is banned until something shows."""
    for prompt, first in ((PROMPT, fresh(thinking=False)), (THINKING, fresh(thinking=True)), ((*PROMPT, BREAK), fresh(thinking=False))):
        session = plain.session()
        generating = session.generate(replace(GREEDY, token_ids=prompt, slop=STRONG))
        next(generating)
        assert session.sequence(1)._rules.slop_state == first
    request = replace(GREEDY, slop=STRONG, logit_bias={IM_END: 90.0, CLOSE: 40.0, BREAK: 40.0, WORD: 30.0}, ignore_eos=False, frequency_penalty=9.0)
    made = run(plain, request)
    assert made.finish_reason == "stop" and WORD in made.token_ids  # the first that shows; the others came before it
    assert run(plain, replace(request, slop=None)).token_ids == (IM_END,)
