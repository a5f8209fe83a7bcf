"""A row's arithmetic depends on nothing beside it: one set of bits whatever the window, chunk, work-groups, instructions or launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.config import DecodeConfig, Request
from backends.engine import Engine
from tests.backends.guarantee import SETTINGS, after_prefill, bits, by_windows, opened, poison
from tests.tiny import write_tiny_llama

# Odd numbers of k blocks, grouped heads, a vocabulary that fills no row block.
MODELS = {
    "q4_1": {"weight_type": "Q4_1", "embd_type": "Q8_0", "n_embd": 96, "n_head": 3, "n_head_kv": 1, "head_dim": 32, "n_ff": 160, "n_vocab": 103},
    "q4_0": {"weight_type": "Q4_0", "n_embd": 64, "n_head": 4, "n_head_kv": 2, "head_dim": 16, "n_ff": 96, "tied": False},
    "q8_0": {"weight_type": "Q8_0", "n_embd": 128, "n_head": 2, "n_head_kv": 1, "head_dim": 64, "n_ff": 224},
    "f32": {"weight_type": "F32", "n_embd": 64, "n_head": 4, "n_head_kv": 2, "head_dim": 16, "n_ff": 96},
}
LENGTH = 150  # more than two KV blocks


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf", n_layer=2, ctx=1024, seed=3, **MODELS[request.param])


@pytest.fixture(scope="module")
def engine(model: Path, cache_dir: str) -> Iterator[Engine]:
    with opened(model, cache_dir) as engine:
        yield engine


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return np.random.default_rng(5).integers(0, engine.tokenizer.n_vocab, LENGTH).tolist()


@pytest.fixture(scope="module")
def one_by_one(engine: Engine, ids: list[int]) -> np.ndarray:
    return bits(engine.session().logits(ids, 0, 1))


def test_windows(engine: Engine, ids: list[int], one_by_one: np.ndarray) -> None:
    for name, logits in by_windows(engine, ids).items():
        assert np.array_equal(logits, one_by_one), name


@pytest.mark.parametrize("settings", list(SETTINGS.values()), ids=list(SETTINGS))
def test_settings(model: Path, ids: list[int], one_by_one: np.ndarray, cache_dir: str, settings: dict[str, object]) -> None:
    with opened(model, cache_dir, **settings) as engine:
        for window in (1, 4, 8):
            assert np.array_equal(bits(engine.session().logits(ids, 0, window)), one_by_one), window


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_prefill_chunks(model: Path, ids: list[int], one_by_one: np.ndarray, cache_dir: str, chunk: int) -> None:
    with opened(model, cache_dir, prefill_chunk=chunk) as engine:
        assert np.array_equal(after_prefill(engine, ids, 5), one_by_one[-5:])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -6e4])
def test_later_cells_are_never_read(engine: Engine, ids: list[int], one_by_one: np.ndarray, value: float) -> None:
    for at in (1, 63, 64, 70, 140):
        assert np.array_equal(poison(engine, ids, at, value), one_by_one[at:]), at


def test_blocks_may_lie_anywhere(engine: Engine, ids: list[int], one_by_one: np.ndarray) -> None:
    """Cells are found through the block table alone."""
    sequence = engine.session().sequence(LENGTH)
    engine.device.upload(sequence.state.cache.block_table, np.array([2, 0, 1], np.int32))
    assert np.array_equal(bits(sequence.logits(ids)), one_by_one)


def test_numpy_device(model: Path, ids: list[int]) -> None:
    """The reference is a device of its own and keeps the promise too."""
    with Engine.open(model, DecodeConfig(backend="numpy")) as engine:
        one = bits(engine.session().logits(ids[:80], 0, 1))
        assert np.array_equal(bits(engine.session().logits(ids[:80], 0, 7)), one)
        assert np.array_equal(after_prefill(engine, ids[:80], 5), one[-5:])


def test_positions_split_anywhere(engine: Engine, ids: list[int], one_by_one: np.ndarray) -> None:
    """Windows of changing sizes, as speculation makes them."""
    sequence = engine.session().sequence(LENGTH)
    rng, at, parts = np.random.default_rng(7), 0, []
    while at < LENGTH:
        size = int(rng.integers(1, 9))
        parts.append(bits(sequence.logits(ids[at : at + size], at, size)))
        at += size
    assert np.array_equal(np.concatenate(parts), one_by_one)


def test_rejected_rows_leave_no_trace(engine: Engine, ids: list[int], one_by_one: np.ndarray) -> None:
    """Wrong drafts fill cells that the next window overwrites."""
    sequence = engine.session().sequence(LENGTH + 8)
    wrong = [(token + 1) % engine.tokenizer.n_vocab for token in ids]
    for at in range(0, LENGTH):
        window = sequence.logits([ids[at], *wrong[at + 1 : at + 5]], at)
        assert np.array_equal(bits(window)[0], one_by_one[at]), at


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_text_repeats(engine: Engine, temperature: float) -> None:
    requests = [Request(token_ids=(5, 9, 20), max_new=40, temperature=temperature, seed=11, ignore_eos=True)] * 3
    session = engine.session()
    texts = []
    for request in requests:
        chunks = list(session.generate(request))
        assert session.result is not None
        assert "".join(chunk.text for chunk in chunks) == session.result.text
        texts.append(session.result.token_ids)
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 40
