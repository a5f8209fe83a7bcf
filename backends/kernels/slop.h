// The slop policy on a row of logits: the mirror of backends/decode/slop.py, which is the truth. Its numbers are in slop_tables.h.
//
// A row's state is never stored. A slot holds the state behind the input of its next window's first row, `accept` moves it on by the tokens
// it commits, and whoever needs a row's state steps from there through the window's own tokens: a rejected row leaves nothing to undo.

// Functions give structs through pointers: for one that is returned, compilers leave marks that Oclgrind does not know.
typedef struct { uint first, second, visible; } SlopState;

// One more, up to the most that a byte at `shift` of a word holds.
DEVICE uint slop_more(uint word, int shift) { return (word >> shift & 255u) == SLOP_COUNT_MAX ? word : word + (1u << shift); }
DEVICE uint slop_without(uint word, int shift) { return word & ~(255u << shift); }
#define SLOP_REGION(state) ((state).first >> SLOP_REGION_SHIFT & 255u)
#define SLOP_FLAG(flag) ((uint)(flag) << SLOP_FLAGS_SHIFT)

DEVICE void slop_load(GLOBAL const int *slot, SlopState *s) {
  s->first = (uint)slot[SLOT_SLOP_STATE + SLOP_WORD_FIRST];
  s->second = (uint)slot[SLOT_SLOP_STATE + SLOP_WORD_SECOND];
  s->visible = (uint)slot[SLOT_SLOP_STATE + SLOP_WORD_VISIBLE];
}
DEVICE void slop_store(GLOBAL int *slot, SlopState s) {
  slot[SLOT_SLOP_STATE + SLOP_WORD_FIRST] = (int)s.first;
  slot[SLOT_SLOP_STATE + SLOP_WORD_SECOND] = (int)s.second;
  slot[SLOT_SLOP_STATE + SLOP_WORD_VISIBLE] = (int)s.visible;
}

// Makes the state that behind a token of this class mask; any state and any mask give one.
DEVICE void slop_step(SlopState *s, uint mask) {
  uint was = SLOP_REGION(*s), region = was, first = s->first;
  int at_line_start = (first & SLOP_FLAG(SLOP_LINE_START)) != 0u, visible = (mask & SLOP_VISIBLE) != 0u, newline = (mask & SLOP_NEWLINE) != 0u;
  if (was == SLOP_PROSE) {
    if (mask & SLOP_THINK_OPEN) region = SLOP_THINK;
    else if (mask & SLOP_TOOL_OPEN) region = SLOP_TOOL;
    else if ((mask & SLOP_FENCE) && at_line_start) region = SLOP_FENCED;
  } else if ((was == SLOP_THINK && (mask & SLOP_THINK_CLOSE)) || (was == SLOP_TOOL && (mask & SLOP_TOOL_CLOSE)) ||
             (was == SLOP_FENCED && (mask & SLOP_FENCE) && at_line_start)) {
    region = SLOP_PROSE;
  }
  if (visible && was != SLOP_THINK && !(mask & (SLOP_THINK_OPEN | SLOP_THINK_CLOSE)) && s->visible != 0xffffffffu) s->visible++;
  s->second &= 0x0000ffffu;  // the reserved half stays 0
  if (was == SLOP_PROSE && region == SLOP_PROSE) {
    if (mask & SLOP_DASH) first = slop_more(first, SLOP_DASHES_SHIFT);
    if ((mask & SLOP_BULLET) && at_line_start) first |= SLOP_FLAG(SLOP_BULLET_LINE);
    if ((mask & SLOP_HEADING) && at_line_start) s->second = slop_more(s->second, SLOP_HEADINGS_SHIFT);
    if (mask & SLOP_BOLD) {
      if (!(first & SLOP_FLAG(SLOP_BOLD_OPEN))) s->second = slop_more(s->second, SLOP_BOLDS_SHIFT);
      first ^= SLOP_FLAG(SLOP_BOLD_OPEN);
    }
    if (newline) {
      int empty = at_line_start && !visible;
      if (!empty) {
        if (first & SLOP_FLAG(SLOP_BULLET_LINE)) first = slop_more(first, SLOP_BULLET_RUN_SHIFT);
        else first = slop_without(first, SLOP_BULLET_RUN_SHIFT);
      }
      if (empty || (mask & SLOP_BLANK)) {
        first = slop_without(first, SLOP_DASHES_SHIFT) & ~SLOP_FLAG(SLOP_BOLD_OPEN);
        s->second = slop_without(s->second, SLOP_BOLDS_SHIFT);
      }
    }
  }
  if (newline) {
    first = (first | SLOP_FLAG(SLOP_LINE_START | SLOP_CLAUSE_START)) & ~SLOP_FLAG(SLOP_BULLET_LINE);
  } else if (visible) {
    first &= ~SLOP_FLAG(SLOP_LINE_START | SLOP_CLAUSE_START);
    if (mask & SLOP_CLAUSE) first |= SLOP_FLAG(SLOP_CLAUSE_START);
  }
  s->first = slop_without(first, SLOP_REGION_SHIFT) | region << SLOP_REGION_SHIFT;
}

// The class mask of a token; ids that are no token have none.
DEVICE uint slop_mask(GLOBAL const uint *masks, int n_vocab, int id) { return id >= 0 && id < n_vocab ? masks[id] : 0u; }

// The state behind row r's input token.
DEVICE void slop_row_state(GLOBAL const int *rows, int r, GLOBAL const int *slots, GLOBAL const uint *masks, int n_vocab, SlopState *state) {
  int s = rows[r * ROW_INTS + ROW_SLOT], first = r;
  while (first > 0 && rows[(first - 1) * ROW_INTS + ROW_SLOT] == s) first--;
  slop_load(slots + s * SLOT_INTS, state);
#pragma unroll 1
  while (first < r) slop_step(state, slop_mask(masks, n_vocab, rows[++first * ROW_INTS + ROW_TOKEN]));
}

// What each class costs in one state. acts: the classes that cost anything. on: whether there is anything to hold for; guard: there is nothing
// to read yet, so nothing may end.
typedef struct { float dash, bullet, heading, bold, lexical, opener; uint acts; int on, guard; } SlopAmounts;

DEVICE void slop_amounts(SlopState state, GLOBAL const int *slot, SlopAmounts *a) {
  float dash = AS_F_1(slot[SLOT_SLOP_KNOBS + SLOP_KNOB_DASH]), lexical = AS_F_1(slot[SLOT_SLOP_KNOBS + SLOP_KNOB_LEXICAL]);
  float structure = AS_F_1(slot[SLOT_SLOP_KNOBS + SLOP_KNOB_STRUCTURE]), opener = AS_F_1(slot[SLOT_SLOP_KNOBS + SLOP_KNOB_OPENER]);
  uint flags = state.first >> SLOP_FLAGS_SHIFT & 255u;
  int prose = SLOP_REGION(state) == SLOP_PROSE, line = prose && (flags & SLOP_LINE_START), clause = prose && (flags & SLOP_CLAUSE_START);
  a->dash = prose ? dash * (float)(1u + (state.first >> SLOP_DASHES_SHIFT & 255u)) : 0.0f;
  a->bullet = line ? structure * (float)(state.first >> SLOP_BULLET_RUN_SHIFT & 255u) : 0.0f;
  a->heading = line ? structure * (float)(1u + (state.second >> SLOP_HEADINGS_SHIFT & 255u)) : 0.0f;
  a->bold = prose && !(flags & SLOP_BOLD_OPEN) ? structure * (float)(1u + (state.second >> SLOP_BOLDS_SHIFT & 255u)) : 0.0f;
  a->lexical = prose ? lexical : 0.0f;
  a->opener = prose && state.visible == 0u ? opener : clause ? 0.5f * opener : 0.0f;
  a->acts = (a->dash > 0.0f ? SLOP_DASH : 0u) | (a->bullet > 0.0f ? SLOP_BULLET : 0u) | (a->heading > 0.0f ? SLOP_HEADING : 0u) |
           (a->bold > 0.0f ? SLOP_BOLD : 0u) | (a->lexical > 0.0f ? SLOP_LEXICAL | SLOP_EMOJI : 0u) | (a->opener > 0.0f ? SLOP_OPENER : 0u);
  int any = dash > 0.0f || lexical > 0.0f || structure > 0.0f || opener > 0.0f;
  a->on = any && prose;
  a->guard = any && state.visible == 0u;
}

DEVICE void slop_row_amounts(GLOBAL const int *rows, int r, GLOBAL const int *slots, GLOBAL const uint *masks, int n_vocab, SlopAmounts *a) {
  SlopState state;
  slop_row_state(rows, r, slots, masks, n_vocab, &state);
  slop_amounts(state, slots + rows[r * ROW_INTS + ROW_SLOT] * SLOT_INTS, a);
}

#define SLOP_IF(bit, cost) ((mask & (uint)(bit)) != (VU)(0u) ? (VF)(cost) : (VF)(0.0f))

// What ids with these masks lose, in the order of the bits; those that are held lose nothing here.
DEVICE VF slop_lowered(VU mask, SlopAmounts a) {
  VF sum = SLOP_IF(SLOP_DASH, a.dash);
  sum += SLOP_IF(SLOP_BULLET, a.bullet);
  sum += SLOP_IF(SLOP_HEADING, a.heading);
  sum += SLOP_IF(SLOP_BOLD, a.bold);
  sum += SLOP_IF(SLOP_LEXICAL, a.lexical);
  sum += SLOP_IF(SLOP_OPENER, a.opener);
  sum += SLOP_IF(SLOP_EMOJI, a.lexical);
  sum = sum > (VF)(SLOP_CAP) ? (VF)(SLOP_CAP) : sum;
  return (mask & (uint)SLOP_END) != (VU)(0u) ? (VF)(0.0f) : sum;
}

// The hold: penalties must not make ending likelier. Over the ids that are not held, with l their logits and a what they lose, held ones are
// lowered by c = T log(Q / Q'), where Q sums exp(l / T), and Q' sums exp((l - a) / T). Q - Q' is summed by itself, as little of it is left
// between two sums where the temperature is high. Parts of the vocabulary are fixed, and merged in order. A part's terms are taken relative
// to the logit of its first id, which saves finding the largest first. Where that is so far from the largest that a sum leaves
// 1/SLOP_FAR..SLOP_FAR, they are taken again, relative to the largest; those of Q' to their own, where that is much smaller: so neither sum is
// ever 0, however cold the temperature.
#define SLOP_TOP 0            // of a part, if greedy: largest l of ids not held, its id; the same of held ids (float bits)
#define SLOP_TOP_ID 1
#define SLOP_HELD_TOP 2
#define SLOP_HELD_ID 3
#define SLOP_FROM 4           // what the terms of Q are relative to, Q - Q'; what those of Q' are relative to, Q' (float bits)
#define SLOP_LOST 5
#define SLOP_LEFT_FROM 6
#define SLOP_LEFT 7
#define SLOP_ANY_ID 0x7fffffff
#define SLOP_FAR 1e12f
#define SLOP_ITEMS (LANES * GROUP)

// Merges two floats of every work-item, which all get the results; values: 2 * GROUP.
#if LANES == 1
#define SLOP_MERGE(name, merged) \
DEVICE void name(float *x, float *y, WORK_ARRAY float *values) { \
  values[local_id()] = *x; values[GROUP + local_id()] = *y; \
  BARRIER(); \
  for (int half_way = GROUP / 2; half_way > 0; half_way /= 2) { \
    if (local_id() < half_way) { \
      float a = values[local_id()], b = values[local_id() + half_way]; \
      values[local_id()] = merged; \
      a = values[GROUP + local_id()]; b = values[GROUP + local_id() + half_way]; \
      values[GROUP + local_id()] = merged; \
    } \
    BARRIER(); \
  } \
  *x = values[0]; *y = values[GROUP]; \
  BARRIER(); }
#else
#define SLOP_MERGE(name, merged) DEVICE void name(float *x, float *y, WORK_ARRAY float *values) {}
#endif
SLOP_MERGE(slop_merge_sums, a + b)
SLOP_MERGE(slop_merge_tops, a > b ? a : b)

// The largest of every work-item's values and the lowest id that has it, in every work-item.
DEVICE int slop_merge_ids(VF v, VI id, float *top, WORK_ARRAY float *values, WORK_ARRAY int *ids) {
#if LANES == 1
  values[local_id()] = v;
  ids[local_id()] = id;
  BARRIER();
  for (int half_way = GROUP / 2; half_way > 0; half_way /= 2) {
    int other = local_id() + half_way;
    if (local_id() < half_way && (values[other] > values[local_id()] || (values[other] == values[local_id()] && ids[other] < ids[local_id()]))) {
      values[local_id()] = values[other];
      ids[local_id()] = ids[other];
    }
    BARRIER();
  }
  int found = ids[0];
  *top = values[0];
  BARRIER();
  return found;
#else
  *top = hmax(v);
  return -hmax_int(v == (VF)(*top) ? -id : (VI)(-SLOP_ANY_ID));
#endif
}

// What the exponents are divided by: 1 for greedy picks. So cold a temperature that its inverse is infinite keeps the largest only, as this does.
DEVICE float slop_temperature(GLOBAL const int *slot) {
  float t = AS_F_1(slot[SLOT_TEMPERATURE]);
  return t > 0.0f ? (t < 1e-30f ? 1e-30f : t) : 1.0f;
}

// What a pass over a part finds: Q' and Q - Q', of terms relative to `left_from` and `from`, which must be finite; if greedy, a work-item's tops.
// apart: these two may differ, and `lost` is Q.
typedef struct { VF top, held_top; VI top_id, held_id; float from, lost, left_from, left; } SlopPart;

DEVICE void slop_pass(GLOBAL const float *logit, GLOBAL const uint *masks, int begin, int end, SlopAmounts a, float inverse, int greedy,
                      int apart, SlopPart *part, WORK_ARRAY float *values) {
  VF lost = (VF)(0.0f), left = (VF)(0.0f), top = (VF)(-INFINITY), held_top = (VF)(-INFINITY);
  VI top_id = (VI)(SLOP_ANY_ID), held_id = (VI)(SLOP_ANY_ID);
  float from = part->from, left_from = part->left_from;
  for (int at = begin + local_id() * LANES; at < end; at += SLOP_ITEMS) {
    VF v = LOAD_AT(logit, at);
    VU mask = LOAD_AT(masks, at);
    VI id = LANE_IDS + at, inside = id < (VI)(end), held = (mask & (uint)SLOP_END) != (VU)(0u), counts = inside & (held == 0);
    VF e = m_exp((v - (VF)(from)) * (VF)(inverse));
    if (apart || ANY((mask & a.acts) != (VU)(0u))) {  // few vectors hold an id that loses anything
      VF amount = slop_lowered(mask, a), share = m_exp((apart ? v - amount - (VF)(left_from) : -amount) * (VF)(inverse));
      lost += counts ? (apart ? e : e * ((VF)(1.0f) - share)) : (VF)(0.0f);
      e = apart ? share : e * share;
    }
    left += counts ? e : (VF)(0.0f);
    if (!greedy) continue;
    VI better = (v > top) & counts;
    top = better ? v : top;
    top_id = better ? id : top_id;
    if (!ANY(held)) continue;
    better = (v > held_top) & inside & held;
    held_top = better ? v : held_top;
    held_id = better ? id : held_id;
  }
  part->top = top;
  part->top_id = top_id;
  part->held_top = held_top;
  part->held_id = held_id;
  part->lost = hsum(lost);
  part->left = hsum(left);
  slop_merge_sums(&part->lost, &part->left, values);
}

#define SLOP_NEAR(sum) ((sum) >= 1.0f / SLOP_FAR && (sum) <= SLOP_FAR)

// A part of a row: ids begin..end-1, of at most SLOP_PART. values: 2 * GROUP.
DEVICE void slop_part(GLOBAL const float *logit, GLOBAL const uint *masks, int begin, int end, SlopAmounts a, GLOBAL const int *slot,
                      GLOBAL int *out, WORK_ARRAY float *values, WORK_ARRAY int *ids) {
  int greedy = AS_F_1(slot[SLOT_TEMPERATURE]) <= 0.0f, top_id = SLOP_ANY_ID, held_id = SLOP_ANY_ID;
  float inverse = m_div_1(1.0f, slop_temperature(slot)), top = -INFINITY, held_top = -INFINITY;
  SlopPart part;
  part.from = part.left_from = logit[begin];
  slop_pass(logit, masks, begin, end, a, inverse, greedy, 0, &part, values);
  if (greedy) {
    top_id = slop_merge_ids(part.top, part.top_id, &top, values, ids);
    held_id = slop_merge_ids(part.held_top, part.held_id, &held_top, values, ids);
  }
  if (!SLOP_NEAR(part.left) || !SLOP_NEAR(part.left + part.lost)) {
    VF best = (VF)(-INFINITY), low_best = (VF)(-INFINITY);
    for (int at = begin + local_id() * LANES; at < end; at += SLOP_ITEMS) {
      VF v = LOAD_AT(logit, at);
      VU mask = LOAD_AT(masks, at);
      VI counts = (LANE_IDS + at < (VI)(end)) & ((mask & (uint)SLOP_END) == (VU)(0u));
      best = ((v > best) & counts) ? v : best;
      v = v - slop_lowered(mask, a);
      low_best = ((v > low_best) & counts) ? v : low_best;
    }
    part.from = hmax(best);
    part.left_from = hmax(low_best);
    slop_merge_tops(&part.from, &part.left_from, values);
    float largest_left = part.left_from;
    part.left_from = part.from;
    part.lost = part.left = 0.0f;
    if (part.from > -INFINITY) slop_pass(logit, masks, begin, end, a, inverse, 0, 0, &part, values);
    if (part.from > -INFINITY && !SLOP_NEAR(part.left)) {
      part.left_from = largest_left;
      slop_pass(logit, masks, begin, end, a, inverse, 0, 1, &part, values);
      part.lost -= part.left * m_exp_1((part.left_from - part.from) * inverse);
    }
  }
  if (local_id() == 0) {
    if (greedy) {
      out[SLOP_TOP] = AS_I_1(top);
      out[SLOP_TOP_ID] = top_id;
      out[SLOP_HELD_TOP] = AS_I_1(held_top);
      out[SLOP_HELD_ID] = held_id;
    }
    out[SLOP_FROM] = AS_I_1(part.from);
    out[SLOP_LOST] = AS_I_1(part.lost);
    out[SLOP_LEFT_FROM] = AS_I_1(part.left_from);
    out[SLOP_LEFT] = AS_I_1(part.left);
  }
}

// What held ids lose in this row, from its parts; everything where nothing may end, and where a greedy pick was not to end without the policy.
DEVICE float slop_hold(GLOBAL const int *parts, int n_parts, GLOBAL const int *slot, SlopAmounts a, WORK_ARRAY float *values) {
  float from = -INFINITY, left_from = -INFINITY, temperature = slop_temperature(slot), lost = 0.0f, left = 0.0f;
  if (a.guard) return INFINITY;
  if (!a.on) return 0.0f;
  if (AS_F_1(slot[SLOT_TEMPERATURE]) <= 0.0f) {
    float top = -INFINITY, held_top = -INFINITY;
    int top_id = SLOP_ANY_ID, held_id = SLOP_ANY_ID;
#pragma unroll 1
    for (int i = 0; i < n_parts; i++) {
      GLOBAL const int *part = parts + i * SLOP_PART_INTS;
      float v = AS_F_1(part[SLOP_TOP]), h = AS_F_1(part[SLOP_HELD_TOP]);
      if (v > top) { top = v; top_id = part[SLOP_TOP_ID]; }
      if (h > held_top) { held_top = h; held_id = part[SLOP_HELD_ID]; }
    }
    if (top > held_top || (top == held_top && top_id < held_id)) return INFINITY;
  }
#pragma unroll 1
  for (int i = 0; i < n_parts; i++) {
    GLOBAL const int *part = parts + i * SLOP_PART_INTS;
    float v = AS_F_1(part[SLOP_FROM]), low = AS_F_1(part[SLOP_LEFT_FROM]);
    from = v > from ? v : from;
    left_from = low > left_from ? low : left_from;
  }
  if (from == -INFINITY) return 0.0f;
  float inverse = m_div_1(1.0f, temperature);
#pragma unroll 1
  for (int first = 0; first < n_parts; first += GROUP) {
    int i = first + local_id();
    if (i < n_parts) {
      GLOBAL const int *part = parts + i * SLOP_PART_INTS;
      float v = AS_F_1(part[SLOP_FROM]), low = AS_F_1(part[SLOP_LEFT_FROM]);
      values[local_id()] = v > -INFINITY ? AS_F_1(part[SLOP_LOST]) * m_exp_1((v - from) * inverse) : 0.0f;
      values[GROUP + local_id()] = v > -INFINITY ? AS_F_1(part[SLOP_LEFT]) * m_exp_1((low - left_from) * inverse) : 0.0f;
    }
    BARRIER();
#pragma unroll 1
    for (int j = 0; j < GROUP && first + j < n_parts; j++) {
      lost += values[j];
      left += values[GROUP + j];
    }
    BARRIER();
  }
  if (from == left_from) return temperature * m_log1p_1(m_div_1(lost, left));
  return (from - left_from) + temperature * (m_log_1(lost + left * m_exp_1((left_from - from) * inverse)) - m_log_1(left));
}

// A row's logits after the policy. A NaN or an infinity above stays no number, so that it is still found.
DEVICE VF slop_applied(VF v, VU mask, SlopAmounts a, float hold) {
  if (!ANY((mask & (a.acts | SLOP_END)) != (VU)(0u))) return v;
  VF lowered = slop_lowered(mask, a);
  return v - ((mask & (uint)SLOP_END) != (VU)(0u) ? (VF)(hold) : lowered);
}
