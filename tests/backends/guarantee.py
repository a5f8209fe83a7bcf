"""What the guarantee tests vary, and how they compare: logits by their bits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.config import DecodeConfig
from backends.engine import Engine
from backends.tables import BLOCK, MAX_WINDOW

# Settings that may change no bit: work-groups, instructions, launch style.
SETTINGS = {
    "one work-group": {"work_groups": 1},
    "two work-groups": {"work_groups": 2},
    "seven work-groups": {"work_groups": 7},
    "portable": {"instructions": "portable"},
    "queue": {"launch": "queue"},
    "command buffer": {"launch": "buffer"},
}


def opened(model: Path, cache_dir: str, **settings: object) -> Engine:
    """An engine with the programs of all windows ready, on the OpenCL CPU device unless the settings name another."""
    engine = Engine.open(model, DecodeConfig(**{"backend": "opencl", "cache_dir": cache_dir} | settings))  # type: ignore[arg-type]
    engine.wait_wide()
    return engine


def bits(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """The floats' bits, so that equality means equality."""
    return logits.view(np.int32)


def by_windows(engine: Engine, ids: list[int]) -> dict[str, NDArray[np.int32]]:
    """Logits of all rows by every window size."""
    return {f"window {window}": bits(engine.session().logits(ids, 0, window)) for window in range(1, MAX_WINDOW + 1)}


def after_prefill(engine: Engine, ids: list[int], tail: int) -> NDArray[np.int32]:
    """Logits of the last `tail` rows after a prefill of the others."""
    sequence = engine.session().sequence(len(ids))
    sequence.prefill(ids[:-tail])
    return bits(sequence.logits(ids[-tail:], len(ids) - tail))


def poison(engine: Engine, ids: list[int], at: int, value: float) -> NDArray[np.int32]:
    """Logits of rows at..., all KV cells from position `at` on having held `value` before."""
    sequence = engine.session().sequence(len(ids) + 2 * BLOCK)
    cache = sequence.state.cache
    for buffer in (*cache.keys, *cache.values):
        engine.device.upload(buffer, np.full(buffer.nbytes // 2, value, np.float16))
    sequence.prefill(ids[:at])
    return bits(sequence.logits(ids[at:], at))


def pairwise(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Arms in which any two values of two axes meet at least once: greedily, each begins with two that have not met yet."""
    names = list(axes)
    # Of values' places, as values may be equal or not hashable.
    open_pairs = {
        ((a, i), (b, j)) for a, b in itertools.combinations(names, 2) for i, j in itertools.product(range(len(axes[a])), range(len(axes[b])))
    }
    arms = []
    while open_pairs:
        chosen = dict(min(open_pairs, key=lambda pair: (names.index(pair[0][0]), names.index(pair[1][0]), pair[0][1], pair[1][1])))
        for name in names:
            if name not in chosen:
                places = range(len(axes[name]))
                chosen[name] = max(places, key=lambda i: sum(_pair(names, (name, i), other) in open_pairs for other in chosen.items()))
        open_pairs -= {_pair(names, *two) for two in itertools.combinations(chosen.items(), 2)}
        arms.append({name: axes[name][chosen[name]] for name in names})
    return arms


def _pair(names: list[str], one: tuple[str, int], other: tuple[str, int]) -> tuple[tuple[str, int], tuple[str, int]]:
    return (one, other) if names.index(one[0]) < names.index(other[0]) else (other, one)
