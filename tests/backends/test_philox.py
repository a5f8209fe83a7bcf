"""Random words against Random123's known answers, Gumbel noise against its distribution, devices against NumPy."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends import reference_math
from backends.kernels.source import kernel_source

# counter, key, words: Random123's kat_vectors for philox4x32, 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
WORDS = np.concatenate([np.array([0, 1, 2, 2**23, 2**24, 2**31, 2**32 - 257, 2**32 - 129, 2**32 - 1]), np.arange(7, 2**32, 4093)]).astype(np.uint32)
TEXT = """
KERNEL void rounds(uint k0, uint k1, GLOBAL VU *word) {
  VU v[4] = {word[0], word[1], word[2], word[3]};
  philox_rounds(v, k0, k1);
  for (int i = 0; i < 4; i++) word[i] = v[i];
}
KERNEL void words(uint k0, uint k1, GLOBAL VU *c0, GLOBAL VU *c1, GLOBAL VU *out) {
  size_t i = get_global_id(0);
  VU v[4];
  philox(c0[i], c1[i], k0, k1, v);
  for (int j = 0; j < 4; j++) out[i * 4 + j] = v[j];
}
KERNEL void noise(GLOBAL const VU *word, GLOBAL VF *out) { out[get_global_id(0)] = gumbel(word[get_global_id(0)]); }
KERNEL void most(GLOBAL const VU *word, GLOBAL VF *out) { out[get_global_id(0)] = gumbel_most(word[get_global_id(0)]); }
"""


@pytest.fixture(scope="module", params=[1, 16])
def lanes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def program(cl_context: Any, lanes: int) -> Any:
    import pyopencl as cl

    return cl.Program(cl_context, kernel_source([]) + TEXT).build([f"-DLANES={lanes}"])


def run(context: Any, program: Any, name: str, items: int, scalars: list[int], *arrays: NDArray[Any]) -> None:
    """Runs a kernel; the last array receives its buffer's contents."""
    import pyopencl as cl

    queue = cl.CommandQueue(context)
    buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array) for array in arrays]
    cl.Kernel(program, name)(queue, (items,), None, *map(np.uint32, scalars), *buffers)
    cl.enqueue_copy(queue, arrays[-1], buffers[-1])


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    assert tuple(reference_math.philox4x32_10(key, *counter)) == expected


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers_on_the_device(
    cl_context: Any, program: Any, lanes: int, counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = np.repeat(np.array(counter, dtype=np.uint32), lanes)
    run(cl_context, program, "rounds", 1, list(key), words)
    np.testing.assert_array_equal(words, np.repeat(np.array(expected, dtype=np.uint32), lanes))


def test_words_of_many_counters(cl_context: Any, program: Any, lanes: int) -> None:
    rng = np.random.default_rng(0)
    c0, c1 = rng.integers(0, 1 << 32, (2, 4096), dtype=np.uint32)
    out = np.empty((4096 // lanes, 4, lanes), dtype=np.uint32)
    run(cl_context, program, "words", 4096 // lanes, [123456789, 0xFEDCBA98], c0, c1, out)
    expected = reference_math.philox4x32_10((123456789, 0xFEDCBA98), c0, c1)
    np.testing.assert_array_equal(out.transpose(0, 2, 1).reshape(-1, 4), expected)


def test_counters_broadcast() -> None:
    words = reference_math.philox4x32_10((1, 2), np.arange(3)[:, None], np.arange(5))
    assert words.shape == (3, 5, 4)
    np.testing.assert_array_equal(words[2, 4], reference_math.philox4x32_10((1, 2), 2, 4, 0, 0))


def test_gumbel_on_the_device(cl_context: Any, program: Any, lanes: int) -> None:
    words = WORDS[: WORDS.size // 16 * 16]
    out = np.empty(words.size, dtype=np.float32)
    run(cl_context, program, "noise", words.size // lanes, [], words, out)
    np.testing.assert_array_equal(out.view(np.uint32), reference_math.gumbel(words).view(np.uint32))


def test_noise_is_no_larger_than_its_bound(cl_context: Any, program: Any, lanes: int) -> None:
    """Also at every power of two and its neighbours, where the bound is nearest. It would be useless were it far away."""
    powers = (1 << np.arange(32, dtype=np.int64)[:, None]) + np.arange(-2, 3)
    words = np.concatenate([WORDS, powers.clip(0, 2**32 - 1).astype(np.uint32).ravel()])
    words = words[: words.size // 16 * 16]
    most = np.empty(words.size, dtype=np.float32)
    run(cl_context, program, "most", words.size // lanes, [], words, most)
    noise = reference_math.gumbel(words)
    assert (noise <= most).all()
    # ln 2 * 0.0861, the most that log2(1 + m) is above m, 0.001 ln 2, and -log1p(-v) / v - 1 < 0.026 for v < 1/20.
    assert (most - noise)[noise > 3].max() < 0.0861 * np.log(2) + 0.001 + 0.026


def test_gumbel_values() -> None:
    noise = reference_math.gumbel(WORDS)
    with np.errstate(divide="ignore"):
        v = np.minimum((WORDS.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32), np.float32(1 - 2**-24)).astype(np.float64)
    np.testing.assert_allclose(noise, -np.log(-np.log1p(-v)), rtol=3e-7, atol=2e-7)
    assert noise.max() == np.float32(33 * np.log(2)) and noise.min() == np.float32(-np.log(24 * np.log(2)))
    evenly = noise[9:]
    assert abs(evenly.mean() - np.euler_gamma) < 1e-3 and abs(evenly.var() - np.pi**2 / 6) < 1e-2
