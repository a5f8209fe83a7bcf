// Q4_0, 16 rows interleaved: per 32 columns 16 half scales (32 bytes), all of a row block's first (padded to 64 bytes), then codes
// as in Q4_1. A weight is scale * (code - 8): the sum starts at -8 * sum(x).
#define ACT_INT8 1
#define HEAD_BYTES(nk) (((size_t)(nk) * 32 + 63) / 64 * 64)
#define BLOCK_BYTES(nk) (HEAD_BYTES(nk) + (size_t)(nk) * 256)

// Columns 32k..32k+31 of one row of a row block.
DEVICE void decode32(GLOBAL const uchar *w, int nk, int lane, int k, GLOBAL float *out) {
  GLOBAL const uint *p = (GLOBAL const uint *)(w + HEAD_BYTES(nk)) + k * 64 + lane;
  float d = load_half(k * 16 + lane, (GLOBAL const half *)w);
  for (int j = 0; j < 32; j++) out[j] = d * (float)((int)((p[(j % 16) / 4 * 16] >> (j % 4 * 8 + j / 16 * 4)) & 15u) - 8);
}

DEVICE ALWAYS_INLINE void gemv(const int R, GLOBAL const uchar *w, int nk, Activation x, int lane, int split, VF *acc) {
  VF sum[8];
  #pragma unroll
  for (int t = 0; t < R; t++) sum[t] = (VF)(0.0f);
  GLOBAL const half *head = (GLOBAL const half *)w;
  for (int k = split; k < nk; k += SPLITS) {
    GLOBAL const uint *p = (GLOBAL const uint *)(w + HEAD_BYTES(nk)) + (size_t)k * 64;
    VU a0 = LOADU(p, 0), a1 = LOADU(p, 1), a2 = LOADU(p, 2), a3 = LOADU(p, 3);
    VF d = LOADH(head, k);
    PREFETCH_LINES(p, 4)
    PREFETCH_LINES((GLOBAL const uint *)w + k * 8, 1)
#if BYTES_AT_ONCE
    VU l0 = a0 & 0x0f0f0f0fu, l1 = a1 & 0x0f0f0f0fu, l2 = a2 & 0x0f0f0f0fu, l3 = a3 & 0x0f0f0f0fu;
    VU h0 = (a0 >> 4) & 0x0f0f0f0fu, h1 = (a1 >> 4) & 0x0f0f0f0fu, h2 = (a2 >> 4) & 0x0f0f0f0fu, h3 = (a3 >> 4) & 0x0f0f0f0fu;
#endif
    #pragma unroll
    for (int t = 0; t < R; t++) {
      GLOBAL const uint *c = x.codes + ((size_t)t * nk + k) * X_WORDS;
      VI s = (VI)((int)x.sums[t * nk + k] * -8);
#if BYTES_AT_ONCE
      VI u = (VI)(0);
      s = DOT4(s, l0, c[0]); u = DOT4(u, h0, c[4]); s = DOT4(s, l1, c[1]); u = DOT4(u, h1, c[5]);
      s = DOT4(s, l2, c[2]); u = DOT4(u, h2, c[6]); s = DOT4(s, l3, c[3]); u = DOT4(u, h3, c[7]);
      s += u;
#else
      s32 S = (s32)(0), U = (s32)(0);
      MAC16(S, a0, 0, c) MAC16(S, a1, 1, c) MAC16(S, a2, 2, c) MAC16(S, a3, 3, c)
      MAC16(U, a0 >> 4, 4, c) MAC16(U, a1 >> 4, 5, c) MAC16(U, a2 >> 4, 6, c) MAC16(U, a3 >> 4, 7, c)
      s += fold16(S) + fold16(U);
#endif
      sum[t] = fma(d * x.scales[t * nk + k], TO_VF(s), sum[t]);
    }
  }
  #pragma unroll
  for (int t = 0; t < R; t++) acc[t] = sum[t];
}
