// 1 / sqrt(mean(x^2) + epsilon) of one row, the RMS norm's factor, in one order of its own for each shape. All of a work-group's items call
// it and get it; `sums` is an array they share.
#if LANES == 16
DEVICE float rms_factor(GLOBAL const float *row, int columns, float epsilon, WORK_ARRAY float *sums) {
  VF s0 = (VF)(0.0f), s1 = (VF)(0.0f);
  for (int b = 0; b < columns / 32; b++) {
    VF u = LOADF(row, 2 * b), v = LOADF(row, 2 * b + 1);
    s0 = fma(u, u, s0);
    s1 = fma(v, v, s1);
  }
  return m_rsqrt_1(m_div_1(hsum(s0 + s1), (float)columns) + epsilon);
}
#else
DEVICE float rms_factor(GLOBAL const float *row, int columns, float epsilon, WORK_ARRAY float *sums) {
  float sum = 0.0f;
  for (int i = local_id(); i < columns; i += GROUP) sum = fma(row[i], row[i], sum);
  sums[local_id()] = sum;
  BARRIER();
  for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {
    if (local_id() < half_) sums[local_id()] += sums[local_id() + half_];
    BARRIER();
  }
  float factor = m_rsqrt_1(m_div_1(sums[0], (float)columns) + epsilon);
  BARRIER();
  return factor;
}
#endif
