// One chunk of attention in GPU shape, and how chunks join (attention_chunks.cl has the whole). HEAD: head size. CHUNK: positions.
#define CELLS(block) (((size_t)(block) * kv_heads + kv_head) * BLOCK * HEAD)  // where this kv head's cells of a KV block start
#define TEAMS (GROUP / BLOCK)                                                 // of BLOCK work-items: a score each
#define SCORED ((ATTENTION_TILE + TEAMS - 1) / TEAMS)                         // a team's queries: team, team + TEAMS, ...
#define VALUE_TEAMS (HEAD < GROUP ? GROUP / HEAD : 1)                         // of HEAD work-items: an output dim each, or COLUMNS dims
#define COLUMNS ((HEAD + GROUP - 1) / GROUP)                                  // dims item % HEAD, + GROUP, ...
#define OWNED ((ATTENTION_TILE + VALUE_TEAMS - 1) / VALUE_TEAMS)              // such a team's queries
#define HIGHER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))                    // a NaN wins
#define PART (HEAD + 2)                                                       // a chunk's result: HEAD weighted sums, top, sum of weights

// Query m and dim c of this work-item in `acc` below, where it OWNS them.
#define QUERY(m) (local_id() / HEAD + (m) * VALUE_TEAMS)
#define DIM(c) (local_id() % HEAD + (c) * GROUP)
#define OWNS(t) (local_id() / HEAD < VALUE_TEAMS && (t) < R)

// What a work-group shares. last[t]: the position of query t; score[t][cell of the chunk]: first scores, then weights.
typedef struct {
  LOCAL float *query, *score, *fold, *top;
  LOCAL int *last;
} Shared;

#define SHARED_LOCALS \
  LOCAL_ARRAY float query_[ATTENTION_TILE * HEAD]; \
  LOCAL_ARRAY float score_[ATTENTION_TILE * CHUNK]; \
  LOCAL_ARRAY float fold_[ATTENTION_TILE * BLOCK]; \
  LOCAL_ARRAY float top_[ATTENTION_TILE]; \
  LOCAL_ARRAY int last_[ATTENTION_TILE]; \
  Shared shared = {query_, score_, fold_, top_, last_};

// The same fold over the BLOCK numbers of every query, in place; the result stands in number 0.
#define FOLD(op) \
  for (int half_ = BLOCK / 2; half_ > 0; half_ /= 2) { \
    for (int t = team; t < R; t += TEAMS) \
      if (cell < half_) { float a = s.fold[t * BLOCK + cell], b = s.fold[t * BLOCK + cell + half_]; s.fold[t * BLOCK + cell] = op; } \
    BARRIER(); \
  }

// Joining: total and part are sums of weights, or weighted sums, relative to the highest score before and to the part's own.
#define SHRINK(before, highest) m_exp_1((before) - (highest))
DEVICE float joined(float total, float shrink, float part, float grow) { return fma(total, shrink, part * grow); }

// Queries first..stop - 1 that are alike: of one slot, all active or none. Returns how many from `first` on.
DEVICE int alike(GLOBAL const int *rows, int first, int stop, int grouped) {
  GLOBAL const int *row = rows + first / grouped * ROW_INTS;
  int run = 1;
  for (; first + run < stop; run++) {
    GLOBAL const int *other = rows + (first + run) / grouped * ROW_INTS;
    if (other[ROW_SLOT] != row[ROW_SLOT] || other[ROW_ACTIVE] != row[ROW_ACTIVE]) break;
  }
  return run;
}

// R queries and their positions to local memory; ends with a barrier. Returns the deepest position.
DEVICE int gather(int R, int first, int grouped, int kv_head, GLOBAL const int *rows, GLOBAL const float *q, int q_stride, Shared s) {
  int deepest = 0;
  for (int i = local_id(); i < R * HEAD; i += GROUP) {
    int u = first + i / HEAD;
    s.query[i] = q[(size_t)(u / grouped) * q_stride + (kv_head * grouped + u % grouped) * HEAD + i % HEAD];
  }
  for (int t = 0; t < R; t++) {
    int position = rows[(first + t) / grouped * ROW_INTS + ROW_POSITION];
    deepest = max(deepest, position);
    if (local_id() == t) s.last[t] = position;
  }
  BARRIER();
  return deepest;
}

// One chunk for R gathered queries, the deepest at `deepest`, by a whole work-group. Then acc[m * COLUMNS + c] is the weighted sum of
// values for query QUERY(m) and dim DIM(c), s.top[t] and s.fold[t * BLOCK] are the highest score and the sum of weights. Of a query
// without a cell in the chunk nothing is of use. Needs a barrier behind the use of what it leaves.
DEVICE void attend(int chunk, int R, int deepest, GLOBAL const half *keys, GLOBAL const half *values, GLOBAL const int *blocks,
                   int kv_heads, int kv_head, float scale, Shared s, float *acc) {
  int item = local_id(), cell = item % BLOCK, team = item / BLOCK, begin = chunk * CHUNK;
  int used = min(deepest / BLOCK + 1 - begin / BLOCK, CHUNK / BLOCK);  // KV blocks
  float best[SCORED];
  blocks += begin / BLOCK;
  #pragma unroll
  for (int n = 0; n < SCORED; n++) best[n] = -INFINITY;
  #pragma unroll 1
  for (int b = 0; b < used; b++) {
    if (team >= R) break;
    GLOBAL const half *key = keys + CELLS(blocks[b]) + cell / 16 * HEAD * 16 + cell % 16;
    float even[SCORED], odd[SCORED];
    #pragma unroll
    for (int n = 0; n < SCORED; n++) even[n] = odd[n] = 0.0f;
    for (int d = 0; d < HEAD; d += 2) {
      float k0 = load_half(d * 16, key), k1 = load_half(d * 16 + 16, key);
      #pragma unroll
      for (int n = 0; n < SCORED; n++) {
        LOCAL const float *query = s.query + min(team + n * TEAMS, R - 1) * HEAD + d;
        even[n] = fma(k0, query[0], even[n]);
        odd[n] = fma(k1, query[1], odd[n]);
      }
    }
    #pragma unroll
    for (int n = 0; n < SCORED; n++) {
      int t = team + n * TEAMS;
      if (t < R) {
        float score = begin + b * BLOCK + cell <= s.last[t] ? (even[n] + odd[n]) * scale : -INFINITY;
        s.score[t * CHUNK + b * BLOCK + cell] = score;
        best[n] = HIGHER(best[n], score);
      }
    }
  }
  #pragma unroll
  for (int n = 0; n < SCORED; n++) if (team + n * TEAMS < R) s.fold[(team + n * TEAMS) * BLOCK + cell] = best[n];
  BARRIER();
  FOLD(HIGHER(a, b))
  #pragma unroll
  for (int n = 0; n < SCORED; n++) best[n] = s.fold[min(team + n * TEAMS, R - 1) * BLOCK];
  BARRIER();
  for (int n = 0; n < SCORED; n++) {
    int t = team + n * TEAMS;
    if (t >= R) break;
    float sum = 0.0f;
    for (int b = 0; b < used; b++) {
      int at = t * CHUNK + b * BLOCK + cell;
      float weight = begin + b * BLOCK + cell <= s.last[t] ? m_exp_1(s.score[at] - best[n]) : 0.0f;
      s.score[at] = weight;
      sum += weight;
    }
    s.fold[t * BLOCK + cell] = sum;
    if (cell == 0) s.top[t] = best[n];
  }
  BARRIER();
  FOLD(a + b)

  int common = CHUNK, cells[OWNED];
  float even[OWNED * COLUMNS], odd[OWNED * COLUMNS];
  #pragma unroll
  for (int m = 0; m < OWNED; m++) {
    int t = QUERY(m);
    cells[m] = OWNS(t) ? max(min(s.last[t] + 1 - begin, CHUNK), 0) : 0;
    if (m == 0 || OWNS(t)) common = min(common, cells[m]);
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++) even[m * COLUMNS + c] = odd[m * COLUMNS + c] = 0.0f;
  }
  common -= common % 2;
  // Cells that all queries of this work-item read are loaded once for them; then each query's own.
  for (int b = 0; b * BLOCK < common; b++) {
    GLOBAL const half *value = values + CELLS(blocks[b]);
    int rest = min(common - b * BLOCK, BLOCK);
    for (int j = 0; j < rest; j += 2) {
      #pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        if (DIM(c) < HEAD) {
          float v0 = load_half(j * HEAD + DIM(c), value), v1 = load_half((j + 1) * HEAD + DIM(c), value);
          #pragma unroll
          for (int m = 0; m < OWNED; m++) {
            LOCAL const float *weight = s.score + min(QUERY(m), R - 1) * CHUNK + b * BLOCK + j;
            even[m * COLUMNS + c] = fma(v0, weight[0], even[m * COLUMNS + c]);
            odd[m * COLUMNS + c] = fma(v1, weight[1], odd[m * COLUMNS + c]);
          }
        }
      }
    }
  }
  #pragma unroll
  for (int m = 0; m < OWNED; m++) {
    #pragma unroll 1
    for (int j = common; j < cells[m]; j++) {
      GLOBAL const half *value = values + CELLS(blocks[j / BLOCK]) + j % BLOCK * HEAD;
      float weight = s.score[QUERY(m) * CHUNK + j];
      #pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        if (DIM(c) < HEAD) {
          float v = load_half(DIM(c), value);
          if (j % 2) odd[m * COLUMNS + c] = fma(v, weight, odd[m * COLUMNS + c]);
          else even[m * COLUMNS + c] = fma(v, weight, even[m * COLUMNS + c]);
        }
      }
    }
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++) acc[m * COLUMNS + c] = even[m * COLUMNS + c] + odd[m * COLUMNS + c];
  }
}
