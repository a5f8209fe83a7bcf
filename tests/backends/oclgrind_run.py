"""One model through every kernel in GPU shape: meant to run under Oclgrind, which watches memory bounds and data races.

    python -m tests.backends.oclgrind_run MODEL.gguf

Prints "agrees" when logits equal the NumPy reference's within a tolerance, and windows of 1 and 8 rows and a prefill agree bit for bit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import backends.model.attention
from backends.config import DecodeConfig, Request
from backends.decode.slop import Knobs
from backends.decode.window import PCum
from backends.engine import Engine
from backends.tables import BLOCK

LENGTH = 70  # crosses a KV block, which is a chunk of attention here
DRAFTING: dict[str, Any] = {"spec": 4, "spec_min_p": 0.0, "spec_p_cum": PCum(0.0), "mtp_slop": True}  # every draft is verified


def check(model: Path) -> bool:
    """Whether the device agrees with the reference and with itself."""
    backends.model.attention.CHUNK = BLOCK
    with Engine.open(model, DecodeConfig(backend="opencl", kernel_shape="gpu", instructions="portable", work_groups=3, **DRAFTING)) as device:
        device.wait_wide()
        ids = np.random.default_rng(5).integers(0, device.tokenizer.n_vocab, LENGTH).tolist()
        wide = device.session().logits(ids, 0, 8)
        alone = device.session().logits(ids[:12], 0, 1)
        sequence = device.session().sequence(LENGTH)
        sequence.prefill(ids[:-1])
        last = sequence.logits(ids[-1:], LENGTH - 1, 1)
        request = Request(
            token_ids=tuple(ids[:5]),
            max_new=4,
            temperature=0.7,
            seed=3,
            logit_bias={5: 2.0},
            repeat_penalty=1.3,
            frequency_penalty=0.2,
            ignore_eos=True,
            slop=Knobs(1, 1, 1, 1),
        )
        session = device.session()
        for _ in session.generate(request):
            pass
    with Engine.open(model, DecodeConfig(backend="numpy")) as reference:
        expected = reference.session().logits(ids)
        other = reference.session()
        for _ in other.generate(request):
            pass
    assert session.result is not None and other.result is not None
    same_bits = np.array_equal(wide[:12].view(np.int32), alone.view(np.int32)) and np.array_equal(wide[-1:].view(np.int32), last.view(np.int32))
    error = float(np.sqrt(np.mean((wide - expected) ** 2)) / expected.std())
    same_text = session.result.token_ids == other.result.token_ids
    if not (same_bits and same_text and error < 0.02):
        print(f"same bits {same_bits}, same text {same_text}, relative error {error:.2g}")
    return same_bits and same_text and error < 0.02


if __name__ == "__main__":
    print("agrees" if check(Path(sys.argv[1])) else "differs")
