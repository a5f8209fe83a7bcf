// x[row] = the embedding of the row's token, which also goes into its sequence's history (history_stride tokens each) at the row's
// position: what penalties look at. As with KV cells, rejected rows' tokens lie where no row looks. An inactive row is zero.
KERNEL void embed(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL int *history, int history_stride, GLOBAL const uchar *weights,
                  int columns, GLOBAL float *x, int x_stride) {
  int nk = columns / 32, count = control[CONTROL_ROWS] * nk;
  FOR_SHARE(i, count) {
    int r = i / nk, k = i % nk, token = rows[r * ROW_INTS + ROW_TOKEN];
    GLOBAL float *out = x + (size_t)r * x_stride + k * 32;
    if (rows[r * ROW_INTS + ROW_ACTIVE]) {
      if (k == 0) history[(size_t)rows[r * ROW_INTS + ROW_SLOT] * history_stride + rows[r * ROW_INTS + ROW_POSITION]] = token;
      decode32(weights + (size_t)(token / 16) * BLOCK_BYTES(nk), nk, token % 16, k, out);
    } else {
      for (int j = 0; j < 32; j++) out[j] = 0.0f;
    }
  }
}
