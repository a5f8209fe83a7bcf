"""What the kernels compute with, on any device through the Device surface: math, fma, halves, random words, byte products, bit for bit.

The inputs are those of test_math.py and test_philox.py, which hold the NumPy functions compared with here to float64 and known answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends import reference_math
from backends.config import DecodeConfig
from backends.device import Device, KernelSpec, Launch
from backends.devices import open_device
from tests.backends.test_math import BOUNDS, EDGES, arguments, bits, fma_cases
from tests.backends.test_philox import WORDS

PLACES = {"opencl": {"backend": "opencl", "kernel_shape": "gpu"}}  # in CPU shape: test_math.py, test_philox.py
TEXT = (Path(__file__).parent / "device_bits").as_posix()  # an absolute name stands for itself in the kernels' folder
COUNT = 1 << 18
GROUPS = 64


@pytest.fixture(scope="module")
def device(place: dict[str, Any], cache_dir: str) -> Device:
    return open_device(DecodeConfig(cache_dir=cache_dir, **place), [])


@pytest.fixture(scope="module")
def inputs() -> NDArray[np.float32]:
    return numbers()


def numbers() -> NDArray[np.float32]:
    """Edges with both signs, any bit pattern, ordinary sizes."""
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 1 << 32, COUNT // 2, dtype=np.uint32).view(np.float32)
    edges = np.array([*EDGES, *(-x for x in EDGES)], np.float32)
    ordinary = rng.uniform(-110, 110, COUNT // 4), rng.uniform(-1, 3, COUNT // 4 - edges.size)
    return np.concatenate([edges, anything, *(part.astype(np.float32) for part in ordinary)])


def run(device: Device, name: str, arrays: tuple[NDArray[Any], ...], out: NDArray[Any]) -> NDArray[Any]:
    """What the kernel makes of the arrays, in an array like `out`."""
    spec = KernelSpec(TEXT, f"run_{name}", ("dot.h",))
    buffers = [device.put(np.ascontiguousarray(array)) for array in arrays]
    result = device.put(np.full(out.size, 0x55, np.uint8).repeat(out.itemsize))
    device.compile([spec])
    device.record([Launch(spec, (*buffers, result, arrays[0].size), GROUPS)]).run()
    return device.download(result, out.dtype, out.size).reshape(out.shape)


def comparable(device: Device, *arrays: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where no array has a subnormal, if the device flushes them (all that goes in and comes out is given); else everywhere."""
    sizes = np.array([bits(array) & 0x7FFFFFFF for array in arrays])
    return np.asarray(device.subnormals | ((sizes == 0) | (sizes >= 0x00800000)).all(0))


@pytest.mark.parametrize("name", BOUNDS)
def test_math(device: Device, name: str, inputs: NDArray[np.float32]) -> None:
    args = arguments(name, inputs, inputs[: 2 * len(EDGES)])
    with np.errstate(all="ignore"):
        expected = getattr(reference_math, name)(*args)
    # Of these functions silu alone (math.h) gives a flushing device's own bits.
    same = comparable(device, *args, expected) if name == "silu" else np.ones(expected.shape, bool)
    np.testing.assert_array_equal(bits(run(device, name, args, expected))[same], bits(expected)[same])


def test_fma(device: Device, inputs: NDArray[np.float32]) -> None:
    """Rounded once."""
    rng = np.random.default_rng(4)
    for args in (fma_cases(), (inputs, rng.permutation(inputs), rng.permutation(inputs))):
        expected = reference_math.fma32(*args)
        same = comparable(device, *args, expected)
        assert same.mean() > 0.5
        np.testing.assert_array_equal(bits(run(device, "fma", args, expected))[same], bits(expected)[same])


def test_nothing_is_contracted(device: Device, inputs: NDArray[np.float32]) -> None:
    """Rounded twice."""
    a = inputs[-(1 << 16) :]
    expected = a * np.float32(1.1) + a
    np.testing.assert_array_equal(run(device, "apart", (a,), expected), expected)
    assert (expected != reference_math.fma32(a, np.float32(1.1), a)).mean() > 0.05  # the inputs tell the two apart


def test_random_words(device: Device) -> None:
    c0, c1 = np.random.default_rng(0).integers(0, 1 << 32, (2, 4096), dtype=np.uint32)
    expected = reference_math.philox4x32_10((123456789, 0xFEDCBA98), c0, c1)
    np.testing.assert_array_equal(run(device, "philox", (c0, c1), expected), expected)


def test_noise(device: Device) -> None:
    expected = reference_math.gumbel(WORDS)
    np.testing.assert_array_equal(run(device, "gumbel", (WORDS,), expected).view(np.uint32), expected.view(np.uint32))


def test_halves(device: Device) -> None:
    """All halves to float; floats around every rounding case to half, as NumPy rounds them. NaNs stay NaNs."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    expected = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(bits(run(device, "widen", (halves,), expected)), bits(expected))
    finite = np.sort(np.unique(expected[np.isfinite(expected)]))
    points = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, [65519.996, 65520.0, 65536.0, 1e-45, 1e-39]]).astype(np.float32)
    points = np.concatenate([points, -points])
    up, down = (np.nextafter(points, np.float32(end)) for end in (np.inf, -np.inf))
    values = np.concatenate([points, up, down, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)])
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    found = run(device, "narrow", (values,), wanted)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(found.view(np.uint16)[number], wanted.view(np.uint16)[number])
    assert np.isnan(found[~number]).all()


def test_byte_products(device: Device) -> None:
    """Exact sums of four products of an unsigned and a signed byte, extremes included."""
    rng = np.random.default_rng(1)
    w = rng.choice([0, 1, 15, 127, 128, 255], (4096, 4)).astype(np.uint8)
    x = rng.choice([-127, -1, 0, 1, 127], (4096, 4)).astype(np.int8)
    sums = rng.integers(-1000, 1000, 4096).astype(np.int32)
    wanted = (sums + (w.astype(np.int32) * x).sum(1)).astype(np.int32)
    np.testing.assert_array_equal(run(device, "dot4", (sums, w.view(np.uint32), x.view(np.uint32)), wanted), wanted)
