"""Rows of logits through the slop policy's kernels in GPU shape: meant to run under Oclgrind, as oclgrind_run.

    python -m tests.backends.oclgrind_slop MODEL.gguf        of test_slop_rows.VOCAB tokens, with an MTP layer

Prints "agrees" when every row is the host's in float64, within the tolerance of test_slop_rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from backends.config import DecodeConfig
from backends.decode.sampling import Filters
from backends.decode.slop_adjust import adjust
from backends.engine import Engine
from tests.backends.test_slop_rows import TEMPERATURES, VOCAB, Rows, check, scripted, some_masks, states_behind
from tests.backends.test_slop_step import KNOB_SETTINGS, some_states, state_of

ROWS = 3


def main(model: Path) -> str:
    """What the program says."""
    rng, masks = np.random.default_rng(12), some_masks()
    config = DecodeConfig(backend="opencl", kernel_shape="gpu", instructions="portable", work_groups=2, spec=8)
    with Engine.open(model, config) as engine:
        engine.class_masks.host = masks
        engine.wait_wide()
        rows = Rows(engine, masks)
        for i, words in enumerate(some_states(len(TEMPERATURES) * 2, rng)):
            state, temperature = state_of(words), TEMPERATURES[i % len(TEMPERATURES)]
            knobs = list(KNOB_SETTINGS.values())[i % len(KNOB_SETTINGS)]
            filtered = temperature > 0 and i % 2 == 1
            tokens, logits = rng.integers(0, VOCAB, ROWS).tolist(), scripted(rng, ROWS, VOCAB, masks)
            rows.start(knobs, state, temperature, Filters(top_k=40, top_p=0.9) if filtered else Filters())
            found, _ = rows.run(logits, tokens, filtered)
            for r, behind in enumerate(states_behind(state, tokens, masks)):
                check(found[r], adjust(logits[r].astype(np.float64), masks, behind, knobs, float(np.float32(temperature))), (i, r))
    return "agrees"


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
