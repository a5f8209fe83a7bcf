// Up to TILE rows of a mat-vec for one 16-row block of W: acc[t] = W x[t], or with several teams of work-items a team's part of it. One
// body per row count, so that a count is no branch inside.
#define CASE(n) case n: gemv(n, w, nk, a, lane, split, acc); break;

DEVICE void tile(int R, GLOBAL const uchar *w, int nk, Activation a, int lane, int split, VF *acc) {
  switch (R) {
    CASE(1)
#if TILE > 1
    CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#endif
  }
}

// The teams' parts become sums: MERGE for the R rows of `part` (a matrix of up to two), then MERGED(part, t, lane) is the whole of row t,
// the same for every work-item that asks. Row t is its team's to finish: t = split, split + SPLITS, ...
#if LANES == 16
#define TILE_LOCALS
#define MERGE(part, acc, R)
#define MERGED(part, acc, t, lane) (acc[part][t])
#define MERGE_BARRIER()
#else
#define TILE_LOCALS LOCAL_ARRAY float merge_[2 * TILE * GROUP];
#define MERGE(part, acc, R) for (int t_ = 0; t_ < (R); t_++) merge_[((part) * TILE + t_) * GROUP + local_id()] = acc[part][t_];
#define MERGED(part, acc, t, lane) merged(merge_ + ((part) * TILE + (t)) * GROUP + (lane))
#define MERGE_BARRIER() BARRIER()
DEVICE float merged(LOCAL const float *parts) {
  float sum = parts[0];
  for (int s = 1; s < SPLITS; s++) sum += parts[s * 16];
  return sum;
}
#endif
