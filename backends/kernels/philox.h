// Random words and Gumbel noise: a template like math.h, which must come before it. MUL_HI is the high half of a 32 x 32 bit product,
// U_TO_F converts unsigned integers to float (nearest even).

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): `word` holds the counter and
// becomes the random words.
DEVICE void FN(philox_rounds)(U *word, uint k0, uint k1) {
  for (int i = 0; i < 10; i++) {
    U high0 = MUL_HI((U)(0xd2511f53u), word[0]), low0 = word[0] * 0xd2511f53u;
    U high1 = MUL_HI((U)(0xcd9e8d57u), word[2]), low1 = word[2] * 0xcd9e8d57u;
    word[0] = high1 ^ word[1] ^ (U)(k0);
    word[1] = low1;
    word[2] = high0 ^ word[3] ^ (U)(k1);
    word[3] = low0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
}

// The four words of counter (c0, c1, 0, 0).
DEVICE void FN(philox)(U c0, U c1, uint k0, uint k1, U *out) {
  out[0] = c0;
  out[1] = c1;
  out[2] = out[3] = (U)(0u);
  FN(philox_rounds)(out, k0, k1);
}

// Standard Gumbel noise -log(-log1p(-v)), v = (word + 0.5) / 2^32, at most 1 - 2^-24 so that the inner logarithm stays finite.
DEVICE F FN(gumbel)(U word) {
  F v = (U_TO_F(word) + 0.5f) * 2.32830644e-10f;
  v = v > 0.99999994f ? (F)(0.99999994f) : v;
  return -FN(m_log)(-FN(m_log1p)(-v));
}

// No less than gumbel(word), by one multiplication: -log1p(-v) >= v, and a float's bits are a logarithm to base 2 that is never above the
// true one (log2(1 + m) >= m for m in 0..1). Its own roundings are within the 0.001.
DEVICE F FN(gumbel_most)(U word) {
  F v = (U_TO_F(word) + 0.5f) * 2.32830644e-10f;
  return (127.001f - TO_F(AS_I(v)) * 1.1920929e-7f) * 0.69314724f;
}
