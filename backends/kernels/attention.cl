// Causal attention of every row over the KV blocks of its own sequence, in order, merged by running maximum and sum. A row reads no
// cell beyond its own position. HEAD: head size. Rows of one sequence share the KV loads, ATTENTION_TILE at a time. This is the CPU shape,
// a row of a head in one go; attention_chunks.cl is the GPU shape.
#define CELLS(block) (((size_t)(block) * kv_heads + kv_head) * BLOCK * HEAD)  // where this head's cells of a KV block start

#define CHUNKS (HEAD / 16)

typedef struct { float top, sum; VF out[CHUNKS]; } Attended;

// One block for R rows: `last` is the row's last cell in it (63: whole). P: 16-position parts (and value chunks) in flight, so that few
// rows still keep the multipliers busy; it changes no row's order of operations. next_key, next_value: the block after, to be fetched.
// Scores of cells behind `last` are computed and dropped by a select, never multiplied: a NaN there cannot leak.
DEVICE ALWAYS_INLINE void attend_block(const int R, const int P, const int whole,
                                                        GLOBAL const half *key, GLOBAL const half *value,
                                                        GLOBAL const half *next_key, GLOBAL const half *next_value,
                                                        GLOBAL const float *q, int q_stride, float scale, int last, Attended *state) {
  float weight[8][BLOCK];
  VF even[8 * 4], odd[8 * 4];
  #pragma unroll 1
  for (int part = 0; part < BLOCK / 16; part += P) {
    #pragma unroll
    for (int i = 0; i < R * P; i++) even[i] = odd[i] = (VF)(0.0f);
    #pragma unroll 1
    for (int d = 0; d < HEAD; d += 2) {
      #pragma unroll
      for (int p = 0; p < P; p++) {
        PREFETCH(next_key + ((part + p) * HEAD + d) * 16);
        VF a = LOADH(key, (part + p) * HEAD + d), b = LOADH(key, (part + p) * HEAD + d + 1);
        #pragma unroll
        for (int t = 0; t < R; t++) {
          even[t * P + p] = fma(a, (VF)(q[t * q_stride + d]), even[t * P + p]);
          odd[t * P + p] = fma(b, (VF)(q[t * q_stride + d + 1]), odd[t * P + p]);
        }
      }
    }
    #pragma unroll
    for (int p = 0; p < P; p++) {
      #pragma unroll
      for (int t = 0; t < R; t++) {
        VF score = (even[t * P + p] + odd[t * P + p]) * scale;
        if (!whole) score = LANE_IDS + (part + p) * 16 > (VI)(last) ? (VF)(-INFINITY) : score;
        vstore16(score, part + p, weight[t]);
      }
    }
  }
  #pragma unroll 1
  for (int t = 0; t < R; t++) {
    VF s0 = vload16(0, weight[t]), s1 = vload16(1, weight[t]), s2 = vload16(2, weight[t]), s3 = vload16(3, weight[t]);
    VF a = s0 > s1 ? s0 : s1, b = s2 > s3 ? s2 : s3;
    float top = hmax(a > b ? a : b);
    top = state[t].top > top ? state[t].top : top;
    float shrink = m_exp_1(state[t].top - top);
    s0 = m_exp(s0 - top); s1 = m_exp(s1 - top); s2 = m_exp(s2 - top); s3 = m_exp(s3 - top);
    vstore16(s0, 0, weight[t]); vstore16(s1, 1, weight[t]); vstore16(s2, 2, weight[t]); vstore16(s3, 3, weight[t]);
    state[t].sum = fma(state[t].sum, shrink, hsum((s0 + s1) + (s2 + s3)));
    state[t].top = top;
    #pragma unroll 1
    for (int c = 0; c < CHUNKS; c++) state[t].out[c] *= shrink;
  }
  int cells = whole ? BLOCK : last + 1;
  #pragma unroll 1
  for (int chunk = 0; chunk < CHUNKS; chunk += P) {
    #pragma unroll
    for (int i = 0; i < R * P; i++) even[i] = odd[i] = (VF)(0.0f);
    int j = 0;
    #pragma unroll 1
    for (; j + 1 < cells; j += 2) {
      #pragma unroll
      for (int p = 0; p < P; p++) {
        if (chunk + p < CHUNKS) {
          PREFETCH(next_value + (j * CHUNKS + chunk + p) * 16);
          VF a = LOADH(value, j * CHUNKS + chunk + p), b = LOADH(value, (j + 1) * CHUNKS + chunk + p);
          #pragma unroll
          for (int t = 0; t < R; t++) {
            even[t * P + p] = fma(a, (VF)(weight[t][j]), even[t * P + p]);
            odd[t * P + p] = fma(b, (VF)(weight[t][j + 1]), odd[t * P + p]);
          }
        }
      }
    }
    #pragma unroll
    for (int p = 0; p < P; p++) {
      if (chunk + p < CHUNKS) {
        #pragma unroll
        for (int t = 0; t < R; t++) {
          if (j < cells) even[t * P + p] = fma(LOADH(value, j * CHUNKS + chunk + p), (VF)(weight[t][j]), even[t * P + p]);
          state[t].out[chunk + p] += even[t * P + p] + odd[t * P + p];
        }
      }
    }
  }
}

#define SHARED(n, parts) case n: attend_block(n, parts, 1, key, value, next_key, next_value, q, q_stride, scale, BLOCK - 1, state); break;

// R rows (1, 2, 4 or 8), all active and of one sequence, for one query head.
DEVICE void attend(int R, GLOBAL const int *rows, GLOBAL const half *keys, GLOBAL const half *values, GLOBAL const int *blocks,
                   GLOBAL const float *q, int q_stride, float scale, int kv_heads, int kv_head, GLOBAL float *out, int out_stride) {
  Attended state[ATTENTION_TILE];
  int lowest = rows[ROW_POSITION];
  for (int t = 0; t < R; t++) {
    lowest = min(lowest, rows[t * ROW_INTS + ROW_POSITION]);
    state[t].top = -INFINITY;
    state[t].sum = 0.0f;
    for (int c = 0; c < CHUNKS; c++) state[t].out[c] = (VF)(0.0f);
  }
  int common = (lowest + 1) / BLOCK;
  for (int b = 0; b < common; b++) {
    GLOBAL const half *key = keys + CELLS(blocks[b]), *value = values + CELLS(blocks[b]);
    int next = b + 1 <= lowest / BLOCK ? blocks[b + 1] : blocks[b];
    GLOBAL const half *next_key = keys + CELLS(next), *next_value = values + CELLS(next);
    switch (R) {
      SHARED(1, 4)
#if ATTENTION_TILE > 1
      SHARED(2, 2)
#endif
#if ATTENTION_TILE > 2
      SHARED(4, 1)
#endif
#if ATTENTION_TILE > 4
      SHARED(8, 1)
#endif
    }
  }
  for (int t = 0; t < R; t++) {
    int position = rows[t * ROW_INTS + ROW_POSITION];
    for (int b = common; b <= position / BLOCK; b++) {
      GLOBAL const half *key = keys + CELLS(blocks[b]), *value = values + CELLS(blocks[b]);
      int last = min(position - b * BLOCK, BLOCK - 1);
      attend_block(1, 4, 0, key, value, key, value, q + (size_t)t * q_stride, q_stride, scale, last, state + t);
    }
    float share = m_div_1(1.0f, state[t].sum);
    for (int c = 0; c < CHUNKS; c++) STOREF(state[t].out[c] * share, out + (size_t)t * out_stride, c);
  }
}

KERNEL void attention(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const float *query, int query_stride,
                      GLOBAL const half *keys, GLOBAL const half *values, GLOBAL const int *block_table, int blocks_per_slot,
                      int heads, int kv_heads, float scale, GLOBAL float *out, int out_stride) {
  int count = control[CONTROL_ROWS], tiles = (count + ATTENTION_TILE - 1) / ATTENTION_TILE, end = SHARE_END(heads * tiles);
  for (int i = SHARE_BEGIN(heads * tiles); i < end; i++) {
    int head = i / tiles, first = i % tiles * ATTENTION_TILE, stop = min(first + ATTENTION_TILE, count);
    while (first < stop) {
      GLOBAL const int *row = rows + first * ROW_INTS;
      int run = 1, R = 1;
      while (first + run < stop && row[run * ROW_INTS + ROW_SLOT] == row[ROW_SLOT] && row[run * ROW_INTS + ROW_ACTIVE] == row[ROW_ACTIVE])
        run++;
      while (2 * R <= run) R *= 2;  // bodies for powers of two only: each costs seconds to compile
      GLOBAL float *o = out + (size_t)first * out_stride + head * HEAD;
      if (row[ROW_ACTIVE])
        attend(R, row, keys, values, block_table + row[ROW_SLOT] * blocks_per_slot, query + (size_t)first * query_stride + head * HEAD,
               query_stride, scale, kv_heads, head / (heads / kv_heads), o, out_stride);
      else
        for (int t = 0; t < R; t++) for (int d = 0; d < HEAD; d++) o[(size_t)t * out_stride + d] = 0.0f;
      first += R;
    }
  }
}
