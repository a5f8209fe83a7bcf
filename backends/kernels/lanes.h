// What a lane type can do beyond arithmetic: loads, stores, reductions in one fixed order. LANES is 16 (CPU shape: one work-item
// carries 16 values in a vector) or 1 (GPU shape).
#if LANES == 16
#define LOADF(p, i) vload16(i, p)
#define STOREF(v, p, i) vstore16(v, i, p)
#define LOADU(p, i) vload16(i, p)
#define LOADH(p, i) vload_half16(i, (GLOBAL const half *)(p))
#define STOREH(v, p, i) vstore_half16_rte(v, i, (GLOBAL half *)(p))
#define LANE_IDS ((VI)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define SWAP_PAIRS(v) ((v).s1032547698badcfe)
#define TO_CHARS(v) convert_char16(v)
#define TO_SHORTS(v) convert_short16(v)
DEVICE float hsum(VF v) { float8 a = v.lo + v.hi; float4 b = a.lo + a.hi; float2 c = b.lo + b.hi; return c.x + c.y; }
DEVICE float hmax(VF v) {
  float8 a = v.lo > v.hi ? v.lo : v.hi; float4 b = a.lo > a.hi ? a.lo : a.hi; float2 c = b.lo > b.hi ? b.lo : b.hi;
  return c.x > c.y ? c.x : c.y;
}
DEVICE int hsum_int(VI v) { int8 a = v.lo + v.hi; int4 b = a.lo + a.hi; int2 c = b.lo + b.hi; return c.x + c.y; }
DEVICE int hmax_int(VI v) { int8 a = max(v.lo, v.hi); int4 b = max(a.lo, a.hi); int2 c = max(b.lo, b.hi); return max(c.x, c.y); }
#endif
// Splits `count` items over the work-groups of a launch; which group computes an item never changes the item.
#define SHARE_BEGIN(count) ((int)((long)(count) * group_id() / num_groups()))
#define SHARE_END(count) ((int)((long)(count) * (group_id() + 1) / num_groups()))
// Weight streams are read once: asking for lines this far ahead keeps memory busy (measured: a quarter more speed on a CPU).
#define PREFETCH_AHEAD 160
#define PREFETCH_LINES(p, n) { _Pragma("unroll") for (int ahead_ = 0; ahead_ < (n); ahead_++) PREFETCH((p) + (PREFETCH_AHEAD + ahead_) * 16); }
