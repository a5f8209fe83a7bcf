// The target's own token for every row: bias and penalties, then of the ids that the filters keep the argmax of logit + temperature *
// Gumbel noise (temperature 0: of all logits), ties to the lowest id. `pick` works on shares of the vocabulary, `accept` merges them,
// accepts drafts and stops.
#define PARTIAL_INTS 4        // best value (float bits), id, not-a-number or infinity seen, 0

// The better of two candidates: larger value, then lower id.
#define BETTER(v, id, best, best_id) ((v) > (best) || ((v) == (best) && (id) < (best_id)))

// filtered: `filter` has run, which applied bias and penalties and left `cuts`.
// SLOP, a -D constant: there where the slop policy acts. `slop_parts` has then run first, with bias and penalties; what is left of the policy
// comes with whichever of the two reads the rows next.
KERNEL void pick(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const int *slots, GLOBAL float *logits, int stride, int n_vocab,
                 GLOBAL const int *bias_ids, GLOBAL const float *biases, int biases_per_slot, GLOBAL const int *history,
                 int history_stride, GLOBAL int *counts, int filtered, GLOBAL const int *cuts, GLOBAL int *partial
#ifdef SLOP
                 , GLOBAL const uint *masks, GLOBAL const int *slop_parts
#endif
                 ) {
#define CANDIDATES (LANES * GROUP)
  CANDIDATE_ARRAY float top[CANDIDATES];
  CANDIDATE_ARRAY int top_id[CANDIDATES];
  CANDIDATE_ARRAY int bad[CANDIDATES];
#ifdef SLOP
  CANDIDATE_ARRAY float slop_sums[2 * GROUP];
#endif
  int count = control[CONTROL_ROWS], blocks = (n_vocab + 15) / 16, begin = SHARE_BEGIN(blocks), end = SHARE_END(blocks);
  for (int r = 0; r < count; r++) {
    GLOBAL const int *row = rows + r * ROW_INTS, *slot = slots + row[ROW_SLOT] * SLOT_INTS, *cut = cuts + r * CUT_INTS;
    GLOBAL float *logit = logits + (size_t)r * stride;
    if (!row[ROW_ACTIVE]) continue;
#ifdef SLOP
    int n_parts = (n_vocab + SLOP_PART - 1) / SLOP_PART;
    SlopAmounts amounts;
    slop_row_amounts(rows, r, slots, masks, n_vocab, &amounts);
    float hold = filtered ? 0.0f : slop_hold(slop_parts + r * n_parts * SLOP_PART_INTS, n_parts, slot, amounts, slop_sums);
#else
    if (!filtered)
      adjust(logit, begin * 16, min(end * 16, n_vocab), slot, row[ROW_POSITION], bias_ids + row[ROW_SLOT] * biases_per_slot,
             biases + row[ROW_SLOT] * biases_per_slot, history + (size_t)row[ROW_SLOT] * history_stride, counts + (size_t)r * stride);
#endif
    float temperature = AS_F_1(slot[SLOT_TEMPERATURE]), least = AS_F_1(slot[SLOT_MIN_P]);
    float bound = -INFINITY;  // the best so far, by one of this work-item's lanes
    VF best = (VF)(-INFINITY);
    VI ids = (VI)(0x7fffffff), nan = (VI)(0);
    VU word[4];  // of the 4 * LANES ids around `at`: one counter gives four
    for (int i = 4 * local_id(), have = -1; begin * 16 + i * LANES < end * 16; i = (i & 3) != 3 ? i + 1 : i + 4 * GROUP - 3) {
      int at = begin * 16 + i * LANES;
      VI id = LANE_IDS + at;
      VF v = LOAD_AT(logit, at);
#ifdef SLOP
      if (!filtered) {
        v = slop_applied(v, LOAD_AT(masks, at), amounts, hold);
        STORE_AT(v, logit, at);
      }
#endif
      VI kept = id < (VI)(n_vocab);
      nan |= ((v != v) | (v == (VF)(INFINITY))) & kept;
      if (temperature > 0.0f) {
        if (filtered) {
          kept &= NO_LATER(v, id, AS_F_1(cut[CUT_VALUE]), cut[CUT_ID]);
          if (!ANY(kept)) continue;
          if (least > 0.0f) kept &= WEIGHT(v, AS_F_1(cut[CUT_TOP])) >= (VF)(least);
        }
        if (have != i >> 2) {
          have = i >> 2;
          philox(AS_VU(LANE_IDS) + (uint)(begin * 4 + have * LANES), (VU)(row[ROW_POSITION] + 1), (uint)slot[SLOT_SEED_LOW],
                 (uint)slot[SLOT_SEED_HIGH], word);
          words_by_id(word);
        }
        // In two steps: Oclgrind 21.10 takes the first of a chain of four.
        VU even = (i & 2) != 0 ? word[2] : word[0], odd = (i & 2) != 0 ? word[3] : word[1];
        VU x = (i & 1) != 0 ? odd : even;
        // Ids come in ascending order, so one that only equals the best does not win. Most are far from it, and logarithms cost.
        if (!ANY(kept & (fma((VF)(temperature), gumbel_most(x), v) > (VF)(bound)))) continue;
        v = fma((VF)(temperature), gumbel(x), v);
      }
      VI better = (v > best) & kept;
      best = better ? v : best;
      ids = better ? id : ids;
      if (temperature > 0.0f && ANY(better)) bound = hmax(best);
    }
    STORE_AT(best, top, local_id() * LANES);
    STORE_AT(ids, top_id, local_id() * LANES);
    STORE_AT(nan, bad, local_id() * LANES);
    BARRIER();
    if (local_id() == 0) {
      GLOBAL int *out = partial + (r * num_groups() + group_id()) * PARTIAL_INTS;
      float value = top[0];
      int id = top_id[0], any_bad = 0;
      for (int i = 0; i < CANDIDATES; i++) {
        if (BETTER(top[i], top_id[i], value, id)) { value = top[i]; id = top_id[i]; }
        any_bad |= bad[i];
      }
      out[0] = AS_I_1(value);
      out[1] = id;
      out[2] = any_bad != 0;
    }
    BARRIER();
  }
}

// Merges the shares of `shares` work-groups. For each sequence's run of rows: row j+1 holds draft j, accepted while equal to the pick
// of row j; then the table gets the next round's row of that sequence. A sequence's rows stand together, and rows are
// written no further than they have been read. Runs as one work-group.
KERNEL void accept(GLOBAL int *control, GLOBAL int *rows, GLOBAL int *slots, GLOBAL const int *end_ids, GLOBAL const int *partial,
                   int shares, GLOBAL int *out
#ifdef SLOP
                   , GLOBAL const uint *masks, int n_vocab
#endif
                   ) {
  if (group_id() != 0 || local_id() != 0) return;
  int count = control[CONTROL_ROWS], next = 0;
  for (int first = 0, stop; first < count; first = stop) {
    int s = rows[first * ROW_INTS + ROW_SLOT];
    for (stop = first; stop < count && rows[stop * ROW_INTS + ROW_SLOT] == s; stop++);
    GLOBAL int *slot = slots + s * SLOT_INTS, *result = out + s * OUT_INTS;
    int emitted = 0, flags = 0, token = 0, position = rows[first * ROW_INTS + ROW_POSITION];
#ifdef SLOP
    SlopState state;
    slop_load(slot, &state);
#endif
    for (int r = first; r < stop && !flags && rows[r * ROW_INTS + ROW_ACTIVE]; r++) {
      if (r > first && rows[r * ROW_INTS + ROW_TOKEN] != token) break;
      position = rows[r * ROW_INTS + ROW_POSITION];
      float value = -INFINITY;
      int bad = 0;
      token = 0x7fffffff;
      for (int g = 0; g < shares; g++) {
        GLOBAL const int *share = partial + (r * shares + g) * PARTIAL_INTS;
        float v = AS_F_1(share[0]);
        if (BETTER(v, share[1], value, token)) { value = v; token = share[1]; }
        bad |= share[2];
      }
      if (bad || token == 0x7fffffff) {
        flags = FLAG_BAD;
        result[OUT_BAD_POSITION] = position;
        break;
      }
      result[OUT_TOKENS + emitted++] = token;
#ifdef SLOP
      slop_step(&state, slop_mask(masks, n_vocab, token));
#endif
      if (!slot[SLOT_IGNORE_END]) for (int i = 1; i <= end_ids[0]; i++) if (end_ids[i] == token) flags |= FLAG_END;
      if (--slot[SLOT_BUDGET] == 0) flags |= FLAG_BUDGET;
      if (position + 2 >= slot[SLOT_CONTEXT]) flags |= FLAG_CONTEXT;
    }
#ifdef SLOP
    slop_store(slot, state);
#endif
    result[OUT_COUNT] = emitted;
    result[OUT_FLAGS] = flags;
    GLOBAL int *row = rows + next++ * ROW_INTS;
    row[ROW_SLOT] = s;
    row[ROW_POSITION] = position + 1;
    row[ROW_TOKEN] = token;
    row[ROW_ACTIVE] = emitted > 0 && !flags;
  }
  control[CONTROL_ROWS] = next;
}
