// The header functions under test, an element a work-item, so that any device of any dialect can be asked for their bits (GPU shape).
#define FOR_EACH(i, count) for (int i = group_id() * local_size() + local_id(); i < (count); i += num_groups() * local_size())
KERNEL void run_exp(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_exp(a[i]); }
KERNEL void run_log(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_log(a[i]); }
KERNEL void run_log1p(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_log1p(a[i]); }
KERNEL void run_sigmoid(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_sigmoid(a[i]); }
KERNEL void run_silu(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_silu(a[i]); }
KERNEL void run_softplus(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_softplus(a[i]); }
KERNEL void run_rsqrt(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_rsqrt(a[i]); }
KERNEL void run_div(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = m_div(a[i], b[i]); }
KERNEL void run_fma(GLOBAL const float *a, GLOBAL const float *b, GLOBAL const float *c, GLOBAL float *out, int count) {
  FOR_EACH(i, count) out[i] = fma(a[i], b[i], c[i]);
}
// A product and a sum that the text does not call fma.
KERNEL void run_apart(GLOBAL const float *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = a[i] * 1.1f + a[i]; }
KERNEL void run_philox(GLOBAL const uint *c0, GLOBAL const uint *c1, GLOBAL uint *out, int count) {
  FOR_EACH(i, count) {
    uint v[4];
    philox(c0[i], c1[i], 123456789u, 0xfedcba98u, v);
    for (int j = 0; j < 4; j++) out[i * 4 + j] = v[j];
  }
}
KERNEL void run_gumbel(GLOBAL const uint *word, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = gumbel(word[i]); }
KERNEL void run_widen(GLOBAL const half *a, GLOBAL float *out, int count) { FOR_EACH(i, count) out[i] = load_half(i, a); }
KERNEL void run_narrow(GLOBAL const float *a, GLOBAL half *out, int count) { FOR_EACH(i, count) store_half(a[i], i, out); }
KERNEL void run_dot4(GLOBAL const int *sum, GLOBAL const uint *w, GLOBAL const uint *x, GLOBAL int *out, int count) {
  FOR_EACH(i, count) out[i] = DOT4(sum[i], w[i], x[i]);
}
