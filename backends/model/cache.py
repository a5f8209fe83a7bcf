"""The KV cache: per layer a key and a value buffer of 64-position blocks, addressed through a block table.

Keys of a block: [kv head][4][dim][16 positions], values: [kv head][64 positions][dim], f16. Commit is empty: rejected cells lie beyond
the committed positions, where no row reads, and are overwritten.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.device import Device
from backends.tables import BLOCK


class KVCache:
    """KV cells of `slots` sequences of up to `ctx` positions. Raises DeviceError when memory runs out.

    block_table: int32 [slots][blocks_per_slot], block of the slot's positions 64b..64b+63; the identity for now.
    """

    def __init__(self, device: Device, layers: int, kv_heads: int, head_dim: int, ctx: int, slots: int = 1) -> None:
        self.ctx, self.kv_heads, self.head_dim = ctx, kv_heads, head_dim
        self.blocks_per_slot = -(-ctx // BLOCK)
        self.block_table = device.put(np.arange(slots * self.blocks_per_slot, dtype=np.int32))
        cells = slots * self.blocks_per_slot * BLOCK
        self.keys: list[Any] = [device.zeros(cells * kv_heads * head_dim, np.float16) for _ in range(layers)]
        self.values: list[Any] = [device.zeros(cells * kv_heads * head_dim, np.float16) for _ in range(layers)]
