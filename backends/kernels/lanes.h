// What a lane type can do beyond arithmetic: loads, stores, reductions in one fixed order. LANES is 16 (CPU shape: one work-item
// carries 16 values in a vector) or 1 (GPU shape).
#if LANES == 16
#define LOADF(p, i) vload16(i, p)
#define STOREF(v, p, i) vstore16(v, i, p)
#define LOADU(p, i) vload16(i, p)
#define LOADH(p, i) vload_half16(i, p)
#define STOREH(v, p, i) vstore_half16_rte(v, i, (GLOBAL half *)(p))
#define LANE_IDS ((VI)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define TO_CHARS(v) convert_char16(v)
#define TO_SHORTS(v) convert_short16(v)
DEVICE float hsum(VF v) { float8 a = v.lo + v.hi; float4 b = a.lo + a.hi; float2 c = b.lo + b.hi; return c.x + c.y; }
DEVICE float hmax(VF v) {
  float8 a = v.lo > v.hi ? v.lo : v.hi; float4 b = a.lo > a.hi ? a.lo : a.hi; float2 c = b.lo > b.hi ? b.lo : b.hi;
  return c.x > c.y ? c.x : c.y;
}
DEVICE int hsum_int(VI v) { int8 a = v.lo + v.hi; int4 b = a.lo + a.hi; int2 c = b.lo + b.hi; return c.x + c.y; }
DEVICE int hmax_int(VI v) { int8 a = max(v.lo, v.hi); int4 b = max(a.lo, a.hi); int2 c = max(b.lo, b.hi); return max(c.x, c.y); }
DEVICE ULONG hsum_long(ulong16 v) { ulong8 a = v.lo + v.hi; ulong4 b = a.lo + a.hi; ulong2 c = b.lo + b.hi; return c.x + c.y; }
#define VL ulong16
#define TO_VL(v) convert_ulong16(v)
#define ANY(mask) any(mask)
// Appends the lanes of v that are in `mask`, and their ids from `at` on, to a list of *count; a list's order is not a device's promise.
#define COLLECT(mask, v, at, list, ids, count) { \
  float lane_[16]; int in_[16]; \
  vstore16(v, 0, lane_); vstore16(mask, 0, in_); \
  for (int j_ = 0; j_ < 16; j_++) if (in_[j_]) { (list)[*(count)] = lane_[j_]; (ids)[(*(count))++] = (at) + j_; } }
// Words of four counters for each lane's counter, as the words of ids: the 4 * LANES ids from a multiple of 4 on, in 4 vectors.
#define IDS_WORDS_(a, b, c, d) ((VU)(w[0].s##a, w[1].s##a, w[2].s##a, w[3].s##a, w[0].s##b, w[1].s##b, w[2].s##b, w[3].s##b, \
  w[0].s##c, w[1].s##c, w[2].s##c, w[3].s##c, w[0].s##d, w[1].s##d, w[2].s##d, w[3].s##d))
DEVICE void words_by_id(VU *w) {
  VU first = IDS_WORDS_(0, 1, 2, 3), second = IDS_WORDS_(4, 5, 6, 7), third = IDS_WORDS_(8, 9, a, b), fourth = IDS_WORDS_(c, d, e, f);
  w[0] = first; w[1] = second; w[2] = third; w[3] = fourth;
}
#define WORK_ARRAY
// A work-group is one work-item, which no other shares its part with.
#undef ATOMIC_INC
#undef ATOMIC_TAKE
#define ATOMIC_INC(p) ((*(p))++)
#define ATOMIC_TAKE(p) take(p)
DEVICE int take(GLOBAL int *p) { int old = *p; *p = 0; return old; }
// A kernel's work-items as its text sees them: here one, which carries all 16 lanes.
#define ITEM(lane, split) const int lane = 0, split = 0;
#define SPLITS 1
#define SWAPPED(v, partner) ((v).s1032547698badcfe)
DEVICE void store_apart(VF v, GLOBAL half *p, int stride) {
  float lane[16];
  vstore16(v, 0, lane);
  for (int j = 0; j < 16; j++) vstore_half_rte(lane[j], j * stride, p);
}
#define STOREH_APART(v, p, stride) store_apart(v, p, stride)
#define LOAD_AT(p, i) vload16(0, (p) + (i))
#define STORE_AT(v, p, i) vstore16(v, 0, (p) + (i))
#define CANDIDATE_ARRAY
#define BARRIER_GLOBAL()
#undef BARRIER
#define BARRIER()
#define FOR_SHARE(i, count) for (int i = SHARE_BEGIN(count); i < SHARE_END(count); i++)
#else
// The 16-wide elements i of an interleaved array: this work-item's one.
#define LOADF(p, i) ((p)[(i) * 16 + lane])
#define STOREF(v, p, i) ((p)[(i) * 16 + lane] = (v))
#define LOADU(p, i) ((p)[(i) * 16 + lane])
#define LOADH(p, i) load_half((i) * 16 + lane, p)
#define STOREH(v, p, i) store_half(v, (i) * 16 + lane, p)
#define STOREH_APART(v, p, stride) store_half(v, lane * (stride), p)
#define SWAPPED(v, partner) (partner)
#define ITEM(lane, split) const int lane = local_id() % 16, split = local_id() / 16;
// 16 work-items carry the rows of a row block, SPLITS such teams take its k blocks in turn; their sums are merged in order.
#define SPLITS (GROUP / 16)
#define LANE_IDS 0
#define LOAD_AT(p, i) ((p)[i])
#define STORE_AT(v, p, i) ((p)[i] = (v))
#define CANDIDATE_ARRAY LOCAL_ARRAY
#define WORK_ARRAY LOCAL
#define VL ULONG
#define TO_VL(v) ((ULONG)(v))
#define words_by_id(w)
#define hsum(v) (v)
#define hsum_long(v) (v)
#define hsum_int(v) (v)
#define hmax(v) (v)
#define ANY(mask) (mask)
#define COLLECT(mask, v, at, list, ids, count) { int j_ = ATOMIC_INC_LOCAL(count); (list)[j_] = (v); (ids)[j_] = (at); }
#define FOR_SHARE(i, count) for (int i = group_id() * local_size() + local_id(); i < (count); i += num_groups() * local_size())
#endif
// Splits `count` items over the work-groups of a launch; which group computes an item never changes the item.
#define SHARE_BEGIN(count) ((int)((LONG)(count) * group_id() / num_groups()))
#define SHARE_END(count) ((int)((LONG)(count) * (group_id() + 1) / num_groups()))
// Weight streams are read once: asking for lines this far ahead keeps memory busy (measured: a quarter more speed on a CPU).
#define PREFETCH_AHEAD 160
#define PREFETCH_LINES(p, n) { _Pragma("unroll") for (int ahead_ = 0; ahead_ < (n); ahead_++) PREFETCH((p) + (PREFETCH_AHEAD + ahead_) * 16); }
