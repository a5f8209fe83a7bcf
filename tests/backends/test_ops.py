"""Every op against its NumPy reference: each launch of a model's plan on both devices, from the same buffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.config import DecodeConfig
from backends.device import Launch
from backends.engine import Engine
from backends.model.llama_block import State
from backends.plan import MAX_BIASES, Workspace
from backends.tables import (
    FLAG_BUDGET,
    FLAG_CONTEXT,
    MAX_WINDOW,
    OUT_COUNT,
    OUT_FLAGS,
    OUT_INTS,
    OUT_TOKENS,
    SLOT_BIASES,
    SLOT_BUDGET,
    SLOT_CONTEXT,
    SLOT_IGNORE_END,
    SLOT_INTS,
    SLOT_SEED_LOW,
    SLOT_TEMPERATURE,
)
from tests.backends.guarantee import opened
from tests.backends.test_guarantee import MODELS
from tests.tiny import write_tiny_llama

CTX = 192
FLOATS = ("x", "query", "attended", "hidden", "logits")


class Side:
    """A device's engine with tables for two sequences."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device = engine, engine.device
        self.work = Workspace(engine.device, engine.model.sizes, 8, engine.groups, CTX, slots=2)
        self.state: State = engine.model.state(CTX, slots=2)

    def launches(self, tile: int, most: int = MAX_WINDOW) -> list[Launch]:
        return [
            *self.engine.model.rows(self.work, self.state, tile, most),
            *self.engine.model.logits(self.work, tile),
            *self.work.picks(self.engine.model.shape.vocab),
        ]

    def read(self, name: str) -> np.ndarray:
        buffer = getattr(self.work, name)
        return self.device.download(buffer, np.float32, buffer.nbytes // 4)

    def run(self, launch: Launch) -> None:
        self.device.record([launch], "queue").run()
        self.device.finish()


PLACES = {"cpu": {"kernel_shape": "cpu"}, "gpu": {"kernel_shape": "gpu"}}


@pytest.fixture(scope="module", params=MODELS)
def sides(
    request: pytest.FixtureRequest, place: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, cache_dir: str
) -> Iterator[tuple[Side, Side]]:
    model: Path = write_tiny_llama(tmp_path_factory.mktemp("ops") / "tiny.gguf", n_layer=2, ctx=CTX, seed=8, **MODELS[request.param])
    with opened(model, cache_dir, **place) as device, Engine.open(model, DecodeConfig(backend="numpy")) as reference:
        yield Side(device), Side(reference)


# (slot, position, token, active): windows, two sequences in one table, inactive rows. Each case builds on the cells of those before.
CASES = {
    "one row": [(0, 0, 7, 1)],
    "window of three": [(0, 1, 9, 1), (0, 2, 30, 1), (0, 3, 31, 1)],
    "two sequences": [(0, 4, 12, 1), (0, 5, 13, 1), (1, 0, 40, 1), (1, 1, 41, 1), (1, 2, 42, 1)],
    "inactive rows": [(0, 6, 12, 1), (0, 7, 0, 0), (1, 3, 44, 1), (1, 9, 0, 0)],
    "eight rows": [(0, 7 + i, 20 + i, 1) for i in range(8)],
}


@pytest.mark.parametrize(("tile", "most"), [(1, MAX_WINDOW), (8, MAX_WINDOW), (8, 512)])
def test_every_launch(sides: tuple[Side, Side], tile: int, most: int) -> None:
    device, reference = sides
    for buffer in FLOATS:  # what no launch writes stays what other tests left
        device.device.upload(getattr(device.work, buffer), reference.read(buffer))
    for ours, theirs in zip(cells(device), cells(reference), strict=True):
        device.device.upload(ours, reference.device.download(theirs, np.float16, theirs.nbytes // 2))
    for name, rows in CASES.items():
        for side in sides:
            side.work.set_rows(rows)
        expected = iter(reference.launches(tile, most))
        for launch in device.launches(tile, most):
            device.run(launch)
            if launch.spec.kernel in ("activate", "attention_parts"):  # only in GPU shape: the result shows in the launch behind it
                continue
            wanted_launch = next(expected)
            assert launch.spec.kernel.removesuffix("_merge") == wanted_launch.spec.kernel
            reference.run(wanted_launch)
            for buffer in FLOATS:
                got, wanted = device.read(buffer), reference.read(buffer)
                # A value within rounding of half a step may take the other int8 code; such flips are rare and at most a step of one block.
                close = np.isclose(got, wanted, rtol=1e-4, atol=2e-5)
                allowed = 0.05 if launch.spec.kernel in ("matvec", "qkv") else 0.0
                assert 1 - close.mean() <= allowed, (name, launch.spec.kernel, buffer)
                assert np.allclose(got, wanted, rtol=0.02, atol=0.02 * max(1.0, float(np.abs(wanted).max()))), (name, launch.spec.kernel, buffer)
                device.device.upload(getattr(device.work, buffer), wanted)
            if launch.spec.kernel == "qkv":
                same_cells(device, reference)
        assert next(expected, None) is None
        tables = [
            (side.device.download(side.work.rows, np.int32, 8).tolist(), side.device.download(side.work.out, np.int32, 2 * OUT_INTS).tolist())
            for side in sides
        ]
        assert tables[0] == tables[1], name


def same_cells(device: Side, reference: Side) -> None:
    """KV cells agree up to their rounding to float16; then the device gets the reference's."""
    for ours, theirs in zip(cells(device), cells(reference), strict=True):
        wanted = reference.device.download(theirs, np.float16, theirs.nbytes // 2)
        got = device.device.download(ours, np.float16, theirs.nbytes // 2)
        assert np.allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=0.02, atol=0.02)
        device.device.upload(ours, wanted)


def cells(side: Side) -> list[Any]:
    return [*side.state.cache.keys, *side.state.cache.values]


def test_sequences_do_not_meet(sides: tuple[Side, Side]) -> None:
    """A sequence's logits have the same bits alone, and beside another in one table."""
    device, _ = sides
    vocab = device.engine.model.shape.vocab
    ids = np.random.default_rng(2).integers(0, vocab, (2, 24))
    replay = device.device.record(device.launches(8)[:-2], "auto")

    def logits(rows: list[tuple[int, int, int, int]]) -> np.ndarray:
        device.work.set_rows(rows)
        replay.run()
        return device.device.download(device.work.logits, np.int32, 8 * device.work.logits_stride).reshape(8, -1)[: len(rows), :vocab]

    alone = [np.concatenate([logits([(slot, p, int(ids[slot, p]), 1)]) for p in range(24)]) for slot in (0, 1)]
    for first in range(0, 24, 4):
        together = logits([(slot, p, int(ids[slot, p]), 1) for slot in (0, 1) for p in range(first, first + 4)])
        assert np.array_equal(together[:4], alone[0][first : first + 4])
        assert np.array_equal(together[4:], alone[1][first : first + 4])


def test_sequences_have_their_own_settings(sides: tuple[Side, Side]) -> None:
    """Bias, temperature, seed, budget and context of each slot, and its own results, beside another's in one table."""
    rng = np.random.default_rng(4)
    # A bias far above the rest makes slot 0's tokens known, its budget cuts them to two; slot 1 samples and ends with its context.
    floats = np.array([0.0, 0.8], np.float32).view(np.int32)
    settings = np.zeros((2, SLOT_INTS), np.int32)
    settings[:, SLOT_TEMPERATURE], settings[:, SLOT_SEED_LOW], settings[:, SLOT_IGNORE_END] = floats, (1, 2), 1
    settings[:, SLOT_BUDGET], settings[:, SLOT_CONTEXT], settings[:, SLOT_BIASES] = (2, 100), (100, 32), (1, 2)
    bias_ids, biases = np.zeros((2, MAX_BIASES), np.int32), np.zeros((2, MAX_BIASES), np.float32)
    bias_ids[0, 0], biases[0, 0] = 60, 90.0
    bias_ids[1, :2], biases[1, :2] = (7, 33), (-50.0, 60.0)
    rows = [(0, 10, 5, 1), (0, 11, 60, 1), (0, 12, 60, 1), (1, 29, 5, 1), (1, 30, 33, 1), (1, 31, 33, 1)]
    results = []
    logits = rng.normal(size=(len(rows), sides[0].work.logits_stride)).astype(np.float32)
    for side in sides:
        work = side.work
        for buffer, array in ((work.slots, settings), (work.bias_ids, bias_ids), (work.biases, biases), (work.logits, logits)):
            side.device.upload(buffer, array)
        work.set_rows(rows)
        for launch in work.picks(side.engine.model.shape.vocab):
            side.run(launch)
        out = side.device.download(work.out, np.int32, 2 * OUT_INTS).reshape(2, -1)
        results.append([(out[s, OUT_FLAGS], out[s, OUT_TOKENS : OUT_TOKENS + out[s, OUT_COUNT]].tolist()) for s in (0, 1)])
        assert side.device.download(work.rows, np.int32, 8).tolist() == [0, 12, 60, 0, 1, 31, 33, 0]
        side.device.upload(work.slots, np.zeros((2, SLOT_INTS), np.int32))
    assert results[0] == results[1] == [(FLAG_BUDGET, [60, 60]), (FLAG_CONTEXT, [33, 33])]
