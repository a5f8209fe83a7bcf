// top-k, then top-p, at temperature 1: where in the order of its logits (largest first, then lowest id) a row's kept ids end. Both keep a
// beginning of that order. Exact and order-free: counts, and weights floor(exp(logit - largest) * 2^32) summed as 64-bit integers.
// One work-group per row. min-p is a test of an id's own weight, which `pick` makes.
#define LOWEST (-3.402823466e+38f)
#define ANY_ID 0x7fffffff
#define LIST 32          // ids that are compared with each other rather than with a value once more

typedef struct { ULONG count, weight; } Mass;

// A sum over the group's work-items, which all get it.
DEVICE ULONG group_sum(ULONG v, WORK_ARRAY ULONG *sums) {
#if LANES == 1
  sums[local_id()] = v;
  BARRIER();
  for (int half_way = GROUP / 2; half_way > 0; half_way /= 2) {
    if (local_id() < half_way) sums[local_id()] += sums[local_id() + half_way];
    BARRIER();
  }
  v = sums[0];
  BARRIER();
#endif
  return v;
}

// How many ids come no later than (value, last), and what they weigh if `weighed`.
DEVICE Mass mass(GLOBAL const float *logit, int n_vocab, float top, int weighed, float value, int last, WORK_ARRAY ULONG *sums) {
  VI count = (VI)(0);
  VL weight = (VL)(0);
  for (int at = local_id() * LANES; at < n_vocab; at += LANES * GROUP) {
    VI id = LANE_IDS + at;
    VF v = LOAD_AT(logit, at);
    VI in = NO_LATER(v, id, value, last) & (id < (VI)(n_vocab));
    if (!ANY(in)) continue;
    count += in & 1;
    if (weighed) weight += TO_VL(in ? WEIGHT(v, top) : (VF)(0.0f));
  }
  Mass total;
  total.count = group_sum((ULONG)hsum_int(count), sums);
  total.weight = weighed ? group_sum(hsum_long(weight), sums) : 0;
  return total;
}

#define SIZE(mass) (weighed ? (mass).weight : (mass).count)

// The first place in order up to which there are `goal` ids or, if `weighed`, weighs `goal`; the end of order where there is none.
DEVICE void shortest(GLOBAL const float *logit, int n_vocab, float top, int weighed, ULONG goal, float *value, int *last,
                     WORK_ARRAY ULONG *sums, WORK_ARRAY float *list, WORK_ARRAY int *list_ids, WORK_ARRAY int *found) {
  *value = LOWEST;
  *last = ANY_ID;
  // Places in order: all up to `near` is too little, all up to `far` is enough.
  float near = INFINITY, far = top, distance = 1.0f;
  Mass nearer, farther = mass(logit, n_vocab, top, weighed, far, ANY_ID, sums);
  nearer.count = nearer.weight = 0;
  while (SIZE(farther) < goal) {
    if (far == LOWEST) return;
    near = far;
    nearer = farther;
    distance *= 4.0f;
    far = top - distance > LOWEST ? top - distance : LOWEST;
    farther = mass(logit, n_vocab, top, weighed, far, ANY_ID, sums);
  }
  while (near != INFINITY && farther.count - nearer.count > LIST) {
    float middle = 0.5f * near + 0.5f * far;
    if (middle >= near || middle <= far) break;  // neighbours: what is left are equal logits
    Mass m = mass(logit, n_vocab, top, weighed, middle, ANY_ID, sums);
    if (SIZE(m) < goal) { near = middle; nearer = m; } else { far = middle; farther = m; }
  }
  if (farther.count - nearer.count > LIST) {
    int low = 0, high = n_vocab - 1;  // many equal logits: their ids decide
    while (low < high) {
      int middle = (low + high) / 2;
      Mass m = mass(logit, n_vocab, top, weighed, far, middle, sums);
      if (SIZE(m) < goal) low = middle + 1; else high = middle;
    }
    *value = far;
    *last = low;
    return;
  }
  if (local_id() == 0) *found = 0;
  BARRIER();
  for (int at = local_id() * LANES; at < n_vocab; at += LANES * GROUP) {
    VI id = LANE_IDS + at;
    VF v = LOAD_AT(logit, at);
    VI in = (v >= (VF)(far)) & (v < (VF)(near)) & (id < (VI)(n_vocab));
    if (ANY(in)) COLLECT(in, v, at, list, list_ids, found)
  }
  BARRIER();
  int n = *found;
  BARRIER();
  for (int i = local_id(); i < n; i += GROUP) {
    ULONG before = SIZE(nearer), own = 0;
    for (int j = 0; j < n; j++) {
      if (list[j] < list[i] || (list[j] == list[i] && list_ids[j] > list_ids[i])) continue;
      ULONG size = weighed ? (ULONG)(m_exp_1(list[j] - top) * 4294967296.0f) : 1;
      if (j == i) own = size; else before += size;
    }
    if (before < goal && before + own >= goal) *found = LIST + i;  // true of just one
  }
  BARRIER();
  if (*found >= LIST) {
    *value = list[*found - LIST];
    *last = list_ids[*found - LIST];
  }
  BARRIER();
}

KERNEL void filter(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const int *slots, GLOBAL float *logits, int stride, int n_vocab,
                   GLOBAL const int *bias_ids, GLOBAL const float *biases, int biases_per_slot, GLOBAL const int *history,
                   int history_stride, GLOBAL int *counts, GLOBAL int *cuts
#ifdef SLOP
                   , GLOBAL const uint *masks, GLOBAL const int *slop_parts
#endif
                   ) {
  CANDIDATE_ARRAY ULONG sums[GROUP];
  CANDIDATE_ARRAY float list[LIST];
  CANDIDATE_ARRAY int list_ids[LIST];
  CANDIDATE_ARRAY int found[1];
  CANDIDATE_ARRAY float tops[GROUP];
#ifdef SLOP
  CANDIDATE_ARRAY float slop_sums[2 * GROUP];
#endif
  for (int r = group_id(); r < control[CONTROL_ROWS]; r += num_groups()) {
    if (!rows[r * ROW_INTS + ROW_ACTIVE]) continue;
    int s = rows[r * ROW_INTS + ROW_SLOT];
    GLOBAL const int *slot = slots + s * SLOT_INTS;
    GLOBAL float *logit = logits + (size_t)r * stride;
#ifdef SLOP
    int n_parts = (n_vocab + SLOP_PART - 1) / SLOP_PART;
    SlopAmounts amounts;
    slop_row_amounts(rows, r, slots, masks, n_vocab, &amounts);
    float hold = slop_hold(slop_parts + r * n_parts * SLOP_PART_INTS, n_parts, slot, amounts, slop_sums);
#else
    adjust(logit, 0, n_vocab, slot, rows[r * ROW_INTS + ROW_POSITION], bias_ids + s * biases_per_slot, biases + s * biases_per_slot,
           history + (size_t)s * history_stride, counts + (size_t)r * stride);
#endif
    VF best = (VF)(-INFINITY);
    for (int at = local_id() * LANES; at < n_vocab; at += LANES * GROUP) {
      VF v = LOAD_AT(logit, at);
#ifdef SLOP
      v = slop_applied(v, LOAD_AT(masks, at), amounts, hold);
      STORE_AT(v, logit, at);
#endif
      best = ((v > best) & (LANE_IDS + at < (VI)(n_vocab))) ? v : best;
    }
    tops[local_id()] = hmax(best);
    BARRIER();
    float top = tops[0], value = LOWEST;
    for (int i = 1; i < GROUP; i++) top = tops[i] > top ? tops[i] : top;
    int last = ANY_ID, top_k = slot[SLOT_TOP_K];
    ULONG top_p = (uint)slot[SLOT_TOP_P];
    if (AS_F_1(slot[SLOT_TEMPERATURE]) > 0.0f && top >= LOWEST && top <= -LOWEST) {
      if (top_k > 0 && top_k < n_vocab) shortest(logit, n_vocab, top, 0, (ULONG)top_k, &value, &last, sums, list, list_ids, found);
      if (top_p > 0) {
        ULONG total = mass(logit, n_vocab, top, 1, value, last, sums).weight;
        // top_p * total / 2^32, rounded up, without the 81 bits of the product.
        ULONG goal = top_p * (total >> 32) + ((top_p * (total & 0xffffffffu) + 0xffffffffu) >> 32);
        float p_value;
        int p_last;
        shortest(logit, n_vocab, top, 1, goal > 0 ? goal : 1, &p_value, &p_last, sums, list, list_ids, found);
        value = p_value;
        last = p_last;
      }
    }
    if (local_id() == 0) {
      GLOBAL int *cut = cuts + r * CUT_INTS;
      cut[CUT_VALUE] = AS_I_1(value);
      cut[CUT_ID] = last;
      cut[CUT_TOP] = AS_I_1(top);
    }
    BARRIER();
  }
}
