// Q8_0, 16 rows interleaved: per 32 columns 16 half scales (32 bytes), all of a row block's first (padded to 64 bytes), then per
// 32 columns 8 x 64 bytes of codes + 128: 16 rows x 4 bytes, columns 4c+b. The sum starts at -128 * sum(x).
#define ACT_INT8 1
#define HEAD_BYTES(nk) (((size_t)(nk) * 32 + 63) / 64 * 64)
#define BLOCK_BYTES(nk) (HEAD_BYTES(nk) + (size_t)(nk) * 512)

// Columns 32k..32k+31 of one row of a row block.
DEVICE void decode32(GLOBAL const uchar *w, int nk, int lane, int k, GLOBAL float *out) {
  GLOBAL const uint *p = (GLOBAL const uint *)(w + HEAD_BYTES(nk)) + k * 128 + lane;
  float d = load_half(k * 16 + lane, (GLOBAL const half *)w);
  for (int j = 0; j < 32; j++) out[j] = d * (float)((int)((p[j / 4 * 16] >> (j % 4 * 8)) & 255u) - 128);
}

DEVICE ALWAYS_INLINE void gemv(const int R, GLOBAL const uchar *w, int nk, Activation x, int lane, int split, VF *acc) {
  VF sum[8];
  #pragma unroll
  for (int t = 0; t < R; t++) sum[t] = (VF)(0.0f);
  GLOBAL const half *head = (GLOBAL const half *)w;
  for (int k = split; k < nk; k += SPLITS) {
    GLOBAL const uint *p = (GLOBAL const uint *)(w + HEAD_BYTES(nk)) + (size_t)k * 128;
    VU a0 = LOADU(p, 0), a1 = LOADU(p, 1), a2 = LOADU(p, 2), a3 = LOADU(p, 3);
    VU a4 = LOADU(p, 4), a5 = LOADU(p, 5), a6 = LOADU(p, 6), a7 = LOADU(p, 7);
    VF d = LOADH(head, k);
    PREFETCH_LINES(p, 8)
    PREFETCH_LINES((GLOBAL const uint *)w + k * 8, 1)
    #pragma unroll
    for (int t = 0; t < R; t++) {
      GLOBAL const uint *c = x.codes + ((size_t)t * nk + k) * X_WORDS;
      VI s = (VI)((int)x.sums[t * nk + k] * -128);
#if BYTES_AT_ONCE
      VI u = (VI)(0);
      s = DOT4(s, a0, c[0]); u = DOT4(u, a4, c[4]); s = DOT4(s, a1, c[1]); u = DOT4(u, a5, c[5]);
      s = DOT4(s, a2, c[2]); u = DOT4(u, a6, c[6]); s = DOT4(s, a3, c[3]); u = DOT4(u, a7, c[7]);
      s += u;
#else
      // 255 * 127 * 16 does not fit 16 bits: low and high nibbles of the codes apart, four lines at a time.
      s32 A = (s32)(0), B = (s32)(0), C = (s32)(0), D = (s32)(0);
      MAC16(A, a0, 0, c) MAC16(A, a1, 1, c) MAC16(A, a2, 2, c) MAC16(A, a3, 3, c)
      MAC16(B, a4, 4, c) MAC16(B, a5, 5, c) MAC16(B, a6, 6, c) MAC16(B, a7, 7, c)
      MAC16(C, a0 >> 4, 0, c) MAC16(C, a1 >> 4, 1, c) MAC16(C, a2 >> 4, 2, c) MAC16(C, a3 >> 4, 3, c)
      MAC16(D, a4 >> 4, 4, c) MAC16(D, a5 >> 4, 5, c) MAC16(D, a6 >> 4, 6, c) MAC16(D, a7 >> 4, 7, c)
      s += fold16(A) + fold16(B) + ((fold16(C) + fold16(D)) << 4);
#endif
      sum[t] = fma(d * x.scales[t * nk + k], TO_VF(s), sum[t]);
    }
  }
  #pragma unroll
  for (int t = 0; t < R; t++) acc[t] = sum[t];
}
