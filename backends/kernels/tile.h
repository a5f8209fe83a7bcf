// Up to TILE rows of a mat-vec for one 16-row block of W: acc[t] = W x[t]. One body per row count, so that a count is no branch inside.
#define CASE(n) case n: gemv(n, w, nk, a, acc); break;

DEVICE void tile(int R, GLOBAL const uchar *w, int nk, Activation a, VF *acc) {
  for (int t = 0; t < TILE; t++) acc[t] = (VF)(0.0f);
  switch (R) {
    CASE(1)
#if TILE > 1
    CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#endif
  }
}
