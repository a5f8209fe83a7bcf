// The target's own token for every row: logit bias, then argmax of logit + temperature * Gumbel noise (temperature 0: of the logit),
// ties to the lowest id. `pick` works on shares of the vocabulary, `accept` merges them, accepts drafts and stops.
#define PARTIAL_INTS 4        // best value (float bits), id, not-a-number or infinity seen, 0

KERNEL void pick(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const int *slots, GLOBAL float *logits, int stride, int n_vocab,
                 GLOBAL const int *bias_ids, GLOBAL const float *biases, int biases_per_slot, GLOBAL int *partial) {
  int count = control[CONTROL_ROWS], blocks = (n_vocab + LANES - 1) / LANES, begin = SHARE_BEGIN(blocks), end = SHARE_END(blocks);
  for (int r = 0; r < count; r++) {
    GLOBAL const int *row = rows + r * ROW_INTS, *slot = slots + row[ROW_SLOT] * SLOT_INTS;
    GLOBAL float *logit = logits + (size_t)r * stride;
    for (int i = 0; i < slot[SLOT_BIASES]; i++) {
      int id = bias_ids[row[ROW_SLOT] * biases_per_slot + i];
      if (id / LANES >= begin && id / LANES < end) logit[id] += biases[row[ROW_SLOT] * biases_per_slot + i];
    }
    float temperature = as_float(slot[SLOT_TEMPERATURE]);
    VF best = (VF)(-INFINITY);
    VI ids = (VI)(0x7fffffff), nan = (VI)(0);
    for (int b = begin; b < end; b++) {
      VI id = LANE_IDS + b * LANES;
      VF v = LOADF(logit, b);
      nan |= ((v != v) | (v == (VF)(INFINITY))) & (id < (VI)(n_vocab));
      if (temperature > 0.0f) {
        VU word[4];
        philox(AS_VU(id) >> 2, (VU)(row[ROW_POSITION] + 1), (uint)slot[SLOT_SEED_LOW], (uint)slot[SLOT_SEED_HIGH], word);
        VI which = id & 3;
        VU x = which == 0 ? word[0] : which == 1 ? word[1] : which == 2 ? word[2] : word[3];
        v = fma((VF)(temperature), gumbel(x), v);
      }
      VI better = (v > best) & (id < (VI)(n_vocab));
      best = better ? v : best;
      ids = better ? id : ids;
    }
    float top[LANES];
    int top_id[LANES], bad[LANES];
    vstore16(best, 0, top);
    vstore16(ids, 0, top_id);
    vstore16(nan, 0, bad);
    GLOBAL int *out = partial + (r * num_groups() + group_id()) * PARTIAL_INTS;
    float value = top[0];
    int id = top_id[0], any_bad = 0;
    for (int i = 0; i < LANES; i++) {
      if (top[i] > value || (top[i] == value && top_id[i] < id)) { value = top[i]; id = top_id[i]; }
      any_bad |= bad[i];
    }
    out[0] = as_int(value);
    out[1] = id;
    out[2] = any_bad != 0;
  }
}

// Merges the shares of `shares` work-groups. For each sequence's run of rows: row j+1 holds draft j, accepted while equal to the pick
// of row j; then the table gets the next round's row of that sequence. A sequence's rows stand together, and rows are
// written no further than they have been read. Runs as one work-group.
KERNEL void accept(GLOBAL int *control, GLOBAL int *rows, GLOBAL int *slots, GLOBAL const int *end_ids, GLOBAL const int *partial,
                   int shares, GLOBAL int *out) {
  if (group_id() != 0) return;
  int count = control[CONTROL_ROWS], next = 0;
  for (int first = 0, stop; first < count; first = stop) {
    int s = rows[first * ROW_INTS + ROW_SLOT];
    for (stop = first; stop < count && rows[stop * ROW_INTS + ROW_SLOT] == s; stop++);
    GLOBAL int *slot = slots + s * SLOT_INTS, *result = out + s * OUT_INTS;
    int emitted = 0, flags = 0, token = 0, position = rows[first * ROW_INTS + ROW_POSITION];
    for (int r = first; r < stop && !flags && rows[r * ROW_INTS + ROW_ACTIVE]; r++) {
      if (r > first && rows[r * ROW_INTS + ROW_TOKEN] != token) break;
      position = rows[r * ROW_INTS + ROW_POSITION];
      float value = -INFINITY;
      int bad = 0;
      token = 0x7fffffff;
      for (int g = 0; g < shares; g++) {
        GLOBAL const int *share = partial + (r * shares + g) * PARTIAL_INTS;
        float v = as_float(share[0]);
        if (v > value || (v == value && share[1] < token)) { value = v; token = share[1]; }
        bad |= share[2];
      }
      if (bad || token == 0x7fffffff) {
        flags = FLAG_BAD;
        result[OUT_BAD_POSITION] = position;
        break;
      }
      result[OUT_TOKENS + emitted++] = token;
      if (!slot[SLOT_IGNORE_END]) for (int i = 1; i <= end_ids[0]; i++) if (end_ids[i] == token) flags |= FLAG_END;
      if (--slot[SLOT_BUDGET] == 0) flags |= FLAG_BUDGET;
      if (position + 2 >= slot[SLOT_CONTEXT]) flags |= FLAG_CONTEXT;
    }
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
