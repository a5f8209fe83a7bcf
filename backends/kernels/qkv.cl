// Query, key and value of every row in one go: W norm(x), RoPE over adjacent pairs for queries and keys, keys and values to the row's
// KV cell. A launch of its own for the rotation would cost a small model 5% of a step.
// Output rows of W: query heads, key heads, value heads. cosines and sines[position]: head_dim values, the sine of an even column
// negated; beyond the rotated dimensions 1 and 0.
// KV block of 64 positions: keys [kv head][16 positions each][dim][16], values [kv head][position][dim], f16.

typedef struct {
  GLOBAL half *keys, *values;
  GLOBAL const int *block_table;
  int blocks_per_slot, heads, kv_heads, head_dim;
} Cells;

// 16 output columns of one row, from column `column` on; swapped: the same with each pair's columns exchanged.
DEVICE void place(VF v, VF swapped, int lane, int column, GLOBAL const int *row, GLOBAL const float *cosines, GLOBAL const float *sines, Cells cells, GLOBAL float *q) {
  int head = column / cells.head_dim, dim = column % cells.head_dim, position = row[ROW_POSITION];
  if (head < cells.heads + cells.kv_heads) {
    size_t at = (size_t)position * cells.head_dim + dim;
    v = fma(swapped, LOADF(sines + at, 0), v * LOADF(cosines + at, 0));
  }
  if (head < cells.heads) {
    STOREF(v, q + column, 0);
    return;
  }
  int block = cells.block_table[row[ROW_SLOT] * cells.blocks_per_slot + position / BLOCK], at = position % BLOCK;
  if (head < cells.heads + cells.kv_heads) {
    size_t part = ((size_t)block * cells.kv_heads + head - cells.heads) * (BLOCK / 16) + at / 16;
    GLOBAL half *key = cells.keys + (part * cells.head_dim + dim) * 16 + at % 16;
    STOREH_APART(v, key, 16);
  } else {
    size_t cell = ((size_t)block * cells.kv_heads + head - cells.heads - cells.kv_heads) * BLOCK + at;
    STOREH(v, cells.values + cell * cells.head_dim + dim, 0);
  }
}

// first_block: the first 16 output rows of this matrix among all of query, key and value; the other sizes as in matvec.
KERNEL void qkv(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const uchar *weights, int weight_lines,
                GLOBAL const float *x, int x_stride, GLOBAL const float *norm, float epsilon, int columns, int row_blocks, int first_block,
                GLOBAL float *q, int q_stride, GLOBAL const float *cosines, GLOBAL const float *sines,
                GLOBAL half *keys, GLOBAL half *values, GLOBAL const int *block_table, int blocks_per_slot,
                int heads, int kv_heads, int head_dim, GLOBAL uchar *scratch, int scratch_lines) {
  TILE_LOCALS
  ITEM(lane, split)
  int count = control[CONTROL_ROWS], nk = columns / 32, end = SHARE_END(row_blocks);
  Cells cells = {keys, values, block_table, blocks_per_slot, heads, kv_heads, head_dim};
  Activation act = PREPARED(x, x_stride, norm, 1, epsilon, count, columns, scratch, scratch_lines);
  for (int block = SHARE_BEGIN(row_blocks); block < end; block++) {
    for (int first = 0; first < count; first += TILE) {
      int R = min(count - first, TILE);
      VF acc[1][TILE];
      tile(R, weights + (size_t)weight_lines * 64 + (size_t)block * BLOCK_BYTES(nk), nk, advance(act, first, columns), lane, split, acc[0]);
      MERGE(0, acc, R)
      MERGE_BARRIER();
      for (int t = split; t < R; t += SPLITS) {
        GLOBAL const int *row = rows + (first + t) * ROW_INTS;
        if (!row[ROW_ACTIVE]) continue;
        VF v = MERGED(0, acc, t, lane);
        place(v, SWAPPED(v, MERGED(0, acc, t, lane ^ 1)), lane, (first_block + block) * 16, row, cosines, sines, cells, q + (size_t)(first + t) * q_stride);
      }
      MERGE_BARRIER();
    }
  }
}
