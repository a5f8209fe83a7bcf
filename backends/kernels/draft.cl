// The drafter's side of a round: which cells to compute after acceptance, the drafted token and its probability, and whether it is kept.
// Its own control table: rows and first position of what the drafter runs next, how many drafts the window has room for, and the product
// of the probabilities so far (binary64 bits, window.h).
#define PART_INTS 4           // of every DRAFT_PART ids: largest logit (float bits), its row, sum of exp(logit - largest) (float bits), not-a-number seen

// After acceptance: the accepted rows' cells, the last one first, as its output is the first draft. head_control: whether there is to be one.
KERNEL void draft_begin(GLOBAL const int *rows, GLOBAL const int *slots, GLOBAL int *out, GLOBAL int *control, GLOBAL int *draft_rows,
                        GLOBAL int *head_control) {
  if (group_id() != 0 || local_id() != 0) return;
  int s = rows[ROW_SLOT], position = rows[ROW_POSITION], emitted = out[OUT_COUNT];
  GLOBAL const int *slot = slots + s * SLOT_INTS;
  out[OUT_DRAFTED] = 0;
  out[OUT_KEPT] = 0;
  if (!rows[ROW_ACTIVE]) emitted = 0;
  for (int r = 0; r < emitted; r++) {
    GLOBAL int *row = draft_rows + r * ROW_INTS;
    row[ROW_SLOT] = s;
    row[ROW_POSITION] = position - 1 - r;
    row[ROW_TOKEN] = out[OUT_TOKENS + emitted - 1 - r];
    row[ROW_ACTIVE] = 1;
  }
  // A window never has more rows than tokens still allowed, and its last row's token must have a place.
  int room = min(slot[SLOT_WINDOW] - 1, min(slot[SLOT_BUDGET] - 1, slot[SLOT_CONTEXT] - 2 - position));
  control[CONTROL_ROWS] = emitted;
  control[CONTROL_FIRST] = position - emitted;
  control[CONTROL_ROOM] = room;
  head_control[CONTROL_ROWS] = emitted > 0 && room > 0;
#if PCUM
  *(GLOBAL ULONG *)(control + CONTROL_PRODUCT) = EMPTY_PRODUCT;
#endif
}

// Parts of the draft head's row: fixed shares of its ids, so that the sum has one order whatever the number of work-groups.
// SLOP, a -D constant: there where drafts see the slop policy; `slop_draft` has then run, and the row becomes what the policy makes of it.
KERNEL void draft_parts(GLOBAL const int *head_control, GLOBAL float *logit, int n_ids, GLOBAL int *parts
#ifdef SLOP
                        , GLOBAL const int *rows, GLOBAL const int *slots, int step, GLOBAL const uint *masks, int n_vocab,
                        GLOBAL const uint *head_masks, GLOBAL const int *slop_parts
#endif
                        ) {
#define CANDIDATES (LANES * GROUP)
  CANDIDATE_ARRAY float top[CANDIDATES];
  CANDIDATE_ARRAY int top_id[CANDIDATES];
  CANDIDATE_ARRAY float sums[CANDIDATES];
  CANDIDATE_ARRAY int bad[CANDIDATES];
#ifdef SLOP
  CANDIDATE_ARRAY float slop_sums[2 * GROUP];
#endif
  if (head_control[CONTROL_ROWS] == 0) return;
#ifdef SLOP
  GLOBAL const int *slot = slots + rows[ROW_SLOT] * SLOT_INTS;
  SlopAmounts amounts;
  slop_row_amounts(rows, step, slots, masks, n_vocab, &amounts);
  float hold = slop_hold(slop_parts, (n_ids + SLOP_PART - 1) / SLOP_PART, slot, amounts, slop_sums);
#endif
  for (int part = group_id(); part * DRAFT_PART < n_ids; part += num_groups()) {
    int begin = part * DRAFT_PART, end = min(begin + DRAFT_PART, n_ids);
    VF best = (VF)(-INFINITY);
    VI ids = (VI)(0x7fffffff), nan = (VI)(0);
    for (int at = begin + local_id() * LANES; at < end; at += CANDIDATES) {
      VI id = LANE_IDS + at;
      VF v = LOAD_AT(logit, at);
      VI inside = id < (VI)(end);
#ifdef SLOP
      v = slop_applied(v, LOAD_AT(head_masks, at), amounts, hold);
      STORE_AT(v, logit, at);
#endif
      nan |= ((v != v) | (v == (VF)(INFINITY))) & inside;
      VI better = (v > best) & inside;
      best = better ? v : best;
      ids = better ? id : ids;
    }
    STORE_AT(best, top, local_id() * LANES);
    STORE_AT(ids, top_id, local_id() * LANES);
    STORE_AT(nan, bad, local_id() * LANES);
    BARRIER();
    float value = top[0];
    int id = top_id[0], any_bad = 0;
    for (int i = 0; i < CANDIDATES; i++) {
      if (top[i] > value || (top[i] == value && top_id[i] < id)) { value = top[i]; id = top_id[i]; }
      any_bad |= bad[i];
    }
    VF sum = (VF)(0.0f);
    for (int at = begin + local_id() * LANES; at < end; at += CANDIDATES) {
      VF e = m_exp(LOAD_AT(logit, at) - (VF)(value));
      sum += LANE_IDS + at < (VI)(end) ? e : (VF)(0.0f);
    }
    STORE_AT(sum, sums, local_id() * LANES);
    BARRIER();
    if (local_id() == 0) {
      float total = 0.0f;
      for (int i = 0; i < CANDIDATES; i++) total += sums[i];
      GLOBAL int *p = parts + part * PART_INTS;
      p[0] = AS_I_1(value);
      p[1] = id;
      p[2] = AS_I_1(total);
      p[3] = any_bad != 0;
    }
    BARRIER();
  }
}

// Draft number `step` (0, 1, ...) from the parts: token, probability 1 / sum exp(logit - largest), and the window rules. A kept one becomes
// a row of the window and, where there is room for another, the drafter's next row; else the chain's later launches find no rows.
// ids: the token of each of the head's rows, where `subset`.
KERNEL void draft_pick(GLOBAL const int *parts, int n_parts, GLOBAL const int *ids, int subset, int step, GLOBAL int *control,
                       GLOBAL int *draft_rows, GLOBAL int *head_control, GLOBAL int *window_control, GLOBAL int *rows,
                       GLOBAL const int *slots, GLOBAL int *out
#if PCUM
                       , GLOBAL const float *thresholds
#endif
                       ) {
  if (group_id() != 0 || local_id() != 0 || head_control[CONTROL_ROWS] == 0) return;
  GLOBAL const int *slot = slots + rows[ROW_SLOT] * SLOT_INTS;
  float value = -INFINITY, sum = 0.0f;
  int id = 0, bad = 0;
  for (int i = 0; i < n_parts; i++) {
    float v = AS_F_1(parts[i * PART_INTS]);
    if (v > value) { value = v; id = parts[i * PART_INTS + 1]; }
    bad |= parts[i * PART_INTS + 3];
  }
  for (int i = 0; i < n_parts; i++) sum = fma(AS_F_1(parts[i * PART_INTS + 2]), m_exp_1(AS_F_1(parts[i * PART_INTS]) - value), sum);
  float p = m_div_1(1.0f, sum);
  int token = subset ? ids[id] : id, kept = 0;
  if (!bad && value > -INFINITY) {
    ULONG product = 0;
    float threshold = 0.0f;
#if PCUM
    product = *(GLOBAL const ULONG *)(control + CONTROL_PRODUCT);
    threshold = thresholds[rows[ROW_POSITION]];
#endif
    kept = keeps_draft(p, AS_F_1(slot[SLOT_DRAFT_MIN_P]), &product, threshold);
#if PCUM
    *(GLOBAL ULONG *)(control + CONTROL_PRODUCT) = product;
#endif
  } else {
    token = -1;
  }
  out[OUT_DRAFTED] = step + 1;
  out[OUT_DRAFTS + step] = token;
  out[OUT_PROBABILITIES + step] = AS_I_1(p);
  int more = kept && step + 1 < control[CONTROL_ROOM];
  if (kept) {
    GLOBAL int *row = rows + (step + 1) * ROW_INTS;
    row[ROW_SLOT] = rows[ROW_SLOT];
    row[ROW_POSITION] = rows[ROW_POSITION] + step + 1;
    row[ROW_TOKEN] = token;
    row[ROW_ACTIVE] = 1;
    window_control[CONTROL_ROWS] = step + 2;
    out[OUT_KEPT] = step + 1;
  }
  if (more) {
    draft_rows[ROW_SLOT] = rows[ROW_SLOT];
    draft_rows[ROW_POSITION] = rows[ROW_POSITION] + step;
    draft_rows[ROW_TOKEN] = token;
    draft_rows[ROW_ACTIVE] = 1;
    control[CONTROL_FIRST] = rows[ROW_POSITION] + step;
  }
  control[CONTROL_ROWS] = more;
  head_control[CONTROL_ROWS] = more;
}
