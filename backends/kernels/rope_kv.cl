// Rotates the query and key heads of every row by its position (adjacent pairs) and writes the row's key and value to the KV cache.
// qkv[row]: query heads, key heads, value heads. cosines and sines[position]: head_dim values, the sine of an even column negated;
// beyond the rotated dimensions 1 and 0.
// KV block of 64 positions: keys [kv head][16 positions each][dim][16], values [kv head][position][dim], f16.
KERNEL void rope_kv(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL float *qkv, int qkv_stride, GLOBAL const float *cosines, GLOBAL const float *sines,
                    GLOBAL half *keys, GLOBAL half *values, GLOBAL const int *block_table, int blocks_per_slot, int heads, int kv_heads, int head_dim) {
  int vectors = heads + 2 * kv_heads, count = control[CONTROL_ROWS] * vectors, end = SHARE_END(count);
  for (int i = SHARE_BEGIN(count); i < end; i++) {
    int r = i / vectors, h = i % vectors, position = rows[r * ROW_INTS + ROW_POSITION];
    if (!rows[r * ROW_INTS + ROW_ACTIVE]) continue;
    GLOBAL float *head = qkv + (size_t)r * qkv_stride + h * head_dim;
    int block = block_table[rows[r * ROW_INTS + ROW_SLOT] * blocks_per_slot + position / BLOCK], at = position % BLOCK;
    for (int c = 0; c < head_dim / LANES; c++) {
      VF v = LOADF(head, c);
      if (h < heads + kv_heads) {
        VF cosine = LOADF(cosines + (size_t)position * head_dim, c), sine = LOADF(sines + (size_t)position * head_dim, c);
        v = fma(SWAP_PAIRS(v), sine, v * cosine);
      }
      if (h < heads) STOREF(v, head, c);
      else if (h < heads + kv_heads) {
        GLOBAL half *key = keys + (((size_t)block * kv_heads + (h - heads)) * (BLOCK / 16) + at / 16) * head_dim * 16 + c * 256 + at % 16;
        float lane[16];
        vstore16(v, 0, lane);
        for (int j = 0; j < 16; j++) vstore_half_rte(lane[j], j * 16, key);
      } else STOREH(v, values + (((size_t)block * kv_heads + (h - heads - kv_heads)) * BLOCK + at) * head_dim, c);
    }
  }
}
