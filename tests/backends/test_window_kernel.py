"""The window rules' kernel mirror against the host's: product64 against float64, keeps_draft against WindowRules, in every dialect."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends.cuda import NVRTC_OPTIONS
from backends.decode.window import PCum, WindowRules
from backends.kernels.source import kernel_source
from tests.backends.small_kernels import Emulated, OpenCL
from tests.conftest import skip_or_fail
from tests.cuda_emulator.compiler import system_compiler
from tests.nvrtc import compile_cubin

Floats = NDArray[np.float32]
Run = Callable[..., None]

COUNT, DRAFTS = 1_000_000, 7
RULES = 100_000
SMALLEST = np.finfo(np.float64).tiny  # below it, the kernel's product is 0
TEXT = """
#if PCUM
KERNEL void widen(GLOBAL const float *p, GLOBAL ULONG *out, int count) {
  FOR_SHARE(i, count) out[i] = widen64(p[i]);
}
KERNEL void products(GLOBAL const float *p, GLOBAL ULONG *out, int chains, int drafts) {
  FOR_SHARE(i, chains) {
    ULONG product = EMPTY_PRODUCT;
    for (int j = 0; j < drafts; j++) out[i * drafts + j] = product = product64(product, p[i * drafts + j]);
  }
}
#endif
KERNEL void keeps(GLOBAL const float *p, GLOBAL const float *min_p, GLOBAL const float *threshold, GLOBAL int *out, int chains, int drafts) {
  FOR_SHARE(i, chains) {
    ULONG product = EMPTY_PRODUCT;
    int kept = 0;
    while (kept < drafts && keeps_draft(p[i * drafts + kept], min_p[i], &product, threshold[i])) kept++;
    out[i] = kept;
  }
}
"""


def source(dialect: str) -> str:
    return kernel_source(["lanes.h", "window.h"], dialect) + TEXT


def chains(count: int, seed: int) -> Floats:
    """Probabilities [count, DRAFTS] of kinds that meet different roundings; neither 0 nor NaN."""
    rng = np.random.default_rng(seed)

    def bits(n: int, low: float, high: float) -> Floats:
        """Floats of low..high, each as likely as the next."""
        ends = np.array([low, high], np.float32).view(np.uint32)
        return rng.integers(ends[0], ends[1], (n, DRAFTS), dtype=np.uint32, endpoint=True).view(np.float32)

    n = count // 8
    # Products of three odd integers that have one bit more than a float64 has are halfway between two; more factors follow.
    odd = [2 * rng.integers(1 << k - 2, 1 << k - 1, n) + 1 for k in (24, 24, 6)]
    ties = np.concatenate([np.stack([x / 2.0 ** x.max().item().bit_length() for x in odd], axis=1), rng.uniform(0.5, 1, (n, DRAFTS - 3))], axis=1)
    few_bits = rng.integers(1, 33, (n, DRAFTS)) / 32 * np.exp2(-rng.integers(0, 4, (n, DRAFTS)))
    parts = [
        *(part.astype(np.float32) for part in (ties, few_bits, np.exp2(-rng.integers(0, 127, (n, DRAFTS))))),  # powers of two
        bits(n, 1 - 2**-12, 1),
        bits(n, 2**-126, 1),
        bits(n // 2, 1e-45, 2**-120),  # subnormal floats
        bits(n - n // 2, 1e-45, 2e-44),  # and so small ones that half of the chains underflow
        rng.uniform(0, 1, (n, DRAFTS)).astype(np.float32),
        (1 - 2.0 ** -rng.integers(1, 25, (count - 7 * n, DRAFTS))).astype(np.float32),
    ]
    return np.concatenate(parts)


def float64_products(p: Floats) -> NDArray[np.float64]:
    """NumPy's running products; 0 where the kernel makes them so."""
    running, product = [], np.ones(len(p))
    with np.errstate(under="ignore"):
        for factor in p.T.astype(np.float64):
            product = product * factor
            running.append(product)
    result = np.stack(running, axis=1)
    return np.where(result < SMALLEST, 0.0, result)


SHAPES = {"cpu": ["-DLANES=16"], "gpu": ["-DLANES=1"], "gpu flushing": ["-DLANES=1", "-cl-denorms-are-zero"]}


@pytest.fixture(scope="module", params=list(SHAPES))
def run(request: pytest.FixtureRequest, cl_context: Any) -> OpenCL:
    return OpenCL(cl_context, source("opencl"), [*SHAPES[request.param], "-DPCUM=1"])


@pytest.fixture(scope="module")
def without_p_cum(cl_context: Any) -> OpenCL:
    return OpenCL(cl_context, source("opencl"), ["-DLANES=1", "-DPCUM=0"])


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    if system_compiler() is None:
        skip_or_fail("the emulator needs a C++ compiler")
    return Emulated(tmp_path_factory.mktemp("window"), source("cuda"), ["-DPCUM=1"])


@pytest.fixture(scope="module")
def many() -> tuple[Floats, NDArray[np.float64]]:
    """A million chains and their products."""
    p = chains(COUNT, 1)
    return p, float64_products(p)


def check_products(run: Run, p: Floats, expected: NDArray[np.float64]) -> None:
    out = np.empty(expected.shape, np.uint64)
    run("products", p, out, *p.shape)
    np.testing.assert_array_equal(out, expected.view(np.uint64))


def test_a_million_products(run: OpenCL, many: tuple[Floats, NDArray[np.float64]]) -> None:
    check_products(run, *many)


def test_the_chains_meet_every_rounding(many: tuple[Floats, NDArray[np.float64]]) -> None:
    """Exact halves that round up and down, products of 1, tiny ones, and some that underflow."""
    p, products = many
    ties = p[: COUNT // 8].astype(np.float64)
    first, factor = (ties[:, 0] * ties[:, 1] * 2.0**48).astype(np.uint64), (ties[:, 2] * 64).astype(np.uint64)
    exact = first * factor  # of at most 54 bits; odd, so with 54 it is a half
    half = exact >= np.uint64(1 << 53)
    up = (exact >> np.uint64(1)) & np.uint64(1) == 1
    assert (half & up).sum() > 10_000 and (half & ~up).sum() > 10_000
    assert (products == 0).sum() > 100 and ((products > 0) & (products < 2.0**-1000)).sum() > 100
    assert (products == 1).sum() > 500 and (p == 1).sum() > 1000
    assert (p[products[:, 0] > 0] < 2**-126).sum() > 1000


def test_a_rounding_that_carries_into_the_exponent(run: OpenCL, emulated: Emulated) -> None:
    """2^72 - 1 has four such factors; the first three's product is exact."""
    factors = 7957, 2109, 16773121, 2**24 - 1
    assert math.prod(factors) == 2**72 - 1
    p = np.array([[n / 2 ** n.bit_length() for n in factors]], np.float32)
    expected = float64_products(p)
    assert expected[0].tolist()[2:] == [(2**48 + 2**24 + 1) / 2**49, 0.5]
    for device in (run, emulated):
        check_products(device, p, expected)


def test_zeros(run: OpenCL, emulated: Emulated) -> None:
    p = np.array([[0, 1, 1], [1, 0, 0.5], [0.5, -0.0, 1], [1e-45, 1, 0]], np.float32)
    for device in (run, emulated):
        check_products(device, p, np.abs(float64_products(p)))


def test_widened_floats(run: OpenCL, emulated: Emulated) -> None:
    rng = np.random.default_rng(2)
    edges = np.array([0, 1, 2, 3, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0x3F7FFFFF, 0x3F800000], np.uint32)
    powers = np.uint32(1) << np.arange(23, dtype=np.uint32)
    p = np.concatenate([edges, powers, powers - np.uint32(1), rng.integers(0, 0x3F800000, 10_000, dtype=np.uint32)]).view(np.float32)
    for device in (run, emulated):
        out = np.empty(p.size, np.uint64)
        device("widen", p, out, p.size)
        np.testing.assert_array_equal(out, p.astype(np.float64).view(np.uint64))


@pytest.fixture(scope="module")
def decisions() -> tuple[Floats, Floats, Floats, NDArray[np.int32], NDArray[np.int32]]:
    """Chains, and min_p and threshold of each; how many drafts the host keeps with both rules, and without the cumulative one."""
    rng = np.random.default_rng(3)
    p = chains(RULES, 4)
    p[rng.random(p.shape) < 0.01] = 0
    p[rng.random(p.shape) < 0.01] = 1
    with np.errstate(under="ignore"):
        products = np.multiply.accumulate(p.astype(np.float64), axis=1)
    # Thresholds on a chain's own product and beside it, so that equality and either neighbour decide; and some of any size, 0 and 1.
    rows, at = np.arange(RULES), rng.integers(0, DRAFTS, (2, RULES))
    with np.errstate(under="ignore"):
        near = products[rows, at[0]].astype(np.float32)
    near = np.choose(
        rng.integers(0, 3, RULES), [near, np.nextafter(near, np.float32(0)), np.minimum(np.nextafter(near, np.float32(2)), np.float32(1))]
    )
    single = p[rows, at[1]]
    single = np.choose(rng.integers(0, 3, RULES), [single, np.nextafter(single, np.float32(0)), np.zeros_like(single)])
    anything = rng.choice(np.array([0, -0.0, 1e-45, 2**-126, 0.25, 0.5, 0.9, 1], np.float32), (2, RULES))
    threshold = np.where(rng.random(RULES) < 0.75, near, anything[0]).astype(np.float32)
    min_p = np.where(rng.random(RULES) < 0.75, single, anything[1]).astype(np.float32)
    p[rng.random(p.shape) < 0.01] = np.nan
    p[::7].view(np.uint32)[np.isnan(p[::7])] |= np.uint32(1 << 31)
    rules = [WindowRules(float(m), PCum(float(t))) for m, t in zip(min_p, threshold, strict=True)]
    both = np.array([rule.kept(chain, 0) for rule, chain in zip(rules, p, strict=True)], np.int32)
    alone = np.array([WindowRules(rule.min_p).kept(chain, 0) for rule, chain in zip(rules, p, strict=True)], np.int32)
    assert all((both == n).sum() > 1000 for n in range(DRAFTS + 1)) and (both < alone).sum() > 10_000
    equal = [products[i, n - 1] == threshold[i] > 0 for i, n in enumerate(both) if n]
    assert sum(equal) > 1000  # kept by equality
    return p, min_p, threshold, both, alone


def check_decisions(run: Run, p: Floats, min_p: Floats, threshold: Floats, expected: NDArray[np.int32]) -> None:
    out = np.full(len(p), -1, np.int32)
    run("keeps", p, min_p, threshold, out, *p.shape)
    np.testing.assert_array_equal(out, expected)


def test_decisions(run: OpenCL, decisions: tuple[Any, ...]) -> None:
    p, min_p, threshold, both, _ = decisions
    check_decisions(run, p, min_p, threshold, both)


def test_decisions_without_the_cumulative_rule(without_p_cum: OpenCL, decisions: tuple[Any, ...]) -> None:
    p, min_p, threshold, _, alone = decisions
    check_decisions(without_p_cum, p, min_p, threshold, alone)


def test_the_cuda_text(emulated: Emulated, decisions: tuple[Any, ...]) -> None:
    """The same bits from the C++ text, on a part of the chains."""
    p = chains(100_000, 5)
    check_products(emulated, p, float64_products(p))
    check_decisions(emulated, *(np.ascontiguousarray(part[::5]) for part in decisions[:4]))


@pytest.mark.parametrize("p_cum", [0, 1])
@pytest.mark.parametrize("architecture", [60, 120])
def test_nvrtc_compiles_it(architecture: int, p_cum: int) -> None:
    code, log = compile_cubin(source("cuda"), [*NVRTC_OPTIONS, "-DGROUP=128", f"-DPCUM={p_cum}", f"--gpu-architecture=sm_{architecture}"])
    assert code
    assert not [line for line in log.splitlines() if "warning" in line and "Architectures prior to" not in line]
