// F32, 16 rows interleaved: per column 16 floats. Activations stay float32; even and odd columns add up apart.
#define ACT_INT8 0
#define BLOCK_BYTES(nk) ((size_t)(nk) * 2048)

// Columns 32k..32k+31 of one row of a row block.
DEVICE void decode32(GLOBAL const uchar *w, int nk, int lane, int k, GLOBAL float *out) {
  GLOBAL const float *p = (GLOBAL const float *)w + k * 512 + lane;
  for (int j = 0; j < 32; j++) out[j] = p[j * 16];
}

DEVICE ALWAYS_INLINE void gemv(const int R, GLOBAL const uchar *w, int nk, Activation x, int lane, int split, VF *acc) {
  GLOBAL const float *p = (GLOBAL const float *)w;
  VF even[8], odd[8];
  #pragma unroll
  for (int t = 0; t < R; t++) even[t] = odd[t] = (VF)(0.0f);
  for (int k = split; k < nk; k += SPLITS) {
    for (int c = k * 32; c < k * 32 + 32; c += 2) {
      VF a = LOADF(p, c), b = LOADF(p, c + 1);
      #pragma unroll
      for (int t = 0; t < R; t++) {
        even[t] = fma(a, (VF)(x.values[(size_t)t * nk * 32 + c]), even[t]);
        odd[t] = fma(b, (VF)(x.values[(size_t)t * nk * 32 + c + 1]), odd[t]);
      }
    }
  }
  #pragma unroll
  for (int t = 0; t < R; t++) acc[t] = even[t] + odd[t];
}
