"""SmolLM2-135M-Instruct against llama.cpp's greedy tokens. Both quantise activations, each its own way, so near ties may differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.config import DecodeConfig, Request
from backends.engine import Engine

RECORDING = Path(__file__).parent.parent / "golden" / "smollm2_llama_cpp.json"
AGREEMENT = 0.9
CLEAR_LEAD = 0.5  # where llama.cpp's best logit leads by more, agreement is a must; its logits have a deviation of about 6


@pytest.fixture(scope="module")
def cases(smollm2_path: Path) -> dict[str, dict[str, Any]]:
    """The recorded prompts and tokens, by name. Fails if they are another file's."""
    recorded = json.loads(RECORDING.read_text())
    if hashlib.sha256(smollm2_path.read_bytes()).hexdigest() != recorded["model_sha256"]:
        pytest.fail(f"{RECORDING.name} was recorded with another model file; run tests/golden/make_smollm2_llama_cpp.py with llama-cpp-python")
    found: dict[str, dict[str, Any]] = recorded["cases"]
    return found


@pytest.fixture(scope="module")
def engine(smollm2_path: Path, cache_dir: str) -> Iterator[Engine]:
    engine = Engine.open(smollm2_path, DecodeConfig(cache_dir=cache_dir))
    yield engine
    engine.close()


def test_prompts_have_llama_cpps_tokens(cases: dict[str, dict[str, Any]], engine: Engine) -> None:
    for case in cases.values():
        assert engine.tokenize(Request(prompt=case["prompt"], raw=True)) == case["prompt_ids"]


@pytest.fixture(scope="module")
def picks(cases: dict[str, dict[str, Any]], engine: Engine) -> dict[str, NDArray[np.int64]]:
    """Teacher-forced, by prompt: our best token after each prefix of llama.cpp's text."""
    found = {}
    for name, case in cases.items():
        logits = engine.session().logits([*case["prompt_ids"], *case["greedy_ids"][:-1]])[len(case["prompt_ids"]) - 1 :]
        assert np.isfinite(logits).all()
        found[name] = logits.argmax(1)
    return found


def test_top_token_agrees_with_llama_cpp(cases: dict[str, dict[str, Any]], picks: dict[str, NDArray[np.int64]]) -> None:
    same = {name: picks[name] == case["greedy_ids"] for name, case in cases.items()}
    share = np.concatenate(list(same.values())).mean()
    counts = ", ".join(f"{name} {int(s.sum())}/{len(s)}" for name, s in same.items())
    assert share >= AGREEMENT, f"top-1 agreement {share:.1%}: {counts}"
    clear = {name: np.array(case["leads"]) > CLEAR_LEAD for name, case in cases.items()}
    wrong = {name: np.flatnonzero(~same[name] & clear[name]).tolist() for name in cases}
    assert not any(wrong.values()), f"llama.cpp leads clearly and we differ at tokens {wrong}; top-1 agreement {share:.1%}: {counts}"


@pytest.mark.parametrize("name", ["story", "python"])
def test_generation_follows_llama_cpp(name: str, cases: dict[str, dict[str, Any]], picks: dict[str, NDArray[np.int64]], engine: Engine) -> None:
    """Greedy text is llama.cpp's up to the first near tie that falls the other way, and from there on what our own logits say."""
    prompt, greedy = cases[name]["prompt_ids"], cases[name]["greedy_ids"]
    session = engine.session()
    text = "".join(chunk.text for chunk in session.generate(Request(token_ids=tuple(prompt), max_new=len(greedy), ignore_eos=True)))
    result = session.result
    assert result is not None and result.text == text and result.finish_reason == "length"
    ids = list(result.token_ids)
    same = int(np.argmin([*(picks[name] == greedy), False]))
    assert ids[: same + 1] == [*greedy[:same], *picks[name][same : same + 1]]
    if same == len(greedy):
        assert text == cases[name]["text"]
    assert engine.session().logits([*prompt, *ids[:-1]])[len(prompt) - 1 :].argmax(1).tolist() == ids
