"""The launches of causal attention over a KV cache, which architectures share, and what they keep between them."""

from __future__ import annotations

import math

from backends.device import Device, KernelSpec, Launch
from backends.model.cache import KVCache
from backends.plan import Workspace
from backends.tables import MAX_WINDOW

# Positions that one work-group takes in GPU shape, a multiple of 64. It fixes the order of sums, so it is the same for every device and
# model. Fewer: more work-groups at a time and less local memory for each; more: less to write and to join.
CHUNK = 256
RESIDENT = 16  # work-groups of 128 that a compute unit may have at a time, on any GPU: more launched at once only wait


class Attention:
    """Attention of `heads` query heads over `cache`. Raises DeviceError when memory runs out.

    parts (GPU shape): float32 [MAX_WINDOW][heads][chunks][head size + 2], what kernels/attention_chunks.cl leaves for its merge.
    """

    def __init__(self, device: Device, cache: KVCache, heads: int) -> None:
        self._cache, self._heads, self._spread = cache, heads, device.lanes == 1
        self._chunk = CHUNK
        self._chunks = -(-cache.ctx // CHUNK)
        self.parts = device.zeros(MAX_WINDOW * heads * self._chunks * (cache.head_dim + 2)) if self._spread else None

    def launches(self, work: Workspace, layer: int, tile: int, most: int) -> list[Launch]:
        """work.attended = attention of work.query for the table's rows.

        most: rows the plan's table holds at most. In GPU shape up to MAX_WINDOW are spread over work-groups by chunks of positions;
        of more there is enough to do without. Either gives the same bits.
        """
        cache, heads = self._cache, self._heads
        cells = (cache.keys[layer], cache.values[layer], cache.block_table, cache.blocks_per_slot, heads, cache.kv_heads)
        inputs = (work.control, work.rows, work.query, work.sizes.heads, *cells, 1.0 / math.sqrt(cache.head_dim))
        outputs = (work.attended, work.sizes.heads)
        if not self._spread:
            # What the vector registers hold.
            rows = min(tile, 8 if cache.head_dim <= 64 else 4 if cache.head_dim <= 128 else 2)
            spec = KernelSpec("attention", "attention", (), (("HEAD", cache.head_dim), ("ATTENTION_TILE", rows)))
            return [Launch(spec, (*inputs, *outputs), work.share(heads * -(-most // rows)))]
        grouped = heads // cache.kv_heads
        queries = query_tile(cache.head_dim, tile * grouped)
        tiles = cache.kv_heads * -(-most * grouped // queries)
        if most > MAX_WINDOW:
            return [Launch(self._spec("attention", queries), (*inputs, *outputs), work.share(tiles))]
        at_once = min(tiles * self._chunks, RESIDENT * work.device.units)
        merge = (work.control, work.rows, self.parts, self._chunks, heads, *outputs)
        return [
            Launch(self._spec("attention_parts", queries), (*inputs, self.parts, self._chunks), work.share(at_once)),
            Launch(self._spec("attention_merge", queries), merge, work.share(most * heads)),
        ]

    def _spec(self, kernel: str, queries: int) -> KernelSpec:
        return chunk_spec(kernel, self._cache.head_dim, queries, self._chunk)


def query_tile(head_dim: int, queries: int) -> int:
    """How many of `queries` (row, query head) of one kv head share the loads of its cells in GPU shape: what registers hold."""
    return min(queries, 8 if head_dim <= 128 else 4)


def chunk_spec(kernel: str, head_dim: int, queries: int, chunk: int) -> KernelSpec:
    """A kernel of attention in GPU shape: "attention" (whole), "attention_parts" or "attention_merge"."""
    return KernelSpec("attention_chunks", kernel, ("attention_chunk.h",), (("HEAD", head_dim), ("ATTENTION_TILE", queries), ("CHUNK", chunk)))
