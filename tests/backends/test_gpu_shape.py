"""The kernels in GPU shape, on the CPU runtime: the same promises and the same numbers as in CPU shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.config import DecodeConfig, Request
from backends.engine import Engine
from tests.backends.guarantee import after_prefill, bits, by_windows, opened, poison
from tests.backends.test_guarantee import MODELS
from tests.tiny import write_tiny_llama

LENGTH = 140


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("gpu") / f"{request.param}.gguf", n_layer=2, ctx=1024, seed=3, **MODELS[request.param])


@pytest.fixture(scope="module")
def engine(model: Path, cache_dir: str) -> Iterator[Engine]:
    with opened(model, cache_dir, kernel_shape="gpu") as engine:
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


@pytest.mark.parametrize("settings", [{"work_groups": 1}, {"work_groups": 3}, {"launch": "buffer"}], ids=str)
def test_settings(model: Path, ids: list[int], one_by_one: np.ndarray, cache_dir: str, settings: dict[str, object]) -> None:
    with opened(model, cache_dir, kernel_shape="gpu", **settings) as engine:
        for window in (1, 5, 8):
            assert np.array_equal(bits(engine.session().logits(ids, 0, window)), one_by_one), window


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_prefill_chunks(model: Path, ids: list[int], one_by_one: np.ndarray, cache_dir: str, chunk: int) -> None:
    with opened(model, cache_dir, kernel_shape="gpu", prefill_chunk=chunk) as engine:
        assert np.array_equal(after_prefill(engine, ids, 5), one_by_one[-5:])


@pytest.mark.parametrize("value", [float("nan"), -6e4])
def test_later_cells_are_never_read(engine: Engine, ids: list[int], one_by_one: np.ndarray, value: float) -> None:
    for at in (1, 63, 64, 130):
        assert np.array_equal(poison(engine, ids, at, value), one_by_one[at:]), at


def test_shapes_and_reference_agree(model: Path, engine: Engine, ids: list[int], one_by_one: np.ndarray, cache_dir: str) -> None:
    """Between shapes agreement is a tolerance: a value near half a step may take the other int8 code, and later rows see it through KV."""
    ours = one_by_one.view(np.float32)
    with opened(model, cache_dir, kernel_shape="cpu") as cpu, Engine.open(model, DecodeConfig(backend="numpy")) as reference:
        for other in (cpu, reference):
            error = other.session().logits(ids) - ours
            assert np.sqrt(np.mean(error**2)) < 0.02 * ours.std()


def test_picks(model: Path, engine: Engine, cache_dir: str) -> None:
    """The same draws as in CPU shape."""
    request = Request(token_ids=(5, 9, 20), max_new=30, temperature=0.9, seed=2**40 + 1, logit_bias={7: 3.0, 8: -100.0}, ignore_eos=True)
    texts = []
    with opened(model, cache_dir, kernel_shape="cpu") as cpu:
        for where in (engine, cpu):
            session = where.session()
            for _ in session.generate(request):
                pass
            assert session.result is not None
            texts.append(session.result.token_ids)
    assert texts[0] == texts[1]
