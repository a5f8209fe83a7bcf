"""Attention alone, for every head size's shape of kernel: against float64 over the cells, and by its bits whatever runs beside a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from backends.config import DecodeConfig
from backends.device import Device, KernelSpec, Launch
from backends.devices import open_device
from backends.model.attention import CHUNK, chunk_spec, query_tile
from backends.tables import BLOCK

Row = tuple[int, int, int]  # slot, position, active

HEADS, KV_HEADS, BLOCKS_PER_SLOT = 6, 2, 5
GROUPED = HEADS // KV_HEADS
POSITIONS = BLOCKS_PER_SLOT * BLOCK
CHUNKS = (BLOCK, 2 * BLOCK, CHUNK)  # positions
# Rows of one sequence over a block's edge, two sequences, a row of nothing; one row at the first position.
TABLES: list[list[Row]] = [
    [(0, 0, 1)],
    [(1, 60 + i, 1) for i in range(8)],
    [(0, 62, 1), (0, 63, 1), (0, 64, 1), (1, 189, 1), (1, 190, 1), (1, 5, 0), (0, 127, 1)],
    [(0, 128 + i, 1) for i in range(5)],
]


PLACES = {
    "opencl": {"backend": "opencl", "kernel_shape": "cpu"},
    "gpu shape": {"backend": "opencl", "kernel_shape": "gpu"},
    "numpy": {"backend": "numpy"},
}


@pytest.fixture(scope="module")
def device(place: dict[str, Any], cache_dir: str) -> Device:
    return open_device(DecodeConfig(cache_dir=cache_dir, **place), [])


class Cells:
    """Random keys and values [slots, positions, kv heads, head size] of two sequences, float16, and how the cache holds them."""

    def __init__(self, head_dim: int) -> None:
        rng = np.random.default_rng(head_dim)
        # Peaked scores, so that a wrong weight shows; the largest in any block of them.
        self.keys, self.values = (rng.normal(0, 2, (2, POSITIONS, KV_HEADS, head_dim)).astype(np.float16) for _ in range(2))
        self._order = rng.permutation(2 * BLOCKS_PER_SLOT)  # blocks lie anywhere

    def put(self, device: Device, last: int = POSITIONS, poison: float = 0.0) -> list[Any]:
        """Buffers of keys, values and block table, the cells behind position `last` poisoned."""
        stores = []
        for source in (self.keys, self.values):
            shown = source.copy()
            shown[:, last + 1 :] = poison
            store = np.zeros((2 * BLOCKS_PER_SLOT, KV_HEADS, BLOCK, source.shape[3]), np.float16)
            store[self._order] = shown.reshape(-1, BLOCK, KV_HEADS, source.shape[3]).swapaxes(1, 2)
            stores.append(store)
        by_sixteen = stores[0].reshape(-1, KV_HEADS, BLOCK // 16, 16, self.keys.shape[3]).swapaxes(3, 4)
        return [device.put(np.ascontiguousarray(a)) for a in (by_sixteen, stores[1], self._order.astype(np.int32))]

    def attention(self, row: Row, q: np.ndarray) -> np.ndarray:
        """The row's result in float64; q: float32 [heads * head size]."""
        slot, position, active = row
        if not active:
            return np.zeros(q.shape)
        k, v = (np.repeat(a[slot, : position + 1].astype(np.float64), GROUPED, 1) for a in (self.keys, self.values))
        scores = np.einsum("hd,phd->ph", q.reshape(HEADS, -1), k) * k.shape[2] ** -0.5
        weights = np.exp(scores - scores.max(0))
        return np.einsum("ph,phd->hd", weights / weights.sum(0), v).reshape(-1)


@dataclass(frozen=True)
class Form:
    """How attention is computed. tile: rows, in GPU shape queries, that share loads. chunk: 0 in CPU shape. spread: over work-groups."""

    tile: int
    chunk: int = 0
    spread: bool = False


def forms(device: Device, head_dim: int, chunk: int) -> Iterator[Form]:
    """All that must give the same bits."""
    if device.lanes > 1:
        for tile in (1, 8 if head_dim <= 64 else 4 if head_dim <= 128 else 2):
            yield Form(tile)
    else:
        for tile in (1, query_tile(head_dim, GROUPED), query_tile(head_dim, 8 * GROUPED)):
            yield Form(tile, chunk)
            yield Form(tile, chunk, spread=True)


def run(device: Device, form: Form, table: Sequence[Row], query: np.ndarray, cells: list[Any], groups: int = 3) -> np.ndarray:
    """Attention float32 [rows, heads * head size]; what nobody wrote is NaN."""
    width = query.shape[1]
    head_dim = width // HEADS
    rows = np.array([(slot, position, 0, active) for slot, position, active in table], np.int32)
    control, row_table, q = (device.put(a) for a in (np.array([len(table)], np.int32), rows, query))
    out = device.put(np.full(query.shape, np.nan, np.float32))
    inputs = (control, row_table, q, width, *cells, BLOCKS_PER_SLOT, HEADS, KV_HEADS, head_dim**-0.5)
    if not form.chunk:
        spec = KernelSpec("attention", "attention", (), (("HEAD", head_dim), ("ATTENTION_TILE", form.tile)))
        launches = [Launch(spec, (*inputs, out, width), groups)]
    elif form.spread:
        chunks = -(-POSITIONS // form.chunk)
        parts = device.put(np.full(len(table) * HEADS * chunks * (head_dim + 2), np.nan, np.float32))
        merge = (control, row_table, parts, chunks, HEADS, out, width)
        launches = [
            Launch(chunk_spec("attention_parts", head_dim, form.tile, form.chunk), (*inputs, parts, chunks), groups),
            Launch(chunk_spec("attention_merge", head_dim, form.tile, form.chunk), merge, groups),
        ]
    else:
        launches = [Launch(chunk_spec("attention", head_dim, form.tile, form.chunk), (*inputs, out, width), groups)]
    device.record(launches).run()
    return device.download(out, np.float32, query.size).reshape(query.shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.int32), b.view(np.int32))


def queries(rows: int, head_dim: int) -> np.ndarray:
    return np.random.default_rng(rows + head_dim).normal(size=(rows, HEADS * head_dim)).astype(np.float32)


@pytest.mark.parametrize("head_dim", [16, 48, 64, 128, 144, 256])
def test_attention(device: Device, head_dim: int) -> None:
    cells = Cells(head_dim)
    buffers = cells.put(device)
    for chunk in (0,) if device.lanes > 1 else CHUNKS if head_dim == 64 else (2 * BLOCK,):  # a program each
        for table in TABLES:
            query = queries(len(table), head_dim)
            found = {form: run(device, form, table, query, buffers) for form in forms(device, head_dim, chunk)}
            first = next(iter(found.values()))
            for form, got in found.items():
                assert same_bits(got, first), (form, table)
            for row, q, got in zip(table, query, first, strict=True):
                wanted = cells.attention(row, q)
                assert np.allclose(got, wanted, rtol=1e-5, atol=2e-5 if row[2] else 0), (chunk, row, np.abs(got - wanted).max())


@pytest.mark.parametrize("head_dim", [48, 64])
def test_windows_over_a_cut(device: Device, head_dim: int) -> None:
    """Around a cut between chunks: every window has the bits that its rows have alone, with nothing but poison behind each."""
    cells = Cells(head_dim)
    buffers = cells.put(device)
    for chunk in CHUNKS if device.lanes == 1 else (2 * BLOCK,):
        cut = (POSITIONS - 1) // chunk * chunk
        positions = range(cut - 8, cut + 8)
        query = queries(len(positions), head_dim)
        shapes = list(forms(device, head_dim, chunk))
        alone = np.concatenate([run(device, shapes[0], [(0, p, 1)], q[None], buffers) for p, q in zip(positions, query, strict=True)])
        for i, p in enumerate(positions):
            for poison in (np.nan, np.inf) if abs(p - cut) <= 2 else ():
                poisoned = cells.put(device, p, poison)
                for form in shapes:
                    assert same_bits(run(device, form, [(0, p, 1)], query[i : i + 1], poisoned), alone[i : i + 1]), (chunk, form, p)
        for window in range(1, 9):
            for first in {cut - window, cut - window + 1, cut - 1, cut, cut - window // 2}:
                i, table = first - positions[0], [(0, first + j, 1) for j in range(window)]
                for form in shapes:
                    got = run(device, form, table, query[i : i + window], buffers)
                    assert same_bits(got, alone[i : i + window]), (chunk, form, table)


@pytest.mark.parametrize("groups", [1, 2, 64])
def test_work_groups(device: Device, groups: int) -> None:
    """More work-groups than there is work, and fewer."""
    buffers = Cells(64).put(device)
    for table in TABLES:
        query = queries(len(table), 64)
        for form in forms(device, 64, BLOCK):
            assert same_bits(run(device, form, table, query, buffers, groups), run(device, form, table, query, buffers))


def test_more_chunks_than_work_items(device: Device) -> None:
    """The merge takes a work-group's size of chunks at a time: results far apart, over more of them than that."""
    if device.lanes > 1:
        pytest.skip("this shape has no chunks")
    head_dim, chunks, heads = 16, 2 * device.group + 3, 2
    rng = np.random.default_rng(1)
    parts = rng.normal(size=(1, heads, chunks, head_dim + 2)).astype(np.float32)
    parts[..., -2], parts[..., -1] = rng.normal(0, 9, parts.shape[:-1]), rng.uniform(1, 99, parts.shape[:-1])
    out = device.put(np.full(heads * head_dim, np.nan, np.float32))
    rows = np.array([[0, (chunks - 1) * BLOCK + 1, 0, 1]], np.int32)
    args = (*(device.put(a) for a in (np.array([1], np.int32), rows, parts)), chunks, heads, out, heads * head_dim)
    device.record([Launch(chunk_spec("attention_merge", head_dim, 1, BLOCK), args, 5)]).run()
    weights = np.exp(parts[0, :, :, -2].astype(np.float64) - parts[..., -2].max())
    wanted = np.einsum("hc,hcd->hd", weights, parts[0, :, :, :-2]) / (weights * parts[0, :, :, -1]).sum(1)[:, None]
    assert np.allclose(device.download(out, np.float32, heads * head_dim).reshape(heads, -1), wanted, rtol=1e-5, atol=1e-6)
