"""The math header against float64, and its three forms (16 lanes, one lane, NumPy) against each other bit for bit."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends import reference_math
from backends.errors import BadValue
from backends.kernels.source import kernel_source
from backends.reference_math import Floats, fma32

COUNT = 1 << 20
UNARY = ("exp", "log", "log1p", "sigmoid", "silu", "softplus", "rsqrt")
# ulp: the maxima over every input that math.h states.
BOUNDS = {"exp": 0.892, "log": 0.929, "log1p": 1.27, "sigmoid": 1.48, "silu": 2.42, "softplus": 1.66, "rsqrt": 0.5, "div": 0.5}
EXACT: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x))),
    "silu": lambda x: np.where(x < -800, -0.0, x * np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x)))),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "div": lambda a, b: a / b,
}
# Where the functions bend, beyond where float32 itself does: over- and underflow of exp, the scaled part of sigmoid, log's reduction.
EDGES = [
    *(0.0, 1e-45, 3e-39, 2**-126, 2**-125, 2**-25, 0.5, 2 / 3, 1.0, 4 / 3, 2.0, 16777215.0, 2**127, 3.4028235e38, math.inf, math.nan),
    *(70.0, 87.336544, 87.33655, 88.72283, 88.72284, 91.9, 103.27893, 103.97207, 103.97208, 110.0, 1000.0),
]


@pytest.fixture(scope="module")
def edges() -> Floats:
    """Every edge with both signs and three neighbours on each side."""
    bits = np.array([*EDGES, *(-x for x in EDGES)], dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        return (bits[:, None] + np.arange(-3, 4, dtype=np.int64).astype(np.uint32)).view(np.float32).ravel()


@pytest.fixture(scope="module")
def inputs(edges: Floats) -> Floats:
    """Edges, then any bit pattern (log-uniform, both signs, NaNs and subnormals too), then ordinary sizes."""
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 1 << 32, COUNT // 2, dtype=np.uint32).view(np.float32)
    ordinary = rng.uniform(-110, 110, COUNT // 4), rng.uniform(-1, 3, COUNT // 4 - edges.size)
    return np.concatenate([edges, anything, *(part.astype(np.float32) for part in ordinary)])


class Device:
    """Runs one function of the math header on arrays, in its 16-lane or its 1-lane form."""

    def __init__(self, context: Any, options: list[str]) -> None:
        import pyopencl as cl

        self.cl, self.context, self.queue = cl, context, cl.CommandQueue(context)
        loads = {1: "{0}[get_global_id(0)]", 16: "vload16(get_global_id(0), {0})"}
        stores = {1: "out[get_global_id(0)] = {0};", 16: "vstore16({0}, get_global_id(0), out);"}
        text = kernel_source([])
        functions = [(name, f"m_{name}_{{}}", 2 if name == "div" else 1) for name in (*UNARY, "div")] + [("fma", "fma", 3)]
        for lanes, load in loads.items():
            for name, function, arity in functions:
                parameters = "".join(f"GLOBAL const float *{x}, " for x in "abc"[:arity])
                call = f"{function.format(lanes)}({', '.join(load.format(x) for x in 'abc'[:arity])})"
                text += f"KERNEL void run_{name}_{lanes}({parameters}GLOBAL float *out) {{ {stores[lanes].format(call)} }}\n"
        self.program = cl.Program(context, text).build(options)

    def __call__(self, name: str, lanes: int, *arrays: Floats) -> Floats:
        flags = self.cl.mem_flags
        result = np.empty_like(arrays[0])
        buffers = [self.cl.Buffer(self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=array) for array in arrays]
        out = self.cl.Buffer(self.context, flags.WRITE_ONLY, result.nbytes)
        self.cl.Kernel(self.program, f"run_{name}_{lanes}")(self.queue, (result.size // lanes,), None, *buffers, out)
        self.cl.enqueue_copy(self.queue, result, out)
        return result


@pytest.fixture(scope="module")
def device(cl_context: Any) -> Device:
    return Device(cl_context, [])


@pytest.fixture(scope="module")
def flushing_device(cl_context: Any) -> Device:
    """The same, allowed to treat subnormals as zero."""
    return Device(cl_context, ["-cl-denorms-are-zero"])


def arguments(name: str, inputs: Floats, edges: Floats) -> tuple[Floats, ...]:
    if name != "div":
        return (inputs,)
    # Every pair of edges; subnormal quotients; ties between two subnormals; then random pairs.
    rng = np.random.default_rng(2)
    some = edges[::3]
    pairs = np.repeat(some, some.size), np.tile(some, some.size)
    low = rng.uniform(1, 2, COUNT // 8).astype(np.float32)
    factor, odd = rng.integers(1, 1 << 11, COUNT // 8), 2 * rng.integers(0, 1 << 12, COUNT // 8) + 1
    numerators = pairs[0], low * np.float32(2**-100), np.ldexp((odd * factor).astype(np.float32), -125), rng.permutation(inputs)
    scale = np.exp2(rng.integers(24, 52, low.size)).astype(np.float32)
    denominators = pairs[1], rng.permutation(low) * scale, np.ldexp(factor.astype(np.float32), 25), inputs
    a, b = np.concatenate(numerators), np.concatenate(denominators)
    return a[: a.size // 16 * 16], b[: a.size // 16 * 16]


def error_in_ulp(result: Floats, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
        error = np.abs(result.astype(np.float64) - exact) / unit
        rounded = exact.astype(np.float32)
        same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
        return np.where(same, np.minimum(np.nan_to_num(error), 0.5), np.where(np.isfinite(result) & np.isfinite(exact), error, np.inf))


def bits(x: Floats) -> NDArray[np.uint32]:
    """The bits, every NaN alike."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


@pytest.mark.parametrize("name", BOUNDS)
def test_accuracy_and_equal_bits(name: str, device: Device, inputs: Floats, edges: Floats) -> None:
    args = arguments(name, inputs, edges)
    result = device(name, 16, *args)
    with np.errstate(all="ignore"):
        error = error_in_ulp(result, EXACT[name](*(x.astype(np.float64) for x in args)))
    worst = int(error.argmax())
    assert error[worst] <= BOUNDS[name], f"{error[worst]} ulp at {[x[worst] for x in args]}"
    np.testing.assert_array_equal(bits(device(name, 1, *args)), bits(result), "one lane and 16 lanes")
    np.testing.assert_array_equal(bits(getattr(reference_math, name)(*args)), bits(result), "NumPy and the device")


@pytest.mark.parametrize("name", BOUNDS)
def test_flushing_subnormals_changes_nothing(name: str, device: Device, flushing_device: Device, inputs: Floats, edges: Floats) -> None:
    args = arguments(name, inputs, edges)
    if name == "silu":
        args = (np.where(np.abs(inputs) < 2**-125, np.float32(0), inputs),)
    np.testing.assert_array_equal(bits(flushing_device(name, 16, *args)), bits(device(name, 16, *args)))


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        *[("exp", x, y) for x, y in ((-np.inf, 0), (np.inf, np.inf), (0, 1), (88.72284, np.inf), (-103.972, 1e-45), (-103.98, 0))],
        *[("log", x, y) for x, y in ((0, -np.inf), (-0.0, -np.inf), (-1, np.nan), (np.inf, np.inf), (1, 0), (-np.inf, np.nan))],
        *[("log1p", x, y) for x, y in ((0, 0), (-0.0, -0.0), (-1, -np.inf), (-1.5, np.nan), (np.inf, np.inf), (-1e-45, -1e-45))],
        *[("sigmoid", x, y) for x, y in ((0, 0.5), (-np.inf, 0), (np.inf, 1), (-1000, 0), (1000, 1))],
        *[("silu", x, y) for x, y in ((0, 0), (-0.0, -0.0), (-np.inf, -0.0), (np.inf, np.inf))],
        *[("softplus", x, y) for x, y in ((-np.inf, 0), (np.inf, np.inf), (1e30, 1e30))],
        *[("rsqrt", x, y) for x, y in ((0, np.inf), (-0.0, -np.inf), (-1, np.nan), (np.inf, 0), (4, 0.5), (1e-45, 2.6713738e22))],
    ],
)
def test_edge_values(name: str, x: float, expected: float) -> None:
    result = getattr(reference_math, name)(np.float32(x))
    assert bits(result) == bits(np.asarray(expected, dtype=np.float32))


def nearest_float32(x: Fraction) -> float:
    """x rounded to float32, ties to even, from the definition."""
    if x == 0:
        return 0.0
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent = max(exponent - (abs(x) < Fraction(2) ** exponent), -126) - 23
    value = round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return float(value) if abs(value) < 2**128 else math.copysign(math.inf, value)


def fma_cases() -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(3)
    n = 4000
    sizes = rng.integers(-70, 60, n)
    a, b = (rng.uniform(1, 2, n) * np.where(rng.random(n) < 0.5, 1, -1) for _ in range(2))
    a, b = (a * np.exp2(sizes)).astype(np.float32), (b * np.exp2(rng.integers(-70, 60, n))).astype(np.float32)
    with np.errstate(under="ignore", over="ignore"):
        product = a.astype(np.float64) * b
        # Addends that cancel, that leave the product at a rounding boundary, that dwarf it, and any.
        near = -product * (1 + rng.integers(-2, 3, n) * 2.0**-24)
        boundary = np.exp2(np.frexp(product)[1] + rng.integers(-30, 60, n)) * rng.integers(1, 8, n)
        c = np.choose(rng.integers(0, 3, n), [near, boundary, rng.uniform(-1, 1, n) * np.exp2(sizes)]).astype(np.float32)
    # Ties broken only by the product's lowest bits, far below them, in normal and in subnormal results.
    powers = np.arange(-150, 20)
    ties = [(s * np.exp2(powers), t * np.exp2(np.maximum(powers + gap, -149))) for s in (1, -1) for t in (1, 3) for gap in (23, 24, 25)]
    tb, tc = (np.concatenate(tie) for tie in zip(*ties, strict=True))
    anything = rng.integers(0, 1 << 32, (3, n), dtype=np.uint32).view(np.float32)
    parts = (a, b, c), (np.full(tb.size, 1 + 2**-23), tb * (1 - 2**-23), tc), anything
    cases: Floats = np.concatenate([np.array(part, dtype=np.float32) for part in parts], axis=1)
    cases = cases[:, np.isfinite(cases).all(axis=0)]
    a, b, c = cases[:, : cases.shape[1] // 16 * 16].copy()
    return a, b, c


def test_fma_rounds_once() -> None:
    a, b, c = fma_cases()
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    expected = np.array([nearest_float32(x) for x in exact], dtype=np.float32)
    np.testing.assert_array_equal(fma32(a, b, c), expected)
    assert np.count_nonzero((expected != 0) & (np.abs(expected) < 2**-126)) > 50


@pytest.mark.parametrize("lanes", [1, 16])
def test_fma_of_the_device_rounds_once(lanes: int, device: Device, inputs: Floats) -> None:
    rng = np.random.default_rng(4)
    for args in (fma_cases(), (inputs, rng.permutation(inputs), rng.permutation(inputs))):
        np.testing.assert_array_equal(bits(device("fma", lanes, *args)), bits(fma32(*args)))


@pytest.mark.parametrize("options", [[], ["-cl-std=CL3.0"]], ids=["default", "cl3"])
@pytest.mark.parametrize("lanes", [1, 16])
def test_nothing_is_contracted(cl_context: Any, lanes: int, options: list[str], inputs: Floats) -> None:
    """A product and a sum side by side stay two roundings: an fma is one only where the text says so."""
    import pyopencl as cl

    text = "KERNEL void f(GLOBAL const VF *a, GLOBAL VF *out) { size_t i = get_global_id(0); out[i] = a[i] * 1.1f + a[i]; }"
    program = cl.Program(cl_context, kernel_source([]) + text).build([f"-DLANES={lanes}", *options])
    queue, a = cl.CommandQueue(cl_context), inputs[-(1 << 16) :]
    buffer, out = (cl.Buffer(cl_context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=a) for _ in range(2))
    cl.Kernel(program, "f")(queue, (a.size // lanes,), None, buffer, out)
    found = np.empty_like(a)
    cl.enqueue_copy(queue, found, out)
    np.testing.assert_array_equal(found, a * np.float32(1.1) + a)
    assert (found != fma32(a, np.float32(1.1), a)).mean() > 0.05  # the inputs tell the two apart


def test_compiler_messages_name_the_file(cl_context: Any) -> None:
    import pyopencl as cl

    with pytest.raises(cl.RuntimeError, match=r"math\.h:\d+"):
        cl.Program(cl_context, kernel_source([]).replace("0x7ef311c7 -", "0x7ef311c7 - oops +")).build()


def test_unknown_kernel_text() -> None:
    with pytest.raises(BadValue, match=r"no kernel file 'nothing\.cl'; there are: .*math\.h"):
        kernel_source(["nothing.cl"])
    with pytest.raises(BadValue, match="no kernel dialect 'metal'; there are: opencl"):
        kernel_source([], dialect="metal")
    with pytest.raises(BadValue, match="lane counts are: 1, 16"):
        kernel_source([], lanes=(3,))
