// The slop policy's first pass over rows of logits: fixed parts of the vocabulary, which whoever reads the rows next merges into the hold.

// Of every row of the window, bias and penalties first.
KERNEL void slop_parts(GLOBAL const int *control, GLOBAL const int *rows, GLOBAL const int *slots, GLOBAL float *logits, int stride,
                       int n_vocab, GLOBAL const int *bias_ids, GLOBAL const float *biases, int biases_per_slot,
                       GLOBAL const int *history, int history_stride, GLOBAL int *counts, GLOBAL const uint *masks, GLOBAL int *parts) {
  CANDIDATE_ARRAY float values[2 * GROUP];
  CANDIDATE_ARRAY int ids[GROUP];
  int count = control[CONTROL_ROWS], n_parts = (n_vocab + SLOP_PART - 1) / SLOP_PART, begin = SHARE_BEGIN(n_parts), end = SHARE_END(n_parts);
  for (int r = 0; r < count; r++) {
    if (!rows[r * ROW_INTS + ROW_ACTIVE]) continue;
    int s = rows[r * ROW_INTS + ROW_SLOT];
    GLOBAL const int *slot = slots + s * SLOT_INTS;
    GLOBAL float *logit = logits + (size_t)r * stride;
    adjust(logit, begin * SLOP_PART, min(end * SLOP_PART, n_vocab), slot, rows[r * ROW_INTS + ROW_POSITION], bias_ids + s * biases_per_slot,
           biases + s * biases_per_slot, history + (size_t)s * history_stride, counts + (size_t)r * stride);
    SlopAmounts amounts;
    slop_row_amounts(rows, r, slots, masks, n_vocab, &amounts);
    if (amounts.guard || !amounts.on) continue;  // the hold asks for no sums
    for (int part = begin; part < end; part++)
      slop_part(logit, masks, part * SLOP_PART, min((part + 1) * SLOP_PART, n_vocab), amounts, slot,
                parts + (r * n_parts + part) * SLOP_PART_INTS, values, ids);
  }
}

// Of the draft head's row, for draft number `step`: its state is that of the window's row before it, the drafts so far being its rows.
// head_masks: of the tokens that the head's rows stand for.
KERNEL void slop_draft(GLOBAL const int *head_control, GLOBAL const int *rows, GLOBAL const int *slots, int step, GLOBAL const float *logit,
                       int n_ids, GLOBAL const uint *masks, int n_vocab, GLOBAL const uint *head_masks, GLOBAL int *parts) {
  CANDIDATE_ARRAY float values[2 * GROUP];
  CANDIDATE_ARRAY int ids[GROUP];
  if (head_control[CONTROL_ROWS] == 0) return;
  GLOBAL const int *slot = slots + rows[ROW_SLOT] * SLOT_INTS;
  SlopAmounts amounts;
  slop_row_amounts(rows, step, slots, masks, n_vocab, &amounts);
  if (amounts.guard || !amounts.on) return;
  for (int part = group_id(); part * SLOP_PART < n_ids; part += num_groups())
    slop_part(logit, head_masks, part * SLOP_PART, min((part + 1) * SLOP_PART, n_ids), amounts, slot, parts + part * SLOP_PART_INTS, values, ids);
}
