"""The kernels in GPU shape, on the CPU runtime or on --device: the same promises and the same numbers as in CPU shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends.model.attention
from backends.config import DecodeConfig, Request
from backends.engine import Engine
from backends.errors import DeviceError
from backends.model.attention import CHUNK
from backends.tables import BLOCK
from tests.backends.guarantee import after_prefill, bits, by_windows, opened, poison
from tests.backends.test_guarantee import MODELS
from tests.device_choice import has_cpu_runtime, is_chosen
from tests.tiny import write_tiny_llama

LENGTH = 140
QUICK = ("q4_1", "f32")  # the others differ in the weights' header alone, which test_ops runs in this shape too
PLACES = {"opencl": {"kernel_shape": "gpu"}}


@pytest.fixture(scope="module", autouse=True)
def chunks() -> Iterator[None]:
    """Chunks of attention so short that LENGTH positions are several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends.model.attention, "CHUNK", BLOCK)
        yield


@pytest.fixture(scope="module", params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("gpu") / f"{request.param}.gguf", n_layer=2, ctx=1024, seed=3, **MODELS[request.param])


@pytest.fixture(scope="module")
def engine(model: Path, place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    with opened(model, cache_dir, **place) as engine:
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


@pytest.mark.parametrize(
    "settings",
    [{"work_groups": 1}, {"work_groups": 3}, {"launch": "queue"}, {"launch": "buffer"}, {"instructions": "portable"}, {"prefill_chunk": 3}],
    ids=str,
)
def test_settings(
    model: Path, place: dict[str, Any], engine: Engine, ids: list[int], one_by_one: np.ndarray, cache_dir: str, settings: dict[str, object]
) -> None:
    """Neither logits nor texts, greedy and sampled, know of them."""
    with opened(model, cache_dir, **place, **settings) as other:
        try:
            for window in (1, 5, 8):
                assert np.array_equal(bits(other.session().logits(ids, 0, window)), one_by_one), window
        except DeviceError as error:
            if not is_chosen(place) or "launch=buffer" not in str(error):
                raise
            pytest.skip(str(error))  # not every driver of a GPU can record
        for temperature in (0.0, 0.9):
            assert text(other, ids[:40], temperature) == text(engine, ids[:40], temperature)


def text(engine: Engine, ids: list[int], temperature: float) -> tuple[int, ...]:
    session = engine.session()
    for _ in session.generate(Request(token_ids=tuple(ids), max_new=24, temperature=temperature, seed=2**33 + 5, ignore_eos=True)):
        pass
    assert session.result is not None
    return session.result.token_ids


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_prefill_chunks(model: Path, place: dict[str, Any], ids: list[int], one_by_one: np.ndarray, cache_dir: str, chunk: int) -> None:
    with opened(model, cache_dir, **place, prefill_chunk=chunk) as engine:
        for tail in (5, LENGTH - 2 * BLOCK - 1, LENGTH - 2 * BLOCK, LENGTH - 2 * BLOCK + 1):  # the rest begins at a cut, and beside it
            assert np.array_equal(after_prefill(engine, ids, tail), one_by_one[-tail:]), tail


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -6e4])
def test_later_cells_are_never_read(engine: Engine, ids: list[int], one_by_one: np.ndarray, value: float) -> None:
    for at in (1, 63, 64, 65, 127, 128, 130):
        assert np.array_equal(poison(engine, ids, at, value), one_by_one[at:]), at


def test_chunks_as_they_are(model: Path, place: dict[str, Any], cache_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the first cut between chunks of their usual size: windows, and prefills that end around it."""
    monkeypatch.setattr(backends.model.attention, "CHUNK", CHUNK)
    length = CHUNK + 6
    with opened(model, cache_dir, **place) as engine:
        ids = np.random.default_rng(6).integers(0, engine.tokenizer.n_vocab, length).tolist()
        sequence = engine.session().sequence(length)
        wanted = bits(sequence.logits(ids))
        for window in range(1, 8):
            assert np.array_equal(bits(sequence.logits(ids[CHUNK - 8 :], CHUNK - 8, window)), wanted[CHUNK - 8 :]), window
        for tail in (5, 6, 7):
            assert np.array_equal(after_prefill(engine, ids, tail), wanted[-tail:]), tail


def test_one_shape_has_one_set_of_bits(model: Path, place: dict[str, Any], ids: list[int], one_by_one: np.ndarray, cache_dir: str) -> None:
    """A GPU's, whatever its API, are those of the processor in GPU shape: the math is the kernels' own, the order of sums fixed."""
    if not has_cpu_runtime():
        pytest.skip("no OpenCL CPU runtime to compare with")
    with opened(model, cache_dir, kernel_shape="gpu") as runtime:
        assert np.array_equal(bits(runtime.session().logits(ids, 0, 1)), one_by_one)


def others(model: Path, place: dict[str, Any], cache_dir: str) -> Iterator[Engine]:
    """The reference, and the CPU shape; with --device the reference alone, whose machine need have no CPU runtime."""
    with Engine.open(model, DecodeConfig(backend="numpy")) as reference:
        yield reference
    if not is_chosen(place):
        with opened(model, cache_dir, kernel_shape="cpu") as cpu:
            yield cpu


def test_shapes_and_reference_agree(
    model: Path, place: dict[str, Any], engine: Engine, ids: list[int], one_by_one: np.ndarray, cache_dir: str
) -> None:
    """Between shapes agreement is a tolerance: a value near half a step may take the other int8 code, and later rows see it through KV."""
    ours = one_by_one.view(np.float32)
    for other in others(model, place, cache_dir):
        error = other.session().logits(ids) - ours
        assert np.sqrt(np.mean(error**2)) < 0.02 * ours.std()


def test_picks(model: Path, place: dict[str, Any], engine: Engine, cache_dir: str) -> None:
    """The same draws as in CPU shape and in the reference."""
    request = Request(token_ids=(5, 9, 20), max_new=30, temperature=0.9, seed=2**40 + 1, logit_bias={7: 3.0, 8: -100.0}, ignore_eos=True)

    def drawn(engine: Engine) -> tuple[int, ...]:
        session = engine.session()
        for _ in session.generate(request):
            pass
        assert session.result is not None
        return session.result.token_ids

    ours = drawn(engine)
    for other in others(model, place, cache_dir):
        assert drawn(other) == ours
