"""Random weights made on a device: in the places of real ones, with the deviation they should have; shapes of the models they are named after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.config import DecodeConfig
from backends.device import Device, KernelSpec, Launch, Memory
from backends.devices import open_device
from backends.engine import Engine
from backends.model.gguf import GGUFFile
from backends.model.weights import unpack
from backends.opencl import OpenCLDevice
from tests.gpu_check import report
from tests.gpu_check.copy import copy_bandwidth
from tests.gpu_check.profile import matrices
from tests.gpu_check.shapes import SHAPES, random_file
from tests.gpu_check.speed import measure
from tests.gpu_check.weights import TEXT, random_weights
from tests.tiny import write_tiny_llama

PLACES = {"opencl": {"backend": "opencl", "kernel_shape": "gpu"}}


def loaded(file: GGUFFile, place: dict[str, Any], cache_dir: str) -> Engine:
    with random_weights():
        return Engine(file, DecodeConfig(cache_dir=cache_dir, **place), lambda stage, fraction: None)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_weights_are_random_and_logits_are_numbers(place: dict[str, Any], cache_dir: str, kind: str) -> None:
    with loaded(random_file("tiny", kind), place, cache_dir) as engine:
        for _, matrix in matrices(engine.model):
            nbytes = matrix.buffer.nbytes - matrix.lines * 64
            found = unpack(engine.device.download(matrix.buffer, np.uint8, nbytes, matrix.lines * 64), kind, matrix.columns, matrix.row_blocks)
            weights = np.stack([found.row(i) for i in range(matrix.row_blocks * 16)])
            assert weights.std() == pytest.approx(matrix.columns**-0.5, rel=0.03)
            assert abs(weights.mean()) < (0.15 if kind == "Q4_0" else 0.02) * weights.std()  # Q4_0's codes are -8..7
            assert len(np.unique(weights, axis=0)) == len(weights)  # no row is another's copy
        logits = engine.session().logits(range(5, 45))
        assert np.isfinite(logits).all() and 0.2 < logits.std() < 20
    with loaded(random_file("tiny", kind), place, cache_dir) as again:
        assert np.array_equal(again.session().logits(range(5, 45)).view(np.int32), logits.view(np.int32))


@pytest.mark.parametrize("settings", [{"weight_type": "Q4_1", "n_vocab": 103, "tied": False}, {"weight_type": "Q4_0", "types": {"attn_v": "Q8_0"}}])
def test_places_are_those_of_real_weights(tmp_path: Path, place: dict[str, Any], cache_dir: str, settings: dict[str, Any]) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", **settings)
    with Engine.open(path, DecodeConfig(cache_dir=cache_dir, **place)) as real, loaded(GGUFFile.open(path), place, cache_dir) as random:
        found = [
            [(role, m.lines, m.type, m.columns, m.row_blocks, m.buffer.nbytes) for role, m in matrices(engine.model)] for engine in (real, random)
        ]
        assert found[0] == found[1]
        assert len(found[0]) > 8


def test_a_file_is_measured_too(tmp_path: Path, place: dict[str, Any], cache_dir: str) -> None:
    """Within a context that is smaller than the check's own."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", ctx=96, weight_type="Q4_0")
    found = measure(str(path), DecodeConfig(cache_dir=cache_dir, **place), "Q8_0", 60, True, True)
    assert (found["model"], found["type"], found["left_out"]) == (str(path), None, [])
    # Row blocks of 16 rows with 64 or 96 columns: scales, 2 * 32 or 3 * 32 padded to 64 bytes, and 256 bytes of codes a k block.
    narrow, wide = 64 + 2 * 256, 128 + 3 * 256
    assert found["weight_bytes"] == 2 * (narrow * (4 + 2 + 2 + 4 + 6 + 6) + wide * 4) + narrow * 6
    assert all(found[name] > 0 for name in ("decode_tok_s", "prefill_tok_s", "host_us", "window_ratio", "weight_gb_s"))


def test_a_model_that_does_not_fit_is_skipped(place: dict[str, Any], cache_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenCLDevice, "memory", lambda self: Memory(None, 8 << 30))
    found = measure("27B", DecodeConfig(cache_dir=cache_dir, **place), "Q4_0", 60, True, False)
    assert found["skipped"].startswith("device cpu: no room: weights 14") and "decode_tok_s" not in found


def test_a_small_model_that_does_not_fit_has_failed(place: dict[str, Any], cache_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every card has room for it."""
    monkeypatch.setattr(OpenCLDevice, "memory", lambda self: Memory(None, 1 << 20))
    found = measure("135M", DecodeConfig(cache_dir=cache_dir, **place), "Q4_0", 60, True, False)
    assert "no room" in found["failure"] and "skipped" not in found
    finished = report.finished({"devices": [reported(found)], "asked": {"checks": False, "sections": []}, "unlisted": []})
    assert finished["verdict"] == "failed"


def test_what_there_is_no_time_for_is_named(place: dict[str, Any], cache_dir: str) -> None:
    found = measure("tiny", DecodeConfig(cache_dir=cache_dir, **place), "Q4_0", 0, True, False)
    assert found["left_out"] == ["decode", *(f"window {rows}" for rows in (1, 2, 4, 8)), "host", "profile", "prefill"]
    finished = report.finished(
        {"devices": [reported(found)], "asked": {"checks": False, "sections": []}, "unlisted": [], "about": {}, "took_s": 1.0, "limit_s": 2.0}
    )
    report.show(finished)  # what is missing is shown as missing


def reported(model: dict[str, Any]) -> dict[str, Any]:
    """A device's report with this model's figures alone."""
    device = {"name": "cpu", "line": "x", "driver": "y", "is_gpu": False, "failure": None, "left_out": [], "memory_bytes": None}
    return device | {"checks": [], "speed": [model], "copy": {"gb_s": 1.0, "kernel_gb_s": 1.0, "driver_gb_s": 0.5}}


def test_the_copy_copies(place: dict[str, Any], cache_dir: str) -> None:
    device: Device = open_device(DecodeConfig(cache_dir=cache_dir, **place), [])
    spec = KernelSpec(TEXT, "copy")
    for count in (1, 127, 128, 4099):
        source = np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)
        target = device.zeros(count + 1, np.uint32)
        device.compile([spec])
        replay = device.record([Launch(spec, (device.put(source), target, count), 3)])  # which holds the source
        replay.run()
        assert np.array_equal(device.download(target, np.uint32, count + 1), [*source, 0])
    found = copy_bandwidth(device, 1 << 20)
    assert found["bytes"] == 1 << 20 and found["gb_s"] > 0


# Published counts of all parameters, norms included.
@pytest.mark.parametrize(("name", "published"), [("135M", 134_515_008), ("1B", 1_235_814_400), ("8B", 8_030_261_248)])
def test_shapes_are_those_of_the_models(name: str, published: int) -> None:
    shape = SHAPES[name]
    assert shape.parameters + (2 * shape.layers + 1) * shape.embd == published


def test_the_largest_shape() -> None:
    assert SHAPES["27B"].parameters == pytest.approx(27e9, rel=0.005)
    file = random_file("27B", "Q4_0")
    assert sum(t.data.nbytes for t in file.tensors.values()) == pytest.approx(27e9 * 18 / 32, rel=0.005)  # and takes no memory
