// Causal attention in GPU shape. A sequence's positions are cut into chunks of CHUNK (a multiple of BLOCK) at fixed absolute positions.
// Each (kv head, query tile, chunk) is a softmax of its own, and a query's chunks are joined in order, by the same arithmetic wherever
// that happens: in `attention`, where a work-group walks through the chunks of its queries (enough of them in a prefill), or in
// `attention_merge`, behind `attention_parts`, which spreads them over work-groups (a window at depth).
//
// A query is a (row, query head of the kv head); queries count through a row's heads first. Up to ATTENTION_TILE of them, all of one
// sequence, share the loads of KV cells. A query's arithmetic depends neither on the others of its tile nor on its place there, and it
// reads no cell beyond its own position: such scores are computed and dropped by a select, never multiplied. HEAD: head size.

// out[row] = attention of the row, whole: a work-group takes a query tile of a kv head.
KERNEL void attention(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const float *query, int query_stride,
                      GLOBAL const half *keys, GLOBAL const half *values, GLOBAL const int *block_table, int blocks_per_slot,
                      int heads, int kv_heads, float scale, GLOBAL float *out, int out_stride) {
  SHARED_LOCALS
  int grouped = heads / kv_heads, queries = control[CONTROL_ROWS] * grouped, tiles = (queries + ATTENTION_TILE - 1) / ATTENTION_TILE;
  for (int i = group_id(); i < kv_heads * tiles; i += num_groups()) {
    int kv_head = i % kv_heads, first = i / kv_heads * ATTENTION_TILE, stop = min(first + ATTENTION_TILE, queries), R;
    for (; first < stop; first += R) {
      GLOBAL const int *row = rows + first / grouped * ROW_INTS;
      float acc[OWNED * COLUMNS], total[OWNED * COLUMNS], top[OWNED], sum[OWNED];
      R = alike(rows, first, stop, grouped);
      for (int n = 0; n < OWNED * COLUMNS; n++) total[n] = 0.0f;
      for (int m = 0; m < OWNED; m++) {
        top[m] = -INFINITY;
        sum[m] = row[ROW_ACTIVE] ? 0.0f : 1.0f;
      }
      if (row[ROW_ACTIVE]) {
        int deepest = gather(R, first, grouped, kv_head, rows, query, query_stride, shared);
        for (int chunk = 0; chunk <= deepest / CHUNK; chunk++) {
          attend(chunk, R, deepest, keys, values, block_table + row[ROW_SLOT] * blocks_per_slot, kv_heads, kv_head, scale, shared, acc);
          #pragma unroll
          for (int m = 0; m < OWNED; m++) {
            int t = QUERY(m);
            if (!OWNS(t) || shared.last[t] < chunk * CHUNK) continue;
            float highest = HIGHER(top[m], shared.top[t]);
            float shrink = SHRINK(top[m], highest), grow = SHRINK(shared.top[t], highest);
            top[m] = highest;
            sum[m] = joined(sum[m], shrink, shared.fold[t * BLOCK], grow);
            #pragma unroll
            for (int c = 0; c < COLUMNS; c++) total[m * COLUMNS + c] = joined(total[m * COLUMNS + c], shrink, acc[m * COLUMNS + c], grow);
          }
          BARRIER();
        }
      }
      #pragma unroll
      for (int m = 0; m < OWNED; m++) {
        int u = first + QUERY(m);
        if (!OWNS(QUERY(m))) continue;
        GLOBAL float *o = out + (size_t)(u / grouped) * out_stride + (kv_head * grouped + u % grouped) * HEAD;
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++) if (DIM(c) < HEAD) o[DIM(c)] = total[m * COLUMNS + c] * m_div_1(1.0f, sum[m]);
      }
    }
  }
}

// Where a row's results of one head lie: PART floats for each of up to `chunks_max` chunks.
#define PARTS_OF(row, head) (((size_t)(row) * heads + (head)) * chunks_max * PART)

// The chunks of every active row, for attention_merge: a work-group takes a query tile of a kv head and a chunk, as long as there are any.
// Those of a chunk lie side by side, so that its cells are read while they are near.
KERNEL void attention_parts(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const float *query, int query_stride,
                            GLOBAL const half *keys, GLOBAL const half *values, GLOBAL const int *block_table, int blocks_per_slot,
                            int heads, int kv_heads, float scale, GLOBAL float *parts, int chunks_max) {
  SHARED_LOCALS
  int count = control[CONTROL_ROWS], grouped = heads / kv_heads, queries = count * grouped, deepest = 0;
  int tiles = (queries + ATTENTION_TILE - 1) / ATTENTION_TILE;
  for (int r = 0; r < count; r++) if (rows[r * ROW_INTS + ROW_ACTIVE]) deepest = max(deepest, rows[r * ROW_INTS + ROW_POSITION]);
  for (int i = group_id(); i < (deepest / CHUNK + 1) * kv_heads * tiles; i += num_groups()) {
    int chunk = i / (kv_heads * tiles), kv_head = i / tiles % kv_heads;
    int first = i % tiles * ATTENTION_TILE, stop = min(first + ATTENTION_TILE, queries), R;
    for (; first < stop; first += R) {
      GLOBAL const int *row = rows + first / grouped * ROW_INTS;
      R = alike(rows, first, stop, grouped);
      if (!row[ROW_ACTIVE]) continue;
      float acc[OWNED * COLUMNS];
      int reach = gather(R, first, grouped, kv_head, rows, query, query_stride, shared);
      if (reach >= chunk * CHUNK) {
        attend(chunk, R, reach, keys, values, block_table + row[ROW_SLOT] * blocks_per_slot, kv_heads, kv_head, scale, shared, acc);
        #pragma unroll
        for (int m = 0; m < OWNED; m++) {
          int t = QUERY(m), u = first + t;
          if (!OWNS(t) || shared.last[t] < chunk * CHUNK) continue;
          GLOBAL float *part = parts + PARTS_OF(u / grouped, kv_head * grouped + u % grouped) + (size_t)chunk * PART;
          #pragma unroll
          for (int c = 0; c < COLUMNS; c++) if (DIM(c) < HEAD) part[DIM(c)] = acc[m * COLUMNS + c];
          if (DIM(0) == 0) {
            part[HEAD] = shared.top[t];
            part[HEAD + 1] = shared.fold[t * BLOCK];
          }
        }
      }
      BARRIER();
    }
  }
}

// out[row] = the row's chunks, joined in order: a work-group takes a row's query head. Of GROUP chunks at a time a work-item finds one's
// factors, then all join them.
KERNEL void attention_merge(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const float *parts, int chunks_max, int heads,
                            GLOBAL float *out, int out_stride) {
  LOCAL_ARRAY float tops[GROUP];
  LOCAL_ARRAY float sums[GROUP];
  LOCAL_ARRAY float shrinks[GROUP];
  LOCAL_ARRAY float grows[GROUP];
  int item = local_id();
  for (int i = group_id(); i < control[CONTROL_ROWS] * heads; i += num_groups()) {
    GLOBAL const int *row = rows + i / heads * ROW_INTS;
    GLOBAL const float *part = parts + PARTS_OF(i / heads, i % heads);
    int chunks = row[ROW_ACTIVE] ? row[ROW_POSITION] / CHUNK + 1 : 0;
    float top = -INFINITY, sum = chunks ? 0.0f : 1.0f, total[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) total[c] = 0.0f;
    for (int begin = 0; begin < chunks; begin += GROUP) {
      int n = min(chunks - begin, GROUP);
      if (item < n) {
        tops[item] = part[(size_t)(begin + item) * PART + HEAD];
        sums[item] = part[(size_t)(begin + item) * PART + HEAD + 1];
      }
      BARRIER();
      if (item < n) {
        float before = top;
        for (int k = 0; k < item; k++) before = HIGHER(before, tops[k]);
        float highest = HIGHER(before, tops[item]);
        shrinks[item] = SHRINK(before, highest);
        grows[item] = SHRINK(tops[item], highest);
      }
      BARRIER();
      for (int k = 0; k < n; k++) {
        top = HIGHER(top, tops[k]);
        sum = joined(sum, shrinks[k], sums[k], grows[k]);
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++)
          if (item + c * GROUP < HEAD) total[c] = joined(total[c], shrinks[k], part[(size_t)(begin + k) * PART + item + c * GROUP], grows[k]);
      }
      BARRIER();
    }
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      int d = item + c * GROUP;
      if (d < HEAD) out[(size_t)(i / heads) * out_stride + i % heads * HEAD + d] = total[c] * m_div_1(1.0f, sum);
    }
  }
}
