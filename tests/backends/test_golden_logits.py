"""F32 logits of tiny random llama models against transformers', and prefill against step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.config import DecodeConfig
from backends.engine import Engine
from tests.golden.make_llama_logits import CASES, RECORDING, weights_hash
from tests.tiny import write_tiny_llama

TOLERANCE = 1e-4
DEVICES = {"opencl": {"backend": "opencl"}, "opencl-gpu-shape": {"backend": "opencl", "kernel_shape": "gpu"}, "numpy": {"backend": "numpy"}}


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    """The recording's arrays, with the metadata parsed in `meta`."""
    with np.load(RECORDING) as arrays:
        found: dict[str, Any] = dict(arrays)
    found["meta"] = json.loads(found["meta"].tobytes())
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, recorded: dict[str, Any]) -> Callable[[str], Path]:
    """Writes a case's GGUF, once. Fails if its weights are no longer the recorded ones."""
    folder = tmp_path_factory.mktemp("llama")

    def write(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            case = recorded["meta"]["cases"][name]
            write_tiny_llama(path, **case["arguments"])
            if weights_hash(path) != case["weights"]:
                path.unlink()
                pytest.fail(
                    f"{name}: tests/tiny.py (or NumPy's generator: recorded with {recorded['meta']['numpy']}, here {np.__version__}) no longer gives "
                    "the weights of the recording; run python -m tests.golden.make_llama_logits with torch and transformers"
                )
        return path

    return write


def test_recording_holds_the_cases(recorded: dict[str, Any]) -> None:
    assert {name: case["arguments"] for name, case in recorded["meta"]["cases"].items()} == CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_logits_equal_transformers(device: str, name: str, model: Callable[[str], Path], recorded: dict[str, Any], cache_dir: str) -> None:
    """Against transformers with keys and values rounded to float16 where the KV cache rounds them."""
    engine = Engine.open(model(name), DecodeConfig(cache_dir=cache_dir, **DEVICES[device]))
    ids, positions = recorded[f"{name}/ids"].tolist(), recorded[f"{name}/positions"]
    found = {chunk: engine.session().logits(ids, chunk=chunk) for chunk in (8, 1)}
    engine.close()
    for chunk, logits in found.items():
        assert logits.shape == (len(ids), CASES[name]["n_vocab"]) and logits.dtype == np.float32
        error = np.abs(logits[positions].astype(np.float64) - recorded[f"{name}/half"])
        row, token = np.unravel_index(np.argmax(error), error.shape)
        assert error.max() <= TOLERANCE, f"windows of {chunk}: off by {error.max():.2e} at position {positions[row]}, token {token}"
    assert np.array_equal(found[8].view(np.int32), found[1].view(np.int32)), "windows of 8 and of 1 give different bits"


@pytest.mark.parametrize("device", DEVICES)
def test_float16_cache_is_the_only_loss(device: str, model: Callable[[str], Path], recorded: dict[str, Any], cache_dir: str) -> None:
    """Against transformers without any rounding: only the f16 KV cache may show."""
    name = "tied-gqa2-head16"
    engine = Engine.open(model(name), DecodeConfig(cache_dir=cache_dir, **DEVICES[device]))
    logits = engine.session().logits(recorded[f"{name}/ids"].tolist())[recorded[f"{name}/positions"]]
    engine.close()
    lost = np.abs(recorded[f"{name}/half"] - recorded[f"{name}/full"]).max()
    assert np.abs(logits - recorded[f"{name}/full"]).max() <= lost + TOLERANCE
