"""Repacked weights: dequantised rows equal the `gguf` package's, mat-vecs are exact where the numbers are."""

from __future__ import annotations

from itertools import product

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from backends import reference_math
from backends.config import DecodeConfig
from backends.device import Device, Launch
from backends.devices import open_device
from backends.model.matrix import LINE, Matrix
from backends.model.weights import ROWS, WEIGHT_TYPES, repack
from backends.plan import Sizes, Workspace
from backends.tables import ADD, GATED, MAX_WINDOW, SILU, STORE

TYPES = tuple(WEIGHT_TYPES)
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


DEVICES = {
    "opencl": {"backend": "opencl"},
    "opencl-portable": {"backend": "opencl", "instructions": "portable"},
    "opencl-gpu-shape": {"backend": "opencl", "kernel_shape": "gpu"},
    "numpy": {"backend": "numpy"},
}


@pytest.fixture(scope="module", params=list(DEVICES))
def device(request: pytest.FixtureRequest, cache_dir: str) -> Device:
    return open_device(DecodeConfig(cache_dir=cache_dir, **DEVICES[request.param]), [])


def random_bytes(type_name: str, rows: int, columns: int, rng: np.random.Generator) -> Bytes:
    """A tensor of any codes, its scales and minima any finite float16."""
    if type_name == "F32":
        return rng.normal(size=(rows, columns)).astype(np.float32).view(np.uint8)
    data = rng.integers(0, 256, (rows, columns // 32, WEIGHT_TYPES[type_name].block_bytes), np.uint8)
    heads = rng.integers(0, 1 << 16, (rows, columns // 32, 2), np.uint16)
    heads &= np.where((heads & 0x7C00) == 0x7C00, 0xBFFF, 0xFFFF).astype(np.uint16)  # no infinity, no NaN
    size = 4 if type_name == "Q4_1" else 2
    data[..., :size] = heads.view(np.uint8)[..., :size]
    return data.reshape(rows, -1)


def put(device: Device, data: Bytes, type_name: str, columns: int, rows: int, lines: int = 0) -> Matrix:
    """The tensor in device memory, `lines` * 64 bytes of other things before it."""
    blocks = repack(data, type_name, columns, rows)
    rubbish = np.full(lines * LINE, 0xA5, np.uint8)
    return Matrix(device.put(np.concatenate([rubbish, blocks.ravel()])), lines, type_name, columns, len(blocks))


def workspace(device: Device, columns: int, outputs: int, rows: int, groups: int) -> Workspace:
    work = Workspace(device, Sizes(embd=columns, heads=columns, ff=columns, vocab=outputs), rows, groups, 64)
    work.set_rows([(0, i, 0, 1) for i in range(rows)])
    return work


@pytest.mark.parametrize("columns", [32, 96, 160])
@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("type_name", TYPES)
def test_dequantised_rows_equal_ggufs(type_name: str, rows: int, columns: int, device: Device) -> None:
    rng = np.random.default_rng(rows * columns)
    kind = gguf.GGMLQuantizationType[type_name]
    tokens = [*rng.permutation(rows).tolist(), 0, rows - 1]
    active = [1] * rows + [0, 1]
    for data in (random_bytes(type_name, rows, columns, rng), quantize(rng.normal(size=(rows, columns)).astype(np.float32), kind).view(np.uint8)):
        expected = dequantize(data.reshape(-1).view(np.float32) if type_name == "F32" else data, kind).reshape(rows, columns)[tokens]
        expected[rows] = 0
        matrix = put(device, data, type_name, columns, rows)
        work = workspace(device, columns, 16, len(tokens), 2)
        work.set_rows([(0, i, token, on) for i, (token, on) in enumerate(zip(tokens, active, strict=True))])
        device.record(
            [
                Launch(
                    matrix.spec("embed", "embed"),
                    (work.control, work.rows, work.history, work.ctx, matrix.buffer, columns, work.x, columns),
                    work.groups,
                )
            ]
        ).run()
        found = device.download(work.x, np.float32, expected.size).reshape(expected.shape)
        assert np.array_equal(found, expected)
        if device.name != "numpy":  # which turns -0 into 0
            assert np.array_equal(found.view(np.int32), expected.view(np.int32))


def integer_bytes(type_name: str, codes: NDArray[np.int64], scales: Floats, minima: Floats) -> tuple[Bytes, NDArray[np.float64]]:
    """A tensor from codes [rows, k blocks, 32] as stored, and [rows, k blocks] of scales and minima; and its weights."""
    rows = len(codes)
    head = scales.astype(np.float16)[..., None].view(np.uint8)
    nibbles = (codes[..., :16] | codes[..., 16:] << 4).astype(np.uint8) if type_name.startswith("Q4") else np.zeros(0, np.uint8)
    if type_name == "Q4_0":
        data, weights = np.concatenate([head, nibbles], 2), (codes - 8) * scales[..., None]
    elif type_name == "Q4_1":
        minimum = minima.astype(np.float16)[..., None].view(np.uint8)
        data, weights = np.concatenate([head, minimum, nibbles], 2), codes * scales[..., None] + minima[..., None]
    elif type_name == "Q8_0":
        data, weights = np.concatenate([head, (codes - 128).astype(np.int8).view(np.uint8)], 2), (codes - 128) * scales[..., None]
    else:
        weights = (codes - 128) * scales[..., None]
        data = weights.astype(np.float32).view(np.uint8)
    return np.ascontiguousarray(data.reshape(rows, -1)), weights.reshape(rows, -1).astype(np.float64)


def highest(type_name: str) -> int:
    return 15 if type_name.startswith("Q4") else 255


def random_integers(type_name: str, rows: int, columns: int, rng: np.random.Generator, scale: float = 1.0) -> tuple[Bytes, NDArray[np.float64]]:
    """Weights whose products with `activations` float32 holds exactly: scales are powers of two."""
    shape = rows, columns // 32
    codes = rng.integers(0, highest(type_name) + 1, (*shape, 32))
    scales = (rng.choice([-1, 0.5, 1, 2], shape) * scale).astype(np.float32)
    return integer_bytes(type_name, codes, scales, (rng.integers(-20, 21, shape) * scale).astype(np.float32))


def activations(rows: int, columns: int, rng: np.random.Generator) -> Floats:
    """Integers times a power of two for every 32, the largest magnitude 127: their int8 codes lose nothing."""
    x = rng.integers(-127, 128, (rows, columns // 32, 32))
    at = rng.integers(0, 32, (rows, columns // 32, 1))
    np.put_along_axis(x, at, rng.choice([-127, 127], at.shape), 2)
    scaled: Floats = (x * rng.choice([0.5, 1, 2], at.shape)).reshape(rows, columns).astype(np.float32)
    return scaled


def run_matvec(device: Device, matrix: Matrix, x: Floats, y: Floats, tile: int, mode: int, y_block: int, groups: int) -> Floats:
    """What the mat-vec leaves in y; x and y have a stride wider than what is used."""
    work = workspace(device, matrix.columns, y.shape[1], len(x), groups)
    wide = np.pad(x, ((0, 0), (0, 16)), constant_values=1e9)
    source, out = device.put(wide), device.put(y)
    device.record(work.matvec(matrix, source, wide.shape[1], out, y.shape[1], tile, mode=mode, y_block=y_block)).run()
    found: Floats = device.download(out, np.float32, y.size).reshape(y.shape)
    return found


@pytest.mark.parametrize("mode", [STORE, ADD, SILU, GATED], ids=["store", "add", "silu", "gated"])
@pytest.mark.parametrize("type_name", TYPES)
def test_matvec_is_exact_on_integers(type_name: str, mode: int, device: Device) -> None:
    """One to nine rows in tiles of 1 and 8, five work-groups or fewer, an odd number of k blocks, weights and outputs at an offset."""
    rng = np.random.default_rng(mode)
    columns, outputs, y_block = 160, 64, 2
    data, weights = random_integers(type_name, outputs, columns, rng)
    if mode == SILU:  # gate rows small enough for silu to bend them
        gates, gate_weights = random_integers(type_name, outputs, columns, rng, 2.0**-13)
        turns = np.arange(2 * outputs).reshape(2, -1, ROWS).swapaxes(0, 1).ravel()  # 16 rows of gates, 16 of the others, and so on
        data, weights = np.concatenate([gates, data])[turns], np.concatenate([gate_weights, weights])[turns]
    matrix = put(device, data, type_name, columns, len(weights), lines=3)
    for rows, tile in product(range(1, MAX_WINDOW + 2), (1, MAX_WINDOW)):
        x = activations(rows, columns, rng)
        exact = x.astype(np.float64) @ weights.T
        result = exact.astype(np.float32)
        assert np.array_equal(result, exact)
        before = rng.normal(0, 4, (rows, outputs + 48)).astype(np.float32).round(2 if mode == GATED else 0)
        expected, used = before.copy(), slice(y_block * ROWS, y_block * ROWS + outputs)
        if mode == STORE:
            expected[:, used] = result
        elif mode == ADD:
            expected[:, used] += result
        elif mode == GATED:
            expected[:, used] = reference_math.silu(np.ascontiguousarray(before[:, used])) * result
        else:
            gate, up = result.reshape(rows, -1, 2, ROWS).transpose(2, 0, 1, 3).reshape(2, rows, outputs)
            expected[:, used] = reference_math.silu(gate) * up
        found = run_matvec(device, matrix, x, before, tile, mode, y_block, groups=1 + rows % 5)
        assert np.array_equal(found, expected), f"{rows} rows in tiles of {tile}"


@pytest.mark.parametrize("type_name", TYPES)
def test_matvec_holds_the_largest_sums(type_name: str, device: Device) -> None:
    """Codes and activations at their ends, in patterns that pile up in any partial sum."""
    columns = 96
    column = np.arange(columns)
    masks = [column % (2 * n) < n for n in (1, 2, 4, 8, 16, 32)] + [np.ones(columns, bool)]
    masks += [~mask for mask in masks]
    codes = np.where(masks, highest(type_name), 0).reshape(len(masks), -1, 32)
    ones = np.ones(codes.shape[:2], np.float32)
    data, weights = integer_bytes(type_name, codes, ones, -8 * ones)
    matrix = put(device, data, type_name, columns, len(masks))
    x = np.array([np.where(mask, 127, low) for mask in masks for low in (-127, 0)] + [np.where(mask, -127, 0) for mask in masks], np.float32)
    exact = np.pad(x.astype(np.float64) @ weights.T, ((0, 0), (0, matrix.row_blocks * ROWS - len(masks))))
    for tile in (1, MAX_WINDOW):
        found = run_matvec(device, matrix, x, np.full_like(exact, np.nan, np.float32), tile, STORE, 0, 2)
        assert np.array_equal(found, exact)


@pytest.mark.parametrize("columns", [32, 96, 160, 576])
@pytest.mark.parametrize("type_name", [name for name in TYPES if name != "F32"])
def test_matvec_of_real_numbers(type_name: str, columns: int, device: Device) -> None:
    """Against float64 sums over the same int8 activations; rows that are no multiple of 16 leave zeros behind them."""
    rng = np.random.default_rng(columns)
    rows, outputs = 5, 37
    kind = gguf.GGMLQuantizationType[type_name]
    data = quantize(rng.normal(size=(outputs, columns)).astype(np.float32), kind)
    x = (rng.normal(size=(rows, columns)) * rng.choice([1e-6, 1, 1e4], (rows, 1))).astype(np.float32)
    x[3] = 0
    blocks = x.reshape(rows, -1, 32)
    top = np.abs(blocks).max(2, keepdims=True)
    inverse = np.divide(np.float32(127), top, where=top > 0, out=np.zeros_like(top))
    codes = np.rint(blocks.astype(np.float64) * inverse)
    assert np.abs(codes).max() == 127
    seen = (codes * (top * np.float32(1 / 127))).reshape(rows, columns)
    weights = dequantize(data, kind).astype(np.float64)
    size = np.abs(seen) @ np.abs(weights).T
    matrix = put(device, data.view(np.uint8), type_name, columns, outputs)
    found = run_matvec(device, matrix, x, np.full((rows, 48), np.nan, np.float32), MAX_WINDOW, STORE, 0, 2)
    assert not found[:, outputs:].any() and not found[3].any()
    assert (np.abs(found[:, :outputs] - seen @ weights.T) <= 1e-6 * size).all()


@pytest.mark.parametrize("type_name", TYPES)
def test_blocks_at_the_ends_of_float32(type_name: str, device: Device) -> None:
    """A block too small for a finite 1 / scale adds nothing (its zeros included); one that holds a NaN or infinity shows in the result."""
    rng = np.random.default_rng(0)
    data, weights = random_integers(type_name, 16, 64, rng)
    matrix = put(device, data, type_name, 64, 16)
    x = activations(1, 64, rng)
    for size in (1e-45, 1e-40, 3e-37, 1e-36):
        x[0, 32:] = np.linspace(-size, size, 32)
        x[0, 40] = 0
        found = run_matvec(device, matrix, x, np.zeros((1, 16), np.float32), 1, STORE, 0, 1)
        assert np.array_equal(found, x[:, :32].astype(np.float64) @ weights[:, :32].T), size
    for bad in (np.nan, np.inf, -np.inf):
        x[0, 40] = bad
        found = run_matvec(device, matrix, x, np.zeros((1, 16), np.float32), 1, STORE, 0, 1)
        assert not np.isfinite(found).any(), bad
