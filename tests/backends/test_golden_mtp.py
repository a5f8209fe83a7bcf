"""Drafts and draft logits of tiny MTP layers against an independent implementation's."""

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
from tests.backends.test_golden_logits import DEVICES, TOLERANCE
from tests.golden.make_llama_logits import weights_hash
from tests.golden.make_mtp_logits import CASES, CUTS, DECIDED, DEPTH, LENGTH, RECORDING, write


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The recording's arrays, with the metadata parsed in `meta`."""
    with np.load(RECORDING) as arrays:
        found: dict[str, Any] = dict(arrays)
    found["meta"] = json.loads(found["meta"].tobytes())
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, recorded: dict[str, Any]) -> Callable[[str], tuple[Path, Path | None]]:
    """Writes a case's model, and its drafter if that has a file of its own, once. Fails if their weights are no longer the recorded ones."""
    folder = tmp_path_factory.mktemp("mtp")
    written: dict[str, tuple[Path, Path | None]] = {}

    def get(name: str) -> tuple[Path, Path | None]:
        if name not in written:
            paths = write(folder, name)
            if [weights_hash(path) for path in paths if path is not None] != recorded["meta"]["cases"][name]["weights"]:
                pytest.fail(
                    f"{name}: tests/tiny.py (or NumPy's generator: recorded with {recorded['meta']['numpy']}, here {np.__version__}) no longer gives "
                    "the weights of the recording; run python -m tests.golden.make_mtp_logits with torch and transformers"
                )
            written[name] = paths
        return written[name]

    return get


def open_engine(paths: tuple[Path, Path | None], device: str, cache_dir: str) -> Engine:
    """The model with its drafter, and a window that has room for all drafts of a chain."""
    return Engine.open(paths[0], DecodeConfig(cache_dir=cache_dir, mtp_model=paths[1] and str(paths[1]), spec=DEPTH + 1, **DEVICES[device]))


def assert_near(found: NDArray[np.float32], expected: NDArray[np.float32], where: str) -> None:
    """Within TOLERANCE of the largest logit, or of 1."""
    assert found.shape == expected.shape and found.dtype == np.float32, where
    error = np.abs(found.astype(np.float64) - expected) / max(1.0, float(np.abs(expected).max()))
    assert error.max() <= TOLERANCE, f"{where}: off by {error.max():.2e} at {np.unravel_index(np.argmax(error), error.shape)}"


def normed(residuals: NDArray[np.float32], engine: Engine) -> NDArray[np.float32]:
    """What shared_head_norm (without one, the target's final norm) makes of them: the hidden states that a chain feeds back."""
    assert engine.drafter is not None
    weight = engine.device.download(engine.drafter.head_norm, np.float32, residuals.shape[1]).astype(np.float64)
    x = residuals.astype(np.float64)
    return (x / np.sqrt((x * x).mean(1, keepdims=True) + engine.drafter.shape.epsilon) * weight).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_recording_is_sound(name: str, model: Callable[[str], tuple[Path, Path | None]], recorded: dict[str, Any]) -> None:
    """It holds these cases and weights; chains start at their cell, and no draft of theirs is a near tie."""
    assert {case: entry["arguments"] for case, entry in recorded["meta"]["cases"].items()} == {case: list(pair) for case, pair in CASES.items()}
    model(name)
    vocab = CASES[name][0]["n_vocab"]
    cells, chain, drafts = (recorded[f"{name}/{what}"] for what in ("cells/half", "chain/half", "drafts"))
    assert recorded[f"{name}/ids"].shape == (LENGTH,) and cells.shape == (LENGTH - 1, vocab) and chain.shape == (len(CUTS), DEPTH, vocab)
    assert recorded[f"{name}/hidden/half"].shape == (len(CUTS), DEPTH, CASES[name][0]["n_embd"])
    for i, n in enumerate(CUTS):
        assert np.allclose(chain[i, 0], cells[n - 2], rtol=0, atol=1e-6)
        assert np.array_equal(chain[i].argmax(1), drafts[i])
        best = np.sort(chain[i], 1)
        assert (best[:, -1] - best[:, -2]).min() >= DECIDED - 1e-5


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_chains_equal_transformers(
    device: str, name: str, model: Callable[[str], tuple[Path, Path | None]], recorded: dict[str, Any], cache_dir: str
) -> None:
    """Drafts and their logits, with keys and values rounded to float16 where the caches round them; also from cells that held other tokens."""
    ids = recorded[f"{name}/ids"].tolist()
    with open_engine(model(name), device, cache_dir) as engine:
        sequence = engine.session().sequence(LENGTH + DEPTH)
        for i, n in reversed(list(enumerate(CUTS))):  # the longest first, so that the others have stale cells behind them
            logits, drafts, residuals = sequence.draft_logits(ids[:n], DEPTH)
            assert_near(logits, recorded[f"{name}/chain/half"][i], f"after {n} tokens")
            assert_near(normed(residuals, engine), recorded[f"{name}/hidden/half"][i], f"hidden after {n} tokens")
            assert drafts.tolist() == recorded[f"{name}/drafts"][i].tolist()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_cells_equal_transformers(
    device: str, name: str, model: Callable[[str], tuple[Path, Path | None]], recorded: dict[str, Any], cache_dir: str
) -> None:
    """The logits of every cell, each as the first draft after its token."""
    ids, cells = recorded[f"{name}/ids"].tolist(), recorded[f"{name}/cells/half"]
    with open_engine(model(name), device, cache_dir) as engine:
        sequence = engine.session().sequence(LENGTH + DEPTH)
        found = [sequence.draft_logits(ids[:n], 1)[0][0] for n in range(2, LENGTH + 1)]
    assert_near(np.stack(found), cells, "cell, token")


@pytest.mark.parametrize("device", DEVICES)
def test_float16_cells_are_the_only_loss(
    device: str, model: Callable[[str], tuple[Path, Path | None]], recorded: dict[str, Any], cache_dir: str
) -> None:
    """Against the same without any rounding: only the f16 caches may show."""
    name = "own-head-gqa4-head32"
    half, full = (recorded[f"{name}/chain/{kind}"][-1] for kind in ("half", "full"))
    with open_engine(model(name), device, cache_dir) as engine:
        logits, *_ = engine.session().sequence(LENGTH + DEPTH).draft_logits(recorded[f"{name}/ids"].tolist()[: CUTS[-1]], DEPTH)
    assert np.abs(logits - full).max() <= np.abs(half - full).max() + TOLERANCE * max(1.0, float(np.abs(full).max()))
