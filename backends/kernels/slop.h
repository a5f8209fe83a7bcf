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
// lowered by c = T log(sum exp(l / T) / sum exp((l - a) / T)). Both sums are taken relative to their own largest term, so neither is ever 0,
// however cold the temperature. Parts of the vocabulary are fixed, and merged in order.
#define SLOP_TOP 0            // of a part: largest l of ids not held, its id; the same of held ids; sum; largest l - a, its sum (float bits)
#define SLOP_TOP_ID 1
#define SLOP_HELD_TOP 2
#define SLOP_HELD_ID 3
#define SLOP_SUM 4
#define SLOP_LOWERED_TOP 5
#define SLOP_LOWERED_SUM 6
#define SLOP_ANY_ID 0x7fffffff
#define SLOP_ITEMS (LANES * GROUP)

// What the exponents are divided by: 1 for greedy picks. So cold a temperature that its inverse is infinite keeps the largest only, as this does.
DEVICE float slop_temperature(GLOBAL const int *slot) {
  float t = AS_F_1(slot[SLOT_TEMPERATURE]);
  return t > 0.0f ? (t < 1e-30f ? 1e-30f : t) : 1.0f;
}

// A part of a row: ids begin..end-1, of at most SLOP_PART.
DEVICE void slop_part(GLOBAL const float *logit, GLOBAL const uint *masks, int begin, int end, SlopAmounts a, GLOBAL const int *slot,
                      GLOBAL int *out, WORK_ARRAY float *values, WORK_ARRAY int *ids) {
  VF top = (VF)(-INFINITY), held_top = (VF)(-INFINITY), low_top = (VF)(-INFINITY);
  VI top_id = (VI)(SLOP_ANY_ID), held_id = (VI)(SLOP_ANY_ID);
  for (int at = begin + local_id() * LANES; at < end; at += SLOP_ITEMS) {
    VI id = LANE_IDS + at, inside = id < (VI)(end);
    VF v = LOAD_AT(logit, at);
    VU mask = LOAD_AT(masks, at);
    VI held = (mask & (uint)SLOP_END) != (VU)(0u), counts = inside & (held == 0), better = (v > top) & counts;
    top = better ? v : top;
    top_id = better ? id : top_id;
    better = (v > held_top) & held & inside;
    held_top = better ? v : held_top;
    held_id = better ? id : held_id;
    if (ANY((mask & a.acts) != (VU)(0u))) v = v - slop_lowered(mask, a);  // few vectors hold an id that costs anything
    better = (v > low_top) & counts;
    low_top = better ? v : low_top;
  }
  STORE_AT(top, values, local_id() * LANES);
  STORE_AT(held_top, values, SLOP_ITEMS + local_id() * LANES);
  STORE_AT(low_top, values, 2 * SLOP_ITEMS + local_id() * LANES);
  STORE_AT(top_id, ids, local_id() * LANES);
  STORE_AT(held_id, ids, SLOP_ITEMS + local_id() * LANES);
  BARRIER();
  float best = values[0], held_best = values[SLOP_ITEMS], low_best = values[2 * SLOP_ITEMS];
  int best_id = ids[0], held_best_id = ids[SLOP_ITEMS];
#pragma unroll 1
  for (int i = 1; i < SLOP_ITEMS; i++) {
    float v = values[i], h = values[SLOP_ITEMS + i], low = values[2 * SLOP_ITEMS + i];
    int better = v > best || (v == best && ids[i] < best_id);
    best = better ? v : best;
    best_id = better ? ids[i] : best_id;
    better = h > held_best || (h == held_best && ids[SLOP_ITEMS + i] < held_best_id);
    held_best = better ? h : held_best;
    held_best_id = better ? ids[SLOP_ITEMS + i] : held_best_id;
    low_best = low > low_best ? low : low_best;
  }
  BARRIER();
  VF sum = (VF)(0.0f), low_sum = (VF)(0.0f);
  float inverse = m_div_1(1.0f, slop_temperature(slot));
  for (int at = begin + local_id() * LANES; at < end; at += SLOP_ITEMS) {
    VF v = LOAD_AT(logit, at);
    VU mask = LOAD_AT(masks, at);
    VI counts = (LANE_IDS + at < (VI)(end)) & ((mask & (uint)SLOP_END) == (VU)(0u)) & (v > (VF)(-INFINITY));
    VF e = m_exp((v - (VF)(best)) * (VF)(inverse)), low = e;
    // Where nothing is lowered, the second sum's terms are the first's.
    if (low_best != best || ANY((mask & a.acts) != (VU)(0u)))
      low = m_exp((v - slop_lowered(mask, a) - (VF)(low_best)) * (VF)(inverse));
    sum += counts ? e : (VF)(0.0f);
    low_sum += counts ? low : (VF)(0.0f);
  }
  STORE_AT(sum, values, local_id() * LANES);
  STORE_AT(low_sum, values, SLOP_ITEMS + local_id() * LANES);
  BARRIER();
  if (local_id() == 0) {
    float total = 0.0f, low_total = 0.0f;
#pragma unroll 1
    for (int i = 0; i < SLOP_ITEMS; i++) {
      total += values[i];
      low_total += values[SLOP_ITEMS + i];
    }
    out[SLOP_TOP] = AS_I_1(best);
    out[SLOP_TOP_ID] = best_id;
    out[SLOP_HELD_TOP] = AS_I_1(held_best);
    out[SLOP_HELD_ID] = held_best_id;
    out[SLOP_SUM] = AS_I_1(total);
    out[SLOP_LOWERED_TOP] = AS_I_1(low_best);
    out[SLOP_LOWERED_SUM] = AS_I_1(low_total);
  }
  BARRIER();
}

// What held ids lose in this row, from its parts; everything where nothing may end, and where a greedy pick was not to end without the policy.
DEVICE float slop_hold(GLOBAL const int *parts, int n_parts, GLOBAL const int *slot, SlopAmounts a, WORK_ARRAY float *values) {
  float top = -INFINITY, held_top = -INFINITY, low_top = -INFINITY, temperature = slop_temperature(slot), sum = 0.0f, low_sum = 0.0f;
  int top_id = SLOP_ANY_ID, held_id = SLOP_ANY_ID;
  if (a.guard) return INFINITY;
  if (!a.on) return 0.0f;
#pragma unroll 1
  for (int i = 0; i < n_parts; i++) {
    GLOBAL const int *part = parts + i * SLOP_PART_INTS;
    float v = AS_F_1(part[SLOP_TOP]), h = AS_F_1(part[SLOP_HELD_TOP]), low = AS_F_1(part[SLOP_LOWERED_TOP]);
    if (v > top) { top = v; top_id = part[SLOP_TOP_ID]; }
    if (h > held_top) { held_top = h; held_id = part[SLOP_HELD_ID]; }
    low_top = low > low_top ? low : low_top;
  }
  if (AS_F_1(slot[SLOT_TEMPERATURE]) <= 0.0f && (top > held_top || (top == held_top && top_id < held_id))) return INFINITY;
  if (top == -INFINITY) return 0.0f;
  float inverse = m_div_1(1.0f, temperature);
#pragma unroll 1
  for (int first = 0; first < n_parts; first += GROUP) {
    int i = first + local_id();
    if (i < n_parts) {
      GLOBAL const int *part = parts + i * SLOP_PART_INTS;
      float v = AS_F_1(part[SLOP_TOP]), low = AS_F_1(part[SLOP_LOWERED_TOP]);
      values[local_id()] = v > -INFINITY ? AS_F_1(part[SLOP_SUM]) * m_exp_1((v - top) * inverse) : 0.0f;
      values[GROUP + local_id()] = v > -INFINITY ? AS_F_1(part[SLOP_LOWERED_SUM]) * m_exp_1((low - low_top) * inverse) : 0.0f;
    }
    BARRIER();
#pragma unroll 1
    for (int j = 0; j < GROUP && first + j < n_parts; j++) {
      sum += values[j];
      low_sum += values[GROUP + j];
    }
    BARRIER();
  }
  return (top - low_top) + temperature * (m_log_1(sum) - m_log_1(low_sum));
}

// A row's logits after the policy. A NaN or an infinity above stays no number, so that it is still found.
DEVICE VF slop_applied(VF v, VU mask, SlopAmounts a, float hold) {
  if (!ANY((mask & (a.acts | SLOP_END)) != (VU)(0u))) return v;
  VF lowered = slop_lowered(mask, a);
  return v - ((mask & (uint)SLOP_END) != (VU)(0u) ? (VF)(hold) : lowered);
}
