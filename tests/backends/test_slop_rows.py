"""What the slop policy makes of rows of logits on devices, the target's and the drafter's, against the host's float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends import reference_math
from backends.config import DecodeConfig
from backends.decode.sampling import Filters
from backends.decode.slop import Knobs, State, fresh, step
from backends.decode.slop_adjust import adjust
from backends.decode.slop_masks import Masks, mask_at
from backends.decode.slop_tables import END, THINK, WORDS
from backends.device import Launch
from backends.engine import Engine
from backends.plan import SlopBuffers
from backends.reference_picks import noise_words
from backends.sequence import Rules, SequenceState
from backends.tables import DRAFT_PART, MAX_WINDOW, OUT_DRAFTS, OUT_INTS, OUT_PROBABILITIES, PARTIAL_INTS, SLOP_PART, SLOT_INTS, SLOT_SLOP_STATE
from tests.backends.test_slop_step import KNOB_SETTINGS, some_states, state_of
from tests.tiny import write_tiny_llama

VOCAB, CTX = 2 * DRAFT_PART + 99, 64  # three parts, the last one short and not in full row blocks
PLACES = {"cpu": {"kernel_shape": "cpu"}, "gpu": {"kernel_shape": "gpu"}}
TEMPERATURES = (0.0, 0.6, 1.0, 1.7, 100.0, 1e-3, 1e-42)
CLOSE = 1e-5  # of max(1, largest size of a logit)
SEED = 77


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("slop") / "tiny.gguf", n_vocab=VOCAB, n_layer=1, ctx=CTX, nextn=True)


@pytest.fixture(scope="module")
def masks() -> Masks:
    return some_masks()


def some_masks() -> Masks:
    """Random classes, most ids of none; a few END ids."""
    rng = np.random.default_rng(8)
    bits = rng.random((VOCAB, 17)) < 0.03
    bits[:, 15] = False
    bits[:, 16] = rng.random(VOCAB) < 0.9
    found = (bits << np.arange(17, dtype=np.uint32)).sum(1).astype(np.uint32)
    found[[2, 700, 1024, VOCAB - 1]] |= np.uint32(END)
    return found


@pytest.fixture(scope="module")
def engine(model: Path, masks: Masks, place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with Engine.open(model, DecodeConfig(cache_dir=cache_dir, spec=8, work_groups=2, **place)) as engine:
        engine.class_masks.host = masks
        engine.wait_wide()
        yield engine


class Rows:
    """The sampler's launches, and a draft's, on scripted logits and states."""

    def __init__(self, engine: Engine, masks: Masks) -> None:
        self.device, self.masks, self.engine = engine.device, masks, engine
        self.sequence = SequenceState(engine, CTX)
        self.start(Knobs(1), fresh(thinking=False))
        assert self.sequence._slop is not None
        self.slop = self.sequence._slop
        self.plans: dict[bool, list[Launch]] = {filtered: self.sequence.work.picks(VOCAB, filtered, self.slop) for filtered in (False, True)}
        self.replays = {filtered: self.device.record(plan[:-1]) for filtered, plan in self.plans.items()}
        self.accept = self.device.record(self.plans[False][-1:])

    def start(self, knobs: Knobs, state: State, temperature: float = 0.0, filters: Filters = Filters()) -> None:  # noqa: B008
        self.sequence.start(Rules(CTX, temperature=temperature, filters=filters, seed=SEED, slop=knobs, slop_state=state))

    def run(self, logits: NDArray[np.float32], tokens: list[int], filtered: bool = False) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """The rows after the policy, and what is picked in each; tokens: the rows' inputs, of which the first one's is in the state."""
        work = self.sequence.work
        self.sequence.set_window(tokens, 3)
        padded = np.full((len(logits), work.logits_stride), 1e9, np.float32)
        padded[:, :VOCAB] = logits
        self.device.upload(work.logits, padded)
        self.replays[filtered].run()
        rows = self.device.download(work.logits, np.float32, len(logits) * work.logits_stride).reshape(len(logits), -1)[:, :VOCAB]
        shares = self.plans[filtered][-2].groups
        partial = self.device.download(work.partial, np.int32, len(logits) * shares * PARTIAL_INTS).reshape(len(logits), shares, PARTIAL_INTS)
        values = partial[..., 0].copy().view(np.float32)
        return rows, np.array([min(row[value == value.max(), 1]) for row, value in zip(partial, values, strict=True)])

    def commit(self) -> State:
        """The slot's state after acceptance."""
        self.accept.run()
        return state_of(self.device.download(self.sequence.work.slots, np.uint32, SLOT_INTS)[SLOT_SLOP_STATE : SLOT_SLOP_STATE + WORDS])


@pytest.fixture(scope="module")
def rows(engine: Engine, masks: Masks) -> Rows:
    return Rows(engine, masks)


def scripted(rng: np.random.Generator, count: int, n_ids: int, masks: Masks) -> NDArray[np.float32]:
    """Random rows: wide, flat, huge; some mostly banned, with an END id on top, or with the first ids of parts far from all others."""
    logits = (rng.normal(size=(count, n_ids)) * rng.choice([0.03, 0.3, 3, 10], (count, 1))).astype(np.float32)
    logits[rng.random(count) < 0.2] += np.float32(100)
    logits[rng.random(count) < 0.1] *= np.float32(1e30)  # amounts are less than a last place
    for row in logits:
        if rng.random() < 0.3:
            row[rng.random(n_ids) < 0.9] = -np.inf
        if rng.random() < 0.3:
            firsts = row[::SLOP_PART]
            firsts[:] = rng.choice([-np.inf, row.max() + 60, -90], len(firsts))
        row[rng.integers(n_ids)] = 5  # not all may be banned
        ends = np.flatnonzero(masks & np.uint32(END))
        if len(ends) and rng.random() < 0.5:
            row[rng.choice(ends)] = row.max() + rng.choice([0, 1, 30])
    return logits


def check(found: NDArray[np.float32], expected: NDArray[np.float64], where: object) -> None:
    banned = expected == -np.inf
    assert np.array_equal(found == -np.inf, banned), where
    size = max(1.0, float(np.abs(expected[~banned]).max(initial=0)))
    assert np.abs(found[~banned] - expected[~banned]).max(initial=0) <= CLOSE * size, where


def states_behind(state: State, tokens: list[int], masks: Masks) -> Iterator[State]:
    """The state of every row of a window."""
    yield state
    for token in tokens[1:]:
        state = step(state, mask_at(masks, token))
        yield state


def test_every_id_steps_the_rows_behind_it(rows: Rows, masks: Masks) -> None:
    """Windows of 8 rows whose drafts are, one after another, all ids from -1 on; every row is penalised by its own prefix."""
    rng = np.random.default_rng(9)
    ids = rng.permutation(np.arange(-1, VOCAB)).tolist()
    starts = some_states(len(ids) // 7 + 1, rng)
    picked = near = 0
    for i, begin in enumerate(range(0, len(ids), 7)):
        tokens = [5, *ids[begin : begin + 7]]
        state, temperature = state_of(starts[i]), TEMPERATURES[i % len(TEMPERATURES)]
        knobs = list(KNOB_SETTINGS.values())[i % len(KNOB_SETTINGS)]
        logits = scripted(rng, len(tokens), VOCAB, masks)
        rows.start(knobs, state, temperature)
        found, picks = rows.run(logits, tokens)
        committed = state
        for r, behind in enumerate(states_behind(state, tokens, masks)):
            expected = adjust(logits[r].astype(np.float64), masks, behind, knobs, float(np.float32(temperature)))
            check(found[r], expected, (i, r, knobs, temperature, behind))
            scores = expected
            if np.float32(temperature) > 0:
                noise = reference_math.gumbel(noise_words((SEED, 0), 3 + r + 1, VOCAB))
                scores = expected + float(np.float32(temperature)) * noise
            assert scores.max() - scores[picks[r]] <= 2 * CLOSE * max(1.0, float(np.abs(scores[scores > -np.inf]).max()))
            near += int(np.argmax(scores)) != picks[r]
            picked += 1
        for r, token in enumerate(picks.tolist()):
            committed = step(committed, mask_at(masks, token))
            if r + 1 == len(tokens) or tokens[r + 1] != token:
                break
        assert rows.commit() == committed
    assert picked > VOCAB and near < picked / 100


@pytest.mark.parametrize("knobs", list(KNOB_SETTINGS.values()), ids=list(KNOB_SETTINGS))
def test_many_states(rows: Rows, masks: Masks, knobs: Knobs) -> None:
    """Through `filter` and without it the rows have the same bits; thousands of states over all settings."""
    rng = np.random.default_rng(10)
    for i, words in enumerate(some_states(100, rng)):
        state, temperature = state_of(words), TEMPERATURES[1 + i % (len(TEMPERATURES) - 1)]
        tokens = rng.integers(0, VOCAB, MAX_WINDOW).tolist()
        logits = scripted(rng, MAX_WINDOW, VOCAB, masks)
        rows.start(knobs, state, temperature, Filters(top_k=40, top_p=0.9))
        found, picks = rows.run(logits, tokens, filtered=True)
        for r, behind in enumerate(states_behind(state, tokens, masks)):
            check(found[r], adjust(logits[r].astype(np.float64), masks, behind, knobs, float(np.float32(temperature))), (i, r))
            assert found[r, picks[r]] > -np.inf
        rows.start(knobs, state, temperature)
        assert np.array_equal(rows.run(logits, tokens)[0].view(np.int32), found.view(np.int32))
        if not knobs.active:
            assert np.array_equal(found.view(np.int32), logits.view(np.int32))


def test_no_end_at_all(rows: Rows, masks: Masks) -> None:
    """END ids banned: nothing to hold. All others banned: nothing to hold against."""
    rng = np.random.default_rng(11)
    held = (masks & np.uint32(END)) != 0
    state = State(flags=0, dashes=2, visible=9)
    for banned in (held, ~held):
        logits = rng.normal(size=(2, VOCAB)).astype(np.float32)
        logits[:, banned] = -np.inf
        for temperature in (0.0, 0.8):
            rows.start(KNOB_SETTINGS["default"], state, temperature)
            found, picks = rows.run(logits, [5, 6])
            for r, behind in enumerate(states_behind(state, [5, 6], masks)):
                check(found[r], adjust(logits[r].astype(np.float64), masks, behind, KNOB_SETTINGS["default"], temperature), (temperature, r))
            assert not banned[picks].any()


def test_a_row_that_is_no_number_is_still_found(rows: Rows, masks: Masks) -> None:
    """Also where the policy would ban the id itself."""
    for token, value in ((2, np.nan), (2, np.inf), (3, np.nan), (3, np.inf)):
        for state in (fresh(thinking=False), State(visible=3)):
            logits = np.zeros((1, VOCAB), np.float32)
            logits[0, token] = value
            rows.start(KNOB_SETTINGS["default"], state)
            rows.run(logits, [5])
            shares = rows.plans[False][-2].groups
            partial = rows.device.download(rows.sequence.work.partial, np.int32, shares * PARTIAL_INTS).reshape(shares, PARTIAL_INTS)
            assert partial[:, 2].any(), (token, value, state)


@pytest.mark.parametrize("heads", ["full", "shuffled", "missing", "one", "no end"])
def test_draft_rows(rows: Rows, masks: Masks, heads: str) -> None:
    """A draft's row, of some ids in any order: hold and probability come from the row itself. T is the request's, 1 for greedy."""
    rng = np.random.default_rng(12)
    ids = {
        "full": np.arange(VOCAB),
        "shuffled": rng.permutation(VOCAB)[:1500],
        "missing": np.flatnonzero(rng.random(VOCAB) < 0.6),
        "one": np.array([2]),
        "no end": rng.permutation(np.flatnonzero((masks & np.uint32(END)) == 0)),
    }[heads].astype(np.int32)
    own, device, sequence = masks[ids], rows.device, rows.sequence
    drafter = copy.copy(rows.engine.drafter)
    assert drafter is not None
    drafter.n_ids, drafter.vocabulary, drafter.ids = len(ids), ids, device.put(ids)
    slop = SlopBuffers(rows.slop.masks, rows.slop.parts, device.put(np.pad(own, (0, -len(own) % 16))))
    work = sequence.draft_work
    replays = [device.record(drafter.pick(work, sequence.work, draft, None, slop)) for draft in range(MAX_WINDOW - 1)]
    for i, words in enumerate(some_states(120, rng)):
        state, draft, temperature = state_of(words), i % (MAX_WINDOW - 1), TEMPERATURES[i % len(TEMPERATURES)]
        knobs = list(KNOB_SETTINGS.values())[i % len(KNOB_SETTINGS)]
        tokens = rng.integers(0, VOCAB, draft + 1).tolist()
        (row,) = scripted(rng, 1, len(ids), own)
        rows.start(knobs, state, temperature)
        sequence.set_window(tokens, 3)
        device.upload(work.head_control, np.array([1], np.int32))
        device.upload(work.logits, row)
        replays[draft].run()
        *_, behind = states_behind(state, tokens, masks)
        found = device.download(work.logits, np.float32, len(ids))
        expected = adjust(row.astype(np.float64), own, behind, knobs, float(np.float32(temperature)))
        check(found, expected, (i, draft, behind, knobs))
        out = device.download(sequence.work.out, np.int32, OUT_INTS)
        if expected.max() == -np.inf:
            assert out[OUT_DRAFTS + draft] == -1
            continue
        best = int(np.flatnonzero(ids == out[OUT_DRAFTS + draft])[0])
        assert expected.max() - expected[best] <= 2 * CLOSE * max(1.0, float(np.abs(expected[expected > -np.inf]).max()))
        assert out[OUT_PROBABILITIES + draft : OUT_PROBABILITIES + draft + 1].view(np.float32)[0] == pytest.approx(
            1 / np.exp(expected - expected.max()).sum(), rel=1e-3
        )
        slot = device.download(sequence.work.slots, np.uint32, SLOT_INTS)[SLOT_SLOP_STATE : SLOT_SLOP_STATE + WORDS]
        assert tuple(slot.tolist()) == State.from_bytes(words.tobytes()).words  # a chain leaves the verifier's state alone


def test_thinking_costs_nothing(rows: Rows, masks: Masks) -> None:
    """But nothing may end before something visible is there."""
    logits = scripted(np.random.default_rng(13), 1, VOCAB, masks)
    rows.start(KNOB_SETTINGS["most"], State(region=THINK, visible=1), 0.9)
    assert np.array_equal(rows.run(logits, [5])[0].view(np.int32), logits.view(np.int32))
    rows.start(KNOB_SETTINGS["most"], State(region=THINK), 0.9)
    found = rows.run(logits, [5])[0]
    held = (masks & np.uint32(END)) != 0
    assert (found[0, held] == -np.inf).all() and np.array_equal(found[0, ~held], logits[0, ~held])


def test_work_groups_change_no_bit(model: Path, masks: Masks, engine: Engine, rows: Rows, place: dict[str, Any], cache_dir: str) -> None:
    rng = np.random.default_rng(14)
    logits, tokens = scripted(rng, MAX_WINDOW, VOCAB, masks), rng.integers(0, VOCAB, MAX_WINDOW).tolist()
    state = State(dashes=3, bullet_run=2, visible=5)
    rows.start(KNOB_SETTINGS["uneven"], state, 0.7)
    expected = rows.run(logits, tokens)
    for groups in (1, 3, 7):
        with Engine.open(model, DecodeConfig(cache_dir=cache_dir, spec=8, work_groups=groups, **place)) as other:
            other.class_masks.host = masks
            found = Rows(other, masks)
            found.start(KNOB_SETTINGS["uneven"], state, 0.7)
            again = found.run(logits, tokens)
            assert np.array_equal(again[0].view(np.int32), expected[0].view(np.int32)) and np.array_equal(again[1], expected[1])
