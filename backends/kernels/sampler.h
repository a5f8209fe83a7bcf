// What the picks of a row see: logit bias, penalties, and which ids the filters keep.

// Logit bias, then the penalties of the row at `position`, on ids `begin`..`end`-1 of its logits. The history of a row is the sequence's
// tokens at positions up to its own, drafts of earlier rows of the window included. counts: an int for every id, zero between uses.
// Order-free: each token found is counted, then the item that takes its count away applies all of it.
DEVICE void adjust(GLOBAL float *logit, int begin, int end, GLOBAL const int *slot, int position, GLOBAL const int *bias_ids,
                   GLOBAL const float *biases, GLOBAL const int *history, GLOBAL int *counts) {
  for (int i = local_id(); i < slot[SLOT_BIASES]; i += GROUP) {
    int id = bias_ids[i];
    if (id >= begin && id < end) logit[id] += biases[i];
  }
  BARRIER_GLOBAL();
  float repeat = AS_F_1(slot[SLOT_REPEAT]), presence = AS_F_1(slot[SLOT_PRESENCE]), frequency = AS_F_1(slot[SLOT_FREQUENCY]);
  if (repeat == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  int last = slot[SLOT_LAST_N], first = position - last + 1 > 0 ? position - last + 1 : 0;
  for (int i = first + local_id(); i <= position; i += GROUP) {
    int id = history[i];
    if (id >= begin && id < end) ATOMIC_INC(counts + id);
  }
  BARRIER_GLOBAL();
  for (int i = first + local_id(); i <= position; i += GROUP) {
    int id = history[i];
    if (id < begin || id >= end) continue;
    int count = ATOMIC_TAKE(counts + id);
    if (count == 0) continue;
    float v = logit[id];
    v = v > 0.0f ? m_div_1(v, repeat) : v * repeat;
    logit[id] = v - frequency * (float)count - presence;
  }
  BARRIER_GLOBAL();
}

// Whether (v, id) comes no later than (value, last) in the order of the filters: larger logits first, then lower ids.
#define NO_LATER(v, id, value, last) (((v) > (VF)(value)) | (((v) == (VF)(value)) & ((id) <= (VI)(last))))
// An id's weight in units of 2^-32 of the likeliest one's, before it is rounded down.
#define WEIGHT(v, top) (m_exp((v) - (VF)(top)) * 4294967296.0f)
