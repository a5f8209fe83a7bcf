// y[row] = W x[row] for every row of the table, 16 output rows of W at a time. Rows of the table are taken TILE at a time; a row's
// arithmetic never depends on which rows run beside it.
#define STORE 0               // y = W x
#define ADD 1                 // y += W x
#define SILU 2                // blocks alternate gate, up: y = silu(gate x) * (up x)
#define GATED 3               // y = silu(y) * W x

// weight_lines: where the matrix starts in `weights`; scratch_lines: scratch of each work-group; both in units of 64 bytes.
// y_block: where the matrix's outputs start in a row of y, in units of 16.
KERNEL void matvec(GLOBAL const int *control, GLOBAL const uchar *weights, int weight_lines, GLOBAL const float *x, int x_stride,
                   GLOBAL const float *norm, int normed, float epsilon, int columns, int row_blocks,
                   GLOBAL float *y, int y_stride, int y_block, int mode, GLOBAL uchar *scratch, int scratch_lines) {
  TILE_LOCALS
  ITEM(lane, split)
  int rows = control[CONTROL_ROWS], nk = columns / 32;
  int parts = mode == SILU ? 2 : 1, begin = SHARE_BEGIN(row_blocks / parts), end = SHARE_END(row_blocks / parts);
  Activation act = PREPARED(x, x_stride, norm, normed, epsilon, rows, columns, scratch, scratch_lines);
  for (int block = begin; block < end; block++) {
    for (int first = 0; first < rows; first += TILE) {
      int R = min(rows - first, TILE);
      VF acc[2][TILE];
      #pragma unroll 1
      for (int part = 0; part < parts; part++) {
        GLOBAL const uchar *w = weights + (size_t)weight_lines * 64 + (size_t)(block * parts + part) * BLOCK_BYTES(nk);
        tile(R, w, nk, advance(act, first, columns), lane, split, acc[part]);
        MERGE(part, acc, R)
      }
      MERGE_BARRIER();
      for (int t = split; t < R; t += SPLITS) {
        GLOBAL float *out = y + (size_t)(first + t) * y_stride + y_block * 16;
        VF v = MERGED(parts - 1, acc, t, lane);
        if (mode == ADD) v = LOADF(out, block) + v;
        else if (mode == GATED) v = m_silu(LOADF(out, block)) * v;
        else if (mode == SILU) v = m_silu(MERGED(0, acc, t, lane)) * v;
        STOREF(v, out, block);
      }
      MERGE_BARRIER();
    }
  }
}
