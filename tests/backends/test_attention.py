"""Attention alone, for every head size's shape of kernel: against float64 over the cells, and by its bits whatever runs beside a row."""

from __future__ import annotations

import numpy as np
import pytest

from backends.config import DecodeConfig
from backends.device import Device, KernelSpec, Launch
from backends.devices import open_device
from backends.tables import BLOCK

HEADS, KV_HEADS, BLOCKS_PER_SLOT = 6, 2, 3
# (slot, position, active): rows of one sequence over a block's edge, two sequences, a row of nothing; one row at the first position.
TABLES = [
    [(0, 0, 1)],
    [(1, 60 + i, 1) for i in range(8)],
    [(0, 62, 1), (0, 63, 1), (0, 64, 1), (1, 189, 1), (1, 190, 1), (1, 5, 0), (0, 127, 1)],
    [(0, 128 + i, 1) for i in range(5)],
]


@pytest.fixture(scope="module", params=["opencl", "numpy"])
def device(request: pytest.FixtureRequest, cache_dir: str) -> Device:
    return open_device(DecodeConfig(backend=request.param, cache_dir=cache_dir), [])


@pytest.mark.parametrize("head_dim", [16, 48, 64, 128, 256])
def test_attention(device: Device, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    slots, width, scale = 2, HEADS * head_dim, head_dim**-0.5
    positions = BLOCKS_PER_SLOT * BLOCK
    # Peaked scores, so that a wrong weight shows; the largest in any block of them.
    keys, values = (rng.normal(0, 2, (slots, positions, KV_HEADS, head_dim)).astype(np.float16) for _ in range(2))
    order = rng.permutation(slots * BLOCKS_PER_SLOT)  # blocks lie anywhere
    cells = np.zeros((2, slots * BLOCKS_PER_SLOT, KV_HEADS, BLOCK, head_dim), np.float16)
    for store, source in zip(cells, (keys, values), strict=True):
        store[order] = source.reshape(-1, BLOCK, KV_HEADS, head_dim).swapaxes(1, 2)
    by_sixteen = cells[0].reshape(-1, KV_HEADS, BLOCK // 16, 16, head_dim).swapaxes(3, 4)
    buffers = [device.put(np.ascontiguousarray(a)) for a in (by_sixteen, cells[1], order.astype(np.int32))]
    widest = 8 if head_dim <= 64 else 4 if head_dim <= 128 else 2
    for table in TABLES:
        query = rng.normal(size=(len(table), width)).astype(np.float32)
        rows = np.array([(slot, position, 0, active) for slot, position, active in table], np.int32)
        inputs = [device.put(a) for a in (np.array([len(table)], np.int32), rows, query)]
        found = {}
        for tile in (1, widest):
            out = device.put(np.full((len(table), width), np.nan, np.float32))
            spec = KernelSpec("attention", "attention", (), (("HEAD", head_dim), ("ATTENTION_TILE", tile)))
            args = (*inputs, width, *buffers, BLOCKS_PER_SLOT, HEADS, KV_HEADS, scale, out, width)
            device.record([Launch(spec, args, 3)]).run()
            found[tile] = device.download(out, np.float32, query.size).reshape(query.shape)
        assert np.array_equal(found[1].view(np.int32), found[widest].view(np.int32))
        for (slot, position, active), q, got in zip(table, query, found[1], strict=True):
            if not active:
                assert not got.any()
                continue
            k, v = (np.repeat(a[slot, : position + 1].astype(np.float64), HEADS // KV_HEADS, 1) for a in (keys, values))
            scores = np.einsum("hd,phd->ph", q.reshape(HEADS, -1), k) * scale
            weights = np.exp(scores - scores.max(0))
            wanted = np.einsum("ph,phd->hd", weights / weights.sum(0), v).reshape(-1)
            assert np.allclose(got, wanted, rtol=1e-5, atol=2e-5), (slot, position, np.abs(got - wanted).max())
