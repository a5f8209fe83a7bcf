// Prepares rows for a mat-vec: optional RMS norm, then float32 as is or int8 per 32 values with a float scale and the sum of
// the codes (SEMANTICS: activations). ACT_INT8 is set by the weight type's header.
//
// On a CPU every work-group prepares all rows for itself, in scratch of its own: cheaper than a launch. In GPU shape a launch of its own
// (activate.cl) prepares them once, and mat-vecs find them in the one scratch.

// Where codes of all rows, then scales, then sums (or float values) lie in a scratch.
DEVICE Activation scratch_layout(GLOBAL uchar *scratch, int rows, int columns) {
  Activation act;
  act.values = (GLOBAL float *)scratch;
  act.codes = (GLOBAL uint *)scratch;
  act.scales = (GLOBAL float *)(scratch + (size_t)rows * columns * CODE_BYTES);
  act.sums = act.scales + (size_t)rows * (columns / 32);
  return act;
}

// The largest magnitude's scale and what values are multiplied with; a NaN is larger than infinity as an integer, so it reaches the
// scale and is not lost. Below 127 / FLT_MAX the inverse is infinite and infinity times 0 no number: such a block counts as zeros.
DEVICE float inverse_of(float top) { return top > 1e-36f ? m_div_1(127.0f, top) : 0.0f; }
#define SCALE_OF(top) ((top) * 0.00787401574803149606f)
// Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low mantissa bits.
#define CODE_OF(x, inverse) (AS_VI(fma(x, (VF)(inverse), (VF)(12582912.0f))) - 0x4B400000)

#if ACT_INT8 && LANES == 16
// 32 values, a then b: their codes, scale (largest magnitude / 127) and sum of codes.
DEVICE void quantise32(VF a, VF b, GLOBAL char *codes, GLOBAL float *scale, GLOBAL float *sum) {
  float top = AS_F_1(hmax_int(max(AS_VI(a) & 0x7fffffff, AS_VI(b) & 0x7fffffff)));
  float inverse = inverse_of(top);
  VI qa = CODE_OF(a, inverse), qb = CODE_OF(b, inverse);
#if CODE_BYTES == 1
  vstore16(TO_CHARS(qa), 0, codes);
  vstore16(TO_CHARS(qb), 1, codes);
#else
  vstore16(TO_SHORTS(qa).s021346578a9bcedf, 0, (GLOBAL short *)codes);
  vstore16(TO_SHORTS(qb).s021346578a9bcedf, 1, (GLOBAL short *)codes);
#endif
  *scale = SCALE_OF(top);
  *sum = (float)hsum_int(qa + qb);
}
#endif

#if LANES == 16
// Rows x[r] of `columns` (a multiple of 32) floats into the work-group's own `scratch`; norm is read where `normed`.
DEVICE Activation prepare(GLOBAL const float *x, int x_stride, GLOBAL const float *norm, int normed, float epsilon, int rows, int columns,
                          GLOBAL uchar *scratch) {
  Activation act = scratch_layout(scratch, rows, columns);
  int blocks = columns / 32;
  for (int r = 0; r < rows; r++) {
    GLOBAL const float *row = x + (size_t)r * x_stride;
    float factor = normed ? rms_factor(row, columns, epsilon, 0) : 1.0f;
    for (int b = 0; b < blocks; b++) {
      VF u = LOADF(row, 2 * b), v = LOADF(row, 2 * b + 1);
      if (normed) {
        u = u * factor * LOADF(norm, 2 * b);
        v = v * factor * LOADF(norm, 2 * b + 1);
      }
#if ACT_INT8
      size_t at = (size_t)r * blocks + b;
      quantise32(u, v, (GLOBAL char *)act.codes + at * 32 * CODE_BYTES, act.scales + at, act.sums + at);
#else
      STOREF(u, act.values + (size_t)r * columns, 2 * b);
      STOREF(v, act.values + (size_t)r * columns, 2 * b + 1);
#endif
    }
  }
  return act;
}
#define PREPARED(x, x_stride, norm, normed, epsilon, rows, columns, scratch, scratch_lines) \
  prepare(x, x_stride, norm, normed, epsilon, rows, columns, (scratch) + (size_t)group_id() * (scratch_lines) * 64)
#else
#define PREPARED(x, x_stride, norm, normed, epsilon, rows, columns, scratch, scratch_lines) scratch_layout(scratch, rows, columns)
#endif

// The rows from `first` on.
DEVICE Activation advance(Activation act, int first, int columns) {
#if ACT_INT8
  act.codes += (size_t)first * (columns / 4 * CODE_BYTES);
  act.scales += (size_t)first * (columns / 32);
  act.sums += (size_t)first * (columns / 32);
#else
  act.values += (size_t)first * columns;
#endif
  return act;
}
