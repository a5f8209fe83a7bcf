// F32, 16 rows interleaved: per column 16 floats. Activations stay float32; even and odd columns add up apart.
#define ACT_INT8 0
#define BLOCK_BYTES(nk) ((size_t)(nk) * 2048)

// Columns 32k..32k+31 of one row of a row block.
DEVICE void decode32(GLOBAL const uchar *w, int nk, int lane, int k, GLOBAL float *out) {
  GLOBAL const float *p = (GLOBAL const float *)w + k * 512 + lane;
  for (int j = 0; j < 32; j++) out[j] = p[j * 16];
}

DEVICE __attribute__((always_inline)) void gemv(const int R, GLOBAL const uchar *w, int nk, Activation x, VF *acc) {
  GLOBAL const float *p = (GLOBAL const float *)w;
  VF odd[8];
  #pragma unroll
  for (int t = 0; t < R; t++) odd[t] = (VF)(0.0f);
  for (int k = 0; k < nk * 32; k += 2) {
    VF a = LOADF(p, k), b = LOADF(p, k + 1);
    #pragma unroll
    for (int t = 0; t < R; t++) {
      acc[t] = fma(a, (VF)(x.values[(size_t)t * nk * 32 + k]), acc[t]);
      odd[t] = fma(b, (VF)(x.values[(size_t)t * nk * 32 + k + 1]), odd[t]);
    }
  }
  #pragma unroll
  for (int t = 0; t < R; t++) acc[t] += odd[t];
}
