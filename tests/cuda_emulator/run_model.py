"""A model through every kernel on the emulator: short texts, windows, a prefill.

As a program it runs on the build with AddressSanitizer, which ends the process at a stray access:

    LD_PRELOAD=libasan.so python -m tests.cuda_emulator.run_model MODEL.gguf CACHE

It prints "agrees" where the device agrees with the NumPy reference and windows agree bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import backends.cuda
import backends.model.attention
from backends.config import DecodeConfig, Request
from backends.decode.slop import Knobs
from backends.decode.window import PCum
from backends.engine import Engine
from backends.tables import BLOCK
from tests.cuda_emulator.fake_cupy import FakeCupy

LENGTH = 70  # crosses a KV block, which is a chunk of attention here
# A biased id that is far ahead of all others; penalties and filters; neither; the slop policy with filters and without. Seeds, so that a run
# can be repeated.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"seed": 1, "logit_bias": {90: 1e4}},
    {"seed": 2, "temperature": 0.7, "repeat_penalty": 1.3, "presence_penalty": 0.1, "frequency_penalty": 0.2, "logit_bias": {5: 2.0}},
    {"seed": 3, "temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"seed": 4, "temperature": 0.7, "repeat_penalty": 1.3, "slop": Knobs(1, 1, 1, 1)},
    {"seed": 5, "logit_bias": {5: 2.0}, "slop": Knobs(1, 1, 1, 1)},
)


def token_ids(n_vocab: int) -> list[int]:
    """A prompt."""
    return [int(i) for i in np.random.default_rng(5).integers(0, n_vocab, LENGTH)]


def texts(engine: Engine, ids: Sequence[int], new: int = 4) -> list[tuple[int, ...]]:
    """What is generated with each of the settings."""
    found = []
    for settings in SETTINGS:
        session = engine.session()
        for _ in session.generate(Request(token_ids=tuple(ids), max_new=new, ignore_eos=True, **settings)):
            pass
        assert session.result is not None
        found.append(session.result.token_ids)
    return found


def exercise(model: Path, fake: FakeCupy) -> tuple[list[tuple[int, ...]], NDArray[np.float32], bool]:
    """Texts, logits of all rows in windows of 8, and whether single rows and the row after a prefill have the same bits."""
    backends.cuda.load_cupy, backends.model.attention.CHUNK = lambda: fake, BLOCK
    with Engine.open(model, DecodeConfig(backend="cuda", work_groups=3, spec=4, spec_min_p=0.0, spec_p_cum=PCum(0.0), mtp_slop=True)) as engine:
        engine.wait_wide()
        ids = token_ids(engine.tokenizer.n_vocab)
        generated = texts(engine, ids[:5])
        wide, alone = engine.session().logits(ids, 0, 8), engine.session().logits(ids[:12], 0, 1)
        sequence = engine.session().sequence(LENGTH)
        sequence.prefill(ids[:-1])
        last = sequence.logits(ids[-1:], LENGTH - 1, 1)
    same = np.array_equal(wide[:12].view(np.int32), alone.view(np.int32)) and np.array_equal(wide[-1:].view(np.int32), last.view(np.int32))
    return generated, wide, same


def main(model: Path, cache: Path) -> str:
    """What the program says."""
    generated, logits, same_bits = exercise(model, FakeCupy(address=True, cache=cache))
    with Engine.open(model, DecodeConfig(backend="numpy")) as reference:
        ids = token_ids(reference.tokenizer.n_vocab)
        expected, same_texts = reference.session().logits(ids), texts(reference, ids[:5]) == generated
    error = float(np.sqrt(np.mean((logits - expected) ** 2)) / expected.std())
    return "agrees" if same_bits and same_texts and error < 0.02 else f"same bits {same_bits}, same texts {same_texts}, relative error {error:.2g}"


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), Path(sys.argv[2])))
