// GPU shape: prepares the rows of a mat-vec once for all work-groups that read them (activation.h), a work-group a row.
KERNEL void activate(GLOBAL const int *control, GLOBAL const float *x, int x_stride, GLOBAL const float *norm, int normed, float epsilon,
                     int columns, GLOBAL uchar *scratch) {
  LOCAL_ARRAY float sums[GROUP];
  int rows = control[CONTROL_ROWS], blocks = columns / 32, item = local_id();
  Activation act = scratch_layout(scratch, rows, columns);
  for (int r = group_id(); r < rows; r += num_groups()) {
    GLOBAL const float *row = x + (size_t)r * x_stride;
    float factor = normed ? rms_factor(row, columns, epsilon, sums) : 1.0f;
    for (int b = item; b < blocks; b += GROUP) {
      GLOBAL const float *u = row + b * 32, *w = norm + b * 32;
#if ACT_INT8
      int top = 0, total = 0;
      for (int j = 0; j < 32; j++) {
        float v = normed ? u[j] * factor * w[j] : u[j];
        top = max(top, AS_I_1(v) & 0x7fffffff);
      }
      float inverse = inverse_of(AS_F_1(top));
      size_t at = (size_t)r * blocks + b;
      for (int c = 0; c < 8; c++) {
        uint word = 0;
        for (int j = 0; j < 4; j++) {
          float v = normed ? u[4 * c + j] * factor * w[4 * c + j] : u[4 * c + j];
          int code = CODE_OF(v, inverse);
          total += code;
          word |= ((uint)code & 255u) << (8 * j);
        }
        act.codes[at * 8 + c] = word;
      }
      act.scales[at] = SCALE_OF(AS_F_1(top));
      act.sums[at] = (float)total;
#else
      for (int j = 0; j < 32; j++) act.values[(size_t)r * columns + b * 32 + j] = normed ? u[j] * factor * w[j] : u[j];
#endif
    }
  }
}
