// Prepares rows for a mat-vec: optional RMS norm, then float32 as is or int8 per 32 values with a float scale and the sum of
// the codes (SEMANTICS: activations). ACT_INT8 is set by the weight type's header.
//
// Layout of a work-group's scratch: codes of all rows, then scales, then sums.
#if ACT_INT8
// 32 values, a then b: their codes, scale (largest magnitude / 127) and sum of codes.
DEVICE void quantise32(VF a, VF b, GLOBAL char *codes, GLOBAL float *scale, GLOBAL float *sum) {
  // The largest magnitude through the integer bits: a NaN is larger than infinity there, so it reaches the scale and is not lost.
  float top = as_float(hmax_int(max(AS_VI(a) & 0x7fffffff, AS_VI(b) & 0x7fffffff)));
  // Below 127 / FLT_MAX the inverse is infinite and infinity times 0 no number: such a block counts as zeros.
  float inverse = top > 1e-36f ? m_div_1(127.0f, top) : 0.0f;
  // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low mantissa bits.
  VI qa = AS_VI(fma(a, (VF)(inverse), (VF)(12582912.0f))) - 0x4B400000;
  VI qb = AS_VI(fma(b, (VF)(inverse), (VF)(12582912.0f))) - 0x4B400000;
#if CODE_BYTES == 1
  vstore16(TO_CHARS(qa), 0, codes);
  vstore16(TO_CHARS(qb), 1, codes);
#else
  vstore16(TO_SHORTS(qa).s021346578a9bcedf, 0, (GLOBAL short *)codes);
  vstore16(TO_SHORTS(qb).s021346578a9bcedf, 1, (GLOBAL short *)codes);
#endif
  *scale = top * 0.00787401574803149606f;
  *sum = (float)hsum_int(qa + qb);
}
#endif

// Rows x[r] of `columns` (a multiple of 32) floats into the work-group's own `scratch`; norm is read where `normed`.
DEVICE Activation prepare(GLOBAL const float *x, int x_stride, GLOBAL const float *norm, int normed, float epsilon, int rows, int columns,
                          GLOBAL uchar *scratch) {
  Activation act;
  int blocks = columns / 32;
#if ACT_INT8
  GLOBAL char *codes = (GLOBAL char *)scratch;
  GLOBAL float *scales = (GLOBAL float *)(scratch + (size_t)rows * columns * CODE_BYTES);
  GLOBAL float *sums = scales + (size_t)rows * blocks;
#else
  GLOBAL float *values = (GLOBAL float *)scratch;
#endif
  for (int r = 0; r < rows; r++) {
    GLOBAL const float *row = x + (size_t)r * x_stride;
    float factor = 1.0f;
    if (normed) {
      VF s0 = (VF)(0.0f), s1 = (VF)(0.0f);
      for (int b = 0; b < blocks; b++) {
        VF u = LOADF(row, 2 * b), v = LOADF(row, 2 * b + 1);
        s0 = fma(u, u, s0);
        s1 = fma(v, v, s1);
      }
      factor = m_rsqrt_1(m_div_1(hsum(s0 + s1), (float)columns) + epsilon);
    }
    for (int b = 0; b < blocks; b++) {
      VF u = LOADF(row, 2 * b), v = LOADF(row, 2 * b + 1);
      if (normed) {
        u = u * factor * LOADF(norm, 2 * b);
        v = v * factor * LOADF(norm, 2 * b + 1);
      }
#if ACT_INT8
      size_t at = (size_t)r * blocks + b;
      quantise32(u, v, codes + at * 32 * CODE_BYTES, scales + at, sums + at);
#else
      STOREF(u, values + (size_t)r * columns, 2 * b);
      STOREF(v, values + (size_t)r * columns, 2 * b + 1);
#endif
    }
  }
#if ACT_INT8
  act.codes = (GLOBAL const uint *)codes;
  act.scales = scales;
  act.sums = sums;
#else
  act.values = values;
#endif
  return act;
}

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
