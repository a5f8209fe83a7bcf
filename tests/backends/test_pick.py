"""Picks, acceptance and stops on scripted logits, on the OpenCL device and its NumPy reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import reference_math
from backends.config import DecodeConfig
from backends.device import Replay
from backends.engine import Engine
from backends.sequence import Round, Rules, SequenceState
from backends.tables import FLAG_BAD, FLAG_BUDGET, FLAG_CONTEXT, FLAG_END
from tests.tiny import IM_END, write_tiny_llama

VOCAB = 99  # the last row block is not full


PLACES = {"opencl": {"backend": "opencl"}, "numpy": {"backend": "numpy"}}


@pytest.fixture(scope="module")
def engine(place: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, cache_dir: str) -> Iterator[Engine]:
    model: Path = write_tiny_llama(tmp_path_factory.mktemp("pick") / "tiny.gguf", n_vocab=VOCAB, ctx=128)
    with Engine.open(model, DecodeConfig(cache_dir=cache_dir, **place)) as engine:
        yield engine


def pick(
    engine: Engine, logits: np.ndarray, drafts: tuple[int, ...] = (), first: int = 0, rules: Rules | None = None
) -> tuple[Round, tuple[int, ...]]:
    """The round of a target that gives these logits [1 + drafts, vocabulary], and the row it leaves for the next round."""
    sequence = ScriptedSequence(engine, 128)
    sequence.start(rules or Rules(ctx=128))
    sequence.set_window([5, *drafts], first)
    padded = np.full((len(drafts) + 1, sequence.work.logits_stride), 1e9, np.float32)  # ids beyond the vocabulary would win
    padded[:, :VOCAB] = logits
    engine.device.upload(sequence.work.logits, padded)
    made = sequence.round()
    return made, tuple(engine.device.download(sequence.work.rows, np.int32, 4).tolist())


class ScriptedSequence(SequenceState):
    """A sequence whose rounds only pick: the logits are already there."""

    def _replay(self, kind: str, rows: int = 1) -> Replay:
        return self._device.record(self.work.picks(self._model.shape.vocab))


def peaks(*ids: int) -> np.ndarray:
    """Rows of noise whose largest logits are at these ids."""
    logits = np.random.default_rng(sum(ids)).normal(size=(len(ids), VOCAB)).astype(np.float32)
    logits[np.arange(len(ids)), list(ids)] = 20
    return logits


@pytest.mark.parametrize("token", [0, 1, 15, 16, 47, 48, 97, 98])
def test_greedy_takes_the_largest(engine: Engine, token: int) -> None:
    ends = token in engine.tokenizer.end_ids
    made, row = pick(engine, peaks(token), first=9)
    assert made == Round((token,), FLAG_END if ends else 0)
    assert row == (0, 10, token, int(not ends))


@pytest.mark.parametrize("tied", [(3, 98), (16, 17), (20, 36), (31, 32), (40, 88)])
def test_ties_go_to_the_lowest_id(engine: Engine, tied: tuple[int, int]) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, list(tied)] = 7
    assert pick(engine, logits)[0].tokens == (tied[0],)


def test_drafts_are_accepted_while_equal(engine: Engine) -> None:
    logits = peaks(10, 11, 12, 13)
    for accepted in range(4):
        drafts = [10, 11, 12]
        if accepted < 3:
            drafts[accepted] = 60
        made, row = pick(engine, logits, tuple(drafts), first=4)
        assert made.tokens == (10, 11, 12, 13)[: accepted + 1]
        assert row == (0, 5 + accepted, 10 + accepted, 1)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
def test_budget_ends_inside_a_window(engine: Engine, budget: int) -> None:
    made, row = pick(engine, peaks(10, 11, 12, 13), (10, 11, 12), rules=Rules(ctx=128, budget=budget))
    assert made.tokens == (10, 11, 12, 13)[:budget]
    assert made.flags == (FLAG_BUDGET if budget <= 4 else 0)
    assert row[3] == (budget > 4)


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_context_ends_inside_a_window(engine: Engine, left: int) -> None:
    """The last token takes the context's last position."""
    made, _ = pick(engine, peaks(10, 11, 12, 13), (10, 11, 12), first=20, rules=Rules(ctx=21 + left))
    assert made.tokens == (10, 11, 12, 13)[:left]
    assert made.flags == (FLAG_CONTEXT if left <= 4 else 0)


def test_end_stops_and_nothing_behind_it_counts(engine: Engine) -> None:
    window = peaks(10, IM_END, 12)
    assert pick(engine, window, (10, IM_END))[0] == Round((10, IM_END), FLAG_END)
    assert pick(engine, window, (10, 12))[0] == Round((10, IM_END), FLAG_END)
    assert pick(engine, peaks(10, 11), (IM_END,))[0] == Round((10,), 0)  # drafted but not picked
    assert pick(engine, window, (10, IM_END), rules=Rules(ctx=128, ignore_end=True))[0] == Round((10, IM_END, 12), 0)


def test_bias(engine: Engine) -> None:
    logits = peaks(10)
    assert pick(engine, logits, rules=Rules(ctx=128, biases=((10, -100.0),)))[0].tokens == (int(np.argsort(logits[0])[-2]),)
    assert pick(engine, logits, rules=Rules(ctx=128, biases=((98, 50.0),)))[0].tokens == (98,)
    banned = tuple((token, -np.inf) for token in range(VOCAB) if token != 33)
    assert pick(engine, logits, rules=Rules(ctx=128, biases=banned))[0].tokens == (33,)
    assert pick(engine, logits, rules=Rules(ctx=128, temperature=2.0, seed=4, biases=banned))[0].tokens == (33,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_numbers(engine: Engine, bad: float, temperature: float) -> None:
    logits = np.full((1, VOCAB), bad, np.float32)
    rules = Rules(ctx=128, temperature=temperature)
    assert pick(engine, logits, first=6, rules=rules)[0] == Round((), FLAG_BAD, bad_position=6)
    for at in (0, 40, 98) if np.isnan(bad) else ():  # one is enough
        logits = peaks(10)
        logits[0, at] = bad
        assert pick(engine, logits, first=6, rules=rules)[0] == Round((), FLAG_BAD, bad_position=6)


def test_tokens_before_a_bad_row_stand(engine: Engine) -> None:
    logits = peaks(10, 11, 12)
    logits[2, 5] = np.nan
    assert pick(engine, logits, (10, 11), first=6)[0] == Round((10, 11), FLAG_BAD, bad_position=8)
    assert pick(engine, logits, (10, 12), first=6)[0] == Round((10, 11), 0)  # the row behind a rejected draft says nothing


def test_gumbel_picks_follow_the_softmax(engine: Engine) -> None:
    """Chi-square against the exact distribution of five tokens, keyed by position."""
    temperature, draws = 0.7, 4000 if engine.device.name == "numpy" else 20000
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    ids = [2, 17, 40, 63, 98]
    logits[0, ids] = [0.0, 1.0, -0.5, 0.3, -2.0]
    exact = np.exp(logits[0, ids].astype(np.float64) / temperature)
    exact /= exact.sum()
    sequence = ScriptedSequence(engine, 128)
    padded = np.full((1, sequence.work.logits_stride), -np.inf, np.float32)
    padded[:, :VOCAB] = logits
    engine.device.upload(sequence.work.logits, padded)
    replay = sequence._replay("round")
    sequence.start(Rules(ctx=2**30, temperature=temperature, seed=2**40 + 3, ignore_end=True))
    sequence.set_window([5], 0)
    picks = []
    for _ in range(draws):  # each round leaves the row of the next position
        replay.run()
        picks.append(int(engine.device.download(sequence.work.out, np.int32, 5)[4]))
    counts = np.array([picks.count(token) for token in ids])
    assert counts.sum() == draws
    chi_square = ((counts - exact * draws) ** 2 / (exact * draws)).sum()
    assert chi_square < 18.47, (counts, exact * draws)  # p = 0.001 at 4 degrees of freedom


def test_noise_is_keyed_by_seed_position_and_id(engine: Engine) -> None:
    flat = np.zeros((1, VOCAB), np.float32)

    def token(seed: int, first: int) -> int:
        return pick(engine, flat, first=first, rules=Rules(ctx=128, temperature=1.0, seed=seed, ignore_end=True))[0].tokens[0]

    assert token(1, 3) == token(1, 3)
    assert len({token(1, position) for position in range(12)}) > 6
    assert len({token(seed, 3) for seed in (1, 2, 2**32 + 1, 2**33 + 1, 2**63, 5, 6, 7)}) > 4
    # A draft's row picks what it would pick alone: rows 3, 4 of a window and of rounds of their own.
    rules = Rules(ctx=128, temperature=1.0, seed=1, ignore_end=True)
    window = pick(engine, np.zeros((2, VOCAB), np.float32), (token(1, 3),), first=3, rules=rules)[0]
    assert window.tokens == (token(1, 3), token(1, 4))


def test_noise_is_the_one_defined(engine: Engine) -> None:
    """Against the definition in float64: word (id & 3) of Philox keyed by both halves of the seed at (id >> 2, the picked token's position)."""
    rng, ids, seen = np.random.default_rng(1), np.arange(VOCAB), set()
    for seed, first, temperature in product((3, 2**32 + 3, 2**63 + 2**33 + 3), (0, 1, 57), (0.5, 1.5)):
        logits = rng.normal(size=(1, VOCAB)).astype(np.float32)
        words = reference_math.philox4x32_10((seed & 0xFFFFFFFF, seed >> 32), ids >> 2, first + 1)[ids, ids & 3]
        v = np.minimum((words.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32), np.float32(1 - 2**-24)).astype(np.float64)
        scores = logits[0].astype(np.float64) - temperature * np.log(-np.log1p(-v))
        wanted = int(scores.argmax())
        assert np.diff(np.sort(scores))[-1] > 1e-4  # no near tie that float32 could turn
        made, _ = pick(engine, logits, first=first, rules=Rules(ctx=128, temperature=temperature, seed=seed, ignore_end=True))
        assert made.tokens == (wanted,), (seed, first, temperature)
        seen.add(wanted)
    assert len(seen) > 9


def test_a_rejected_row_need_not_be_a_number(engine: Engine) -> None:
    """What no plain decoding would have computed cannot fail it."""
    logits = peaks(10, 11, 12)
    logits[1:] = np.nan
    assert pick(engine, logits, (60, 61))[0] == Round((10,), 0)
    assert pick(engine, logits, (10, 61))[0] == Round((10,), FLAG_BAD, bad_position=1)
