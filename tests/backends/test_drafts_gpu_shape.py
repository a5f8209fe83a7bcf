"""Drafting in GPU shape, on the CPU runtime or on --device, and by the reference: one text with and without, the same drafts in all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.config import DecodeConfig, RoundTrace
from backends.decode.window import PCum
from backends.engine import Engine
from tests.backends.test_drafts import GREEDY, SAMPLED, check_arms, rule, run, same_but_for_rounds, write_files

PLACES: dict[str, dict[str, Any]] = {"gpu": {"backend": "opencl", "kernel_shape": "gpu"}, "numpy": {"backend": "numpy"}}
ARMS = [(2, 0.0, None), (5, 0.5, PCum(0.3)), (8, 0.0, None), (8, 0.3, PCum(0.9, 0.5, 64, 128))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return write_files(tmp_path_factory.mktemp("drafts"))


def test_one_text(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> None:
    requests = {"greedy": replace(GREEDY, max_new=24), "sampled": replace(SAMPLED, max_new=24)}
    with Engine.open(files[0], DecodeConfig(mtp=False, cache_dir=cache_dir, **place)) as plain:
        texts = {name: run(plain, request) for name, request in requests.items()}
    with Engine.open(files[0], DecodeConfig(spec=8, draft_vocab=files[1], cache_dir=cache_dir, **place)) as engine:
        engine.wait_wide()
        check_arms(engine, texts, [(*arm, name) for arm in ARMS for name in requests], {"max_new": 24})
        rule(engine, 6)
        made = run(engine, replace(requests["sampled"], corrupt=3))
        assert same_but_for_rounds(made, texts["sampled"])
        assert 0 < made.speculation.accepted < made.speculation.drafted


def test_drafts_are_the_cpu_shapes(files: tuple[Path, str], place: dict[str, Any], cache_dir: str) -> None:
    """Between shapes only the last bits of a probability differ; these random weights leave no draft so near a rule or a tie."""
    traces: list[list[RoundTrace]] = []
    for settings in (place, {"backend": "opencl", "kernel_shape": "cpu"}):
        with Engine.open(files[0], DecodeConfig(spec=5, spec_min_p=0.3, draft_vocab=files[1], cache_dir=cache_dir, **settings)) as engine:
            traces.append([])
            run(engine, replace(SAMPLED, max_new=16), traces[-1])
    assert [(entry.drafts, entry.kept, entry.tokens) for entry in traces[0]] == [(entry.drafts, entry.kept, entry.tokens) for entry in traces[1]]
    for ours, theirs in zip(*traces, strict=True):
        assert ours.probabilities == pytest.approx(theirs.probabilities, rel=1e-4)
