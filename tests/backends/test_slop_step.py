"""The slop policy's step and its costs by kernel against the host's, in every dialect and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.cuda import NVRTC_OPTIONS
from backends.decode.slop import Knobs, State, fresh, step
from backends.decode.slop_adjust import amounts
from backends.decode.slop_tables import KNOBS, NEWLINE, PROSE, THINK, THINK_CLOSE, THINK_OPEN, VISIBLE, WORDS
from backends.kernels.source import kernel_source
from backends.plan import SLOP
from backends.tables import SLOT_INTS, SLOT_SLOP_KNOBS
from tests.backends.small_kernels import Emulated, OpenCL
from tests.conftest import skip_or_fail
from tests.cuda_emulator.compiler import system_compiler
from tests.nvrtc import compile_cubin

Words = NDArray[np.uint32]

WALKS, STEPS = 10_000, 20
BITS = 17
TEXT = """
DEVICE void state_at(GLOBAL const uint *words, SlopState *s) {
  s->first = words[SLOP_WORD_FIRST];
  s->second = words[SLOP_WORD_SECOND];
  s->visible = words[SLOP_WORD_VISIBLE];
}
KERNEL void walk(GLOBAL const uint *states, GLOBAL const uint *masks, GLOBAL uint *out, int walks, int steps) {
  FOR_SHARE(i, walks) {
    SlopState s;
    state_at(states + i * SLOP_WORDS, &s);
#pragma unroll 1
    for (int j = 0; j < steps; j++) {
      slop_step(&s, masks[i * steps + j]);
      GLOBAL uint *to = out + (i * steps + j) * SLOP_WORDS;
      to[SLOP_WORD_FIRST] = s.first;
      to[SLOP_WORD_SECOND] = s.second;
      to[SLOP_WORD_VISIBLE] = s.visible;
    }
  }
}
// What every mask of a list (as many as a multiple of 16) costs in every state.
KERNEL void cost(GLOBAL const uint *states, GLOBAL const int *slot, GLOBAL const uint *masks, GLOBAL float *out, int count, int ids) {
  FOR_SHARE(i, count) {
    SlopState s;
    SlopAmounts a;
    state_at(states + i * SLOP_WORDS, &s);
    slop_amounts(s, slot, &a);
#pragma unroll 1
    for (int at = 0; at < ids; at += LANES) STORE_AT(slop_lowered(LOAD_AT(masks, at), a), out, i * ids + at);
  }
}
"""


def source(dialect: str) -> str:
    return kernel_source(["tables.h", "lanes.h", *SLOP], dialect) + TEXT


SHAPES = {"cpu": ["-DLANES=16"], "gpu": ["-DLANES=1"]}


@pytest.fixture(scope="module", params=[*SHAPES, "cuda"])
def run(request: pytest.FixtureRequest, cl_context: Any, tmp_path_factory: pytest.TempPathFactory) -> OpenCL | Emulated:
    if request.param != "cuda":
        return OpenCL(cl_context, source("opencl"), SHAPES[request.param])
    if system_compiler() is None:
        skip_or_fail("the emulator needs a C++ compiler")
    return Emulated(tmp_path_factory.mktemp("slop"), source("cuda"), [])


def some_states(count: int, rng: np.random.Generator) -> Words:
    """States [count, WORDS] of any bytes; most of a region that exists, some counters full or nearly, some fresh."""
    data = rng.integers(0, 256, (count, 4 * WORDS), np.uint8)
    data[: count * 3 // 4, 0] = rng.integers(0, 4, count * 3 // 4)
    data[: count // 2, 0] = PROSE
    for column in (2, 3, 4, 5):
        data[:, column] = np.where(rng.random(count) < 0.5, rng.integers(0, 4, count), data[:, column])
        data[rng.random(count) < 0.1, column] = 255
    data[rng.random(count) < 0.3, 8:] = 0
    data[rng.random(count) < 0.05, 8:] = 255
    words = data.view("<u4").astype(np.uint32)
    words[rng.random(count) < 0.1] = fresh(thinking=False).words
    words[rng.random(count) < 0.1] = fresh(thinking=True).words
    return words


def state_of(words: Words) -> State:
    return State.from_bytes(words.astype("<u4").tobytes())


@pytest.fixture(scope="module")
def transitions() -> tuple[Words, Words, Words]:
    """States, masks of the steps behind each, and the host's states after every step."""
    rng = np.random.default_rng(6)
    states = some_states(WALKS, rng)
    likely = np.array([0.15, 0.07, 0.2, 0.1, 0.2, 0.1, 0.15, 0.15, 0.04, 0.2, 0.04, 0.2, 0.1, 0.1, 0.05, 0.02, 0.75])
    bits = rng.random((WALKS, STEPS, BITS)) < likely
    bits[: WALKS // 10] = rng.random((WALKS // 10, STEPS, BITS)) < 0.5
    masks = (bits << np.arange(BITS, dtype=np.uint32)).sum(2).astype(np.uint32)
    masks[rng.random(masks.shape) < 0.02] |= np.uint32(0xFFFE0000)  # bits that mean nothing
    expected = np.empty((WALKS, STEPS, WORDS), np.uint32)
    for i in range(WALKS):
        state = state_of(states[i])
        for j in range(STEPS):
            state = step(state, int(masks[i, j]))
            expected[i, j] = state.words
    return states, masks, expected


def test_two_hundred_thousand_transitions(run: OpenCL | Emulated, transitions: tuple[Words, Words, Words]) -> None:
    states, masks, expected = transitions
    out = np.full_like(expected, 0xDEADBEEF)
    run("walk", states, masks, out, WALKS, STEPS)
    np.testing.assert_array_equal(out, expected)


def test_the_walks_go_everywhere(transitions: tuple[Words, Words, Words]) -> None:
    """Every region is entered from every other that leads there; counters fill up, and visible does."""
    states, _, expected = transitions
    before = np.concatenate([states[:, None], expected[:, :-1]], axis=1)
    steps = np.stack([before[..., 0] & 0xFF, expected[..., 0] & 0xFF], axis=-1).reshape(-1, 2)
    moves = {tuple(pair) for pair in np.unique(steps[(steps < 4).all(1)], axis=0).tolist()}
    assert moves >= {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0), (1, 1), (2, 2), (3, 3)}
    assert moves.isdisjoint({(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)})
    for shift, word in ((16, 0), (24, 0), (0, 1), (8, 1)):
        counts = before[..., word] >> shift & 0xFF, expected[..., word] >> shift & 0xFF
        assert (counts[1] == counts[0] + 1).sum() > 100
        assert ((counts[0] == 255) & (counts[1] == 255)).sum() > 100
    assert (expected[..., 2] == 2**32 - 1).sum() > 100
    assert (expected[..., 1] >> 16 == 0).all()


KNOB_SETTINGS = {
    "off": Knobs(),
    "default": Knobs(1.5, 2, 0.5, 2),
    "one": Knobs(structure=0.3),
    "uneven": Knobs(0.1, 0.7, 3.3, 0.01),
    "most": Knobs(20, 20, 20, 20),
}


@pytest.mark.parametrize("knobs", list(KNOB_SETTINGS.values()), ids=list(KNOB_SETTINGS))
def test_costs(run: OpenCL | Emulated, knobs: Knobs) -> None:
    """Bit for bit the host's in float32, for 5,000 states and masks with every pair of bits."""
    states = some_states(5_000, np.random.default_rng(7))
    pairs = [1 << i | 1 << j for i in range(BITS) for j in range(BITS)]
    masks = np.array([*pairs, 0, 0x1FFFF, 0x17FFF, *range(0, 0x80000, 0x1011)], np.uint32)
    masks = masks[: len(masks) // 16 * 16]
    slot = np.zeros(SLOT_INTS, np.int32)
    slot.view(np.float32)[SLOT_SLOP_KNOBS : SLOT_SLOP_KNOBS + KNOBS] = knobs.values
    out = np.full((len(states), len(masks)), np.nan, np.float32)
    run("cost", states, slot, masks, out, len(states), len(masks))
    for found, words in zip(out, states, strict=True):
        np.testing.assert_array_equal(found, amounts(state_of(words), masks, knobs, np.float32))
    assert (out.max() == 0) == (not knobs.active)


def test_a_newline_behind_think_opens_a_line() -> None:
    """The place where a seed that misses one token shows: what is wrong with it in words of the state."""
    think = fresh(thinking=True)
    closed = step(step(think, VISIBLE), THINK_CLOSE | VISIBLE)
    assert step(closed, NEWLINE).region == PROSE and step(closed, NEWLINE).flags != closed.flags
    assert step(think, NEWLINE).region == THINK  # without the marker's own step all of the answer would be taken for thinking
    assert step(closed, THINK_OPEN | VISIBLE).region == THINK


@pytest.mark.parametrize("architecture", [60, 120])
def test_nvrtc_compiles_it(architecture: int) -> None:
    code, log = compile_cubin(source("cuda"), [*NVRTC_OPTIONS, "-DGROUP=128", f"--gpu-architecture=sm_{architecture}"])
    assert code
    assert not [line for line in log.splitlines() if "warning" in line and "Architectures prior to" not in line]
