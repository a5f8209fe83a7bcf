// What the drafter's first matrix reads, for every row of its table (position i: cell i of a sequence, holding token i + 1):
// out[0..] = N(embedding of the token, embedding_norm), out[columns..] = N(N(x, inner_norm), hidden_norm), where x is the residual that the
// model (or, in a chain, the drafter) left for position i and inner_norm its final norm. Row 0 of x is at position control[CONTROL_FIRST].
// A work-group a half of a row.

// out = N(x, norm) for one row, by a whole work-group; out may be x.
DEVICE void norm_row(GLOBAL const float *x, GLOBAL const float *norm, float epsilon, int columns, GLOBAL float *out, WORK_ARRAY float *sums) {
  float factor = rms_factor(x, columns, epsilon, sums);
  for (int i = local_id() * LANES; i < columns; i += LANES * GROUP) STORE_AT(LOAD_AT(x, i) * factor * LOAD_AT(norm, i), out, i);
  BARRIER_GLOBAL();
}

KERNEL void pair(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const uchar *embedding, GLOBAL const float *x, int x_stride,
                 GLOBAL const float *inner_norm, GLOBAL const float *hidden_norm, GLOBAL const float *embedding_norm, float epsilon,
                 int columns, GLOBAL float *out, int out_stride) {
  CANDIDATE_ARRAY float sums[GROUP];
  int nk = columns / 32;
  for (int i = group_id(); i < 2 * control[CONTROL_ROWS]; i += num_groups()) {
    GLOBAL const int *row = rows + i / 2 * ROW_INTS;
    GLOBAL float *o = out + (size_t)(i / 2) * out_stride + i % 2 * columns;
    if (i % 2 == 0) {
      int token = row[ROW_TOKEN];
      for (int k = local_id(); k < nk; k += GROUP)
        decode32(embedding + (size_t)(token / 16) * BLOCK_BYTES(nk), nk, token % 16, k, o + k * 32);
      BARRIER_GLOBAL();
      norm_row(o, embedding_norm, epsilon, columns, o, sums);
    } else {
      norm_row(x + (size_t)(row[ROW_POSITION] - control[CONTROL_FIRST]) * x_stride, inner_norm, epsilon, columns, o, sums);
      norm_row(o, hidden_norm, epsilon, columns, o, sums);
    }
  }
}
