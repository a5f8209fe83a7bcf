"""The whole sampler on devices, in both kernel shapes: what it keeps, how often it draws what, and what it never draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.config import DecodeConfig, Request
from backends.decode.sampling import Filters, Penalties, kept, penalise
from backends.engine import Engine
from backends.sequence import Rules, SequenceState
from backends.tables import CUT_INTS, MAX_WINDOW, PARTIAL_INTS
from tests.tiny import write_tiny_llama

VOCAB, CTX = 1003, 512  # the last row block is not full
PLACES = {"cpu": {"kernel_shape": "cpu"}, "gpu": {"kernel_shape": "gpu"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("sampler") / "tiny.gguf", n_vocab=VOCAB, ctx=CTX)


@pytest.fixture(scope="module")
def engine(model: Path, place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with Engine.open(model, DecodeConfig(cache_dir=cache_dir, **place)) as engine:
        engine.wait_wide()
        yield engine


class Sampler:
    """The sampler's launches on scripted logits [rows, vocabulary] and a scripted history."""

    def __init__(self, engine: Engine) -> None:
        self.device, self.sequence = engine.device, SequenceState(engine, CTX)
        self.work = self.sequence.work
        *self._launches, _ = self.work.picks(VOCAB, filtered=True)
        self._replay = self.device.record(self._launches)

    def run(self, logits: np.ndarray, rules: Rules, first: int = 0, history: np.ndarray | None = None) -> np.ndarray:
        """The ids picked, one for each row; rows stand at positions first, first + 1, ..."""
        self.sequence.start(rules)
        self.sequence.set_window([0] * len(logits), first)
        if history is not None:
            self.device.upload(self.work.history, history.astype(np.int32))
        padded = np.full((len(logits), self.work.logits_stride), 1e9, np.float32)  # ids beyond the vocabulary would win
        padded[:, :VOCAB] = logits
        self.device.upload(self.work.logits, padded)
        self._replay.run()
        shares = self._launches[-1].groups
        partial = self.device.download(self.work.partial, np.int32, len(logits) * shares * PARTIAL_INTS).reshape(len(logits), shares, PARTIAL_INTS)
        values = partial[..., 0].copy().view(np.float32)
        return np.array([int(min(row[value == value.max(), 1])) for row, value in zip(partial, values, strict=True)])

    def logits(self, rows: int) -> np.ndarray:
        """The row's logits after bias and penalties."""
        return self.device.download(self.work.logits, np.float32, rows * self.work.logits_stride).reshape(rows, -1)[:, :VOCAB]

    def cuts(self, rows: int) -> np.ndarray:
        return self.device.download(self.work.cuts, np.int32, rows * CUT_INTS).reshape(rows, CUT_INTS)


@pytest.fixture(scope="module")
def sampler(engine: Engine) -> Sampler:
    return Sampler(engine)


def rows_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Random rows: of several widths, with many equal logits, mostly banned, nearly flat."""
    logits = rng.normal(size=(MAX_WINDOW, VOCAB)).astype(np.float32) * np.float32(rng.choice([0.5, 2, 8]))
    if kind == "ties":
        logits = np.round(logits)
    if kind == "all equal":
        logits[:] = np.round(logits[:, :1])
    if kind == "banned":
        logits[rng.random(logits.shape) < 0.99] = -np.inf
        logits[:, 17] = 0
    if kind == "flat":
        logits *= np.float32(1e-6)
    if kind == "far":
        logits[:, ::3] -= np.float32(1e30)
    return logits


@pytest.mark.parametrize("kind", ["plain", "ties", "all equal", "banned", "flat", "far"])
def test_the_kept_set_is_the_hosts(sampler: Sampler, kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for top_k in (0, 1, 2, 40, 700, VOCAB, VOCAB + 1, 2**31 - 1):
        for top_p in (0.0, 0.1, 0.5, 0.95, 1 - 1e-9, 1.0):
            logits = rows_of(kind, rng)
            sampler.run(logits, Rules(CTX, temperature=1.0, filters=Filters(top_k, top_p, 0.01)), first=3)
            values, last = sampler.cuts(MAX_WINDOW).view(np.float32)[:, :1], sampler.cuts(MAX_WINDOW)[:, 1:2]
            found = (logits > values) | ((logits == values) & (np.arange(VOCAB) <= last))
            for r in range(MAX_WINDOW):
                assert np.array_equal(found[r], kept(logits[r], Filters(top_k, top_p))), (top_k, top_p, r)


def test_ten_thousand_rows(sampler: Sampler) -> None:
    """What is drawn was kept, min-p included, and no row gives a value that is no number."""
    rng = np.random.default_rng(2)
    for seed in range(1250):
        logits = rows_of(("plain", "ties", "banned", "flat")[seed % 4], rng)
        filters = Filters(int(rng.choice([0, 1, 40])), float(rng.choice([0.5, 0.95, 1.0])), float(rng.choice([0.0, 0.05, 1.0])))
        drawn = sampler.run(logits, Rules(CTX, temperature=float(rng.choice([0.1, 1, 3])), filters=filters, seed=seed))
        mask = np.array([kept(row, filters) for row in logits[:2]])
        assert mask[[0, 1], drawn[:2]].all(), seed
        assert (drawn < VOCAB).all(), seed
        assert np.isfinite(logits[np.arange(MAX_WINDOW), drawn]).all(), seed


TABLE = {3: 1.0, 200: 0.6, 201: 0.6, 640: 0.0, 1002: -1.5}
CHI_SQUARE = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467}  # p = 0.001
SETTINGS = {
    "temperature": (Rules(CTX, temperature=0.8), [3, 200, 201, 640, 1002]),
    "high temperature": (Rules(CTX, temperature=2.5), [3, 200, 201, 640, 1002]),
    "top-k": (Rules(CTX, temperature=0.8, filters=Filters(top_k=2)), [3, 200]),
    "top-p": (Rules(CTX, temperature=0.8, filters=Filters(top_p=0.75)), [3, 200, 201]),
    "min-p": (Rules(CTX, temperature=1.3, filters=Filters(min_p=0.3)), [3, 200, 201, 640]),
    "all three": (Rules(CTX, temperature=0.8, filters=Filters(4, 0.9, 0.3)), [3, 200, 201, 640]),
    "penalties": (Rules(CTX, temperature=0.8, penalties=Penalties(1.5, 0.1, 0.2, 3)), [3, 200, 201, 640, 1002]),
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_draws_follow_the_distribution(sampler: Sampler, name: str) -> None:
    """20,000 draws against the probabilities in float64; the kept ids and the penalised logits are worked out by hand."""
    rules, ids = SETTINGS[name]
    logits = np.full((MAX_WINDOW, VOCAB), -np.inf, np.float32)
    logits[:, list(TABLE)] = list(TABLE.values())
    table, history = dict(TABLE), np.full(CTX, 9)
    if name == "penalties":  # the history ends ... 1002, 3, 3 at every row of the window only if all positions repeat it
        history[:] = 3
        table[3] = 1.0 / 1.5 - 3 * 0.2 - 0.1
    weights = np.exp([table[i] / rules.temperature for i in ids])
    expected = 20_000 * weights / weights.sum()
    counts = dict.fromkeys(ids, 0)
    for seed in range(20_000 // MAX_WINDOW):
        seeded = Rules(CTX, temperature=rules.temperature, filters=rules.filters, penalties=rules.penalties, seed=seed)
        for token in sampler.run(logits, seeded, first=5 + seed % 300, history=history).tolist():
            counts[token] += 1  # a KeyError is a draw of something that was filtered out
    found = np.array([counts[i] for i in ids])
    assert ((found - expected) ** 2 / expected).sum() < CHI_SQUARE[len(ids) - 1], (found, expected)


def test_penalties_are_the_hosts(sampler: Sampler) -> None:
    """Of every row of a window, by the tokens up to its own, bit for bit; counts are left at zero."""
    rng = np.random.default_rng(4)
    for last_n in (0, 1, 3, 64, 200, -1):
        for repeat, presence, frequency in ((1.3, 0.0, 0.0), (1.0, 0.7, 0.0), (1.0, 0.0, -0.3), (0.7, -1.5, 0.9)):
            penalties = Penalties(repeat, presence, frequency, last_n)
            logits, history = rows_of("plain", rng), rng.choice([5, 6, 7, 500, 1002], CTX)
            sampler.run(logits, Rules(CTX, penalties=penalties), first=100, history=history)
            for r, row in enumerate(sampler.logits(MAX_WINDOW)):
                expected = penalise(logits[r], history[: 100 + r + 1], penalties)
                assert np.array_equal(row.view(np.int32), expected.view(np.int32)), (penalties, r)
    assert not sampler.device.download(sampler.work.counts, np.int32, MAX_WINDOW * sampler.work.logits_stride).any()


def text(engine: Engine, **settings: Any) -> tuple[int, ...]:
    session = engine.session()
    for _ in session.generate(Request(**{"token_ids": (5, 9, 20), "max_new": 40, "ignore_eos": True, "seed": 1, **settings})):
        pass
    assert session.result is not None
    return session.result.token_ids


def test_hardly_warm_is_greedy(engine: Engine) -> None:
    greedy = text(engine)
    assert text(engine, temperature=0.9, top_k=1) == greedy
    assert text(engine, temperature=1e-9) == greedy
    assert text(engine, temperature=1e-9, top_k=0, top_p=1, min_p=0) == greedy
    assert text(engine, temperature=0.9, top_p=0) == greedy
    assert text(engine, temperature=0.9, min_p=1, top_k=0, top_p=1) == greedy
    assert text(engine, temperature=3.0) != greedy


def test_seeds_repeat(engine: Engine) -> None:
    settings = {"temperature": 2.0, "repeat_penalty": 1.2, "presence_penalty": 0.3}
    assert text(engine, seed=5, **settings) == text(engine, seed=5, **settings)
    assert text(engine, seed=5, **settings) != text(engine, seed=6, **settings)


def test_a_ban_holds(engine: Engine) -> None:
    """Also where the banned token would be all that top-k keeps."""
    banned = set(text(engine)[:5])
    for settings in ({}, {"temperature": 1.5, "top_k": 1}, {"temperature": 1.5}, {"temperature": 1.5, "repeat_penalty": 0.5}):
        assert not banned & set(text(engine, logit_bias=dict.fromkeys(banned, -100.0), **settings))


def test_penalties_over_a_generation(engine: Engine) -> None:
    """A presence penalty beyond any logit, over all tokens, never lets one come twice; over the last ones, not within these."""
    everything = text(engine, presence_penalty=100.0, repeat_last_n=-1)
    assert len({*everything, 5, 9, 20}) == len(everything) + 3
    lately = text(engine, presence_penalty=100.0, repeat_last_n=4)
    assert all(token not in lately[max(0, i - 4) : i] for i, token in enumerate(lately))
    assert len(set(lately)) < len(lately)
