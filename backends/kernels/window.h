// Which drafts of a window are kept: the mirror of backends/decode/window.py, which is the truth and says how to add a rule.
//
// PCUM, a -D constant: 1 where there is the cumulative rule. Probabilities, min_p and thresholds are floats of 0..1, a probability may be a
// NaN; their signs are not looked at, so -0 is 0. Floats of one sign are in the order of their bits read as integers, and so are binary64s.
// All comparisons are such ones: a device may flush subnormals to zero, and may have no float64.

// p >= min_p; false for a NaN.
DEVICE int keeps_min_p(float p, float min_p) {
  uint size = AS_U_1(p) & 0x7fffffffu;
  return size <= 0x7f800000u && size >= (AS_U_1(min_p) & 0x7fffffffu);
}

// The binary64 1.0: the running product of a chain before its first draft.
#define EMPTY_PRODUCT ((ULONG)0x3ff << 52)

#if PCUM
// The bits of p as a binary64, exactly; p is finite. The bits of a subnormal, read as an integer, are its value times 2^149.
DEVICE ULONG widen64(float p) {
  uint bits = AS_U_1(p) & 0x7fffffffu, bias = 1023 - 127;
  if (bits == 0u) return 0;
  if (bits < 0x00800000u) {
    bits = AS_U_1(TO_F_1(AS_I_1(bits)));
    bias -= 149;
  }
  return ((ULONG)bits << 29) + ((ULONG)bias << 52);
}

// product * p, bits of binary64, rounded once to nearest even as IEEE 754 says; both of 0..1. A result below 2^-1022 becomes 0: of 7
// factors, only subnormal floats give one, and no threshold but 0 is that small, so no draft's fate depends on it.
DEVICE ULONG product64(ULONG product, float p) {
  ULONG factor = widen64(p), unit = (ULONG)1 << 52;
  // 53 bits times 24 are 76 or 77 bits: high * 2^32 + low. The 53 to keep begin 23 or 24 bits up.
  ULONG a = (product & (unit - 1)) | unit, b = ((factor & (unit - 1)) | unit) >> 29;
  ULONG low = (a & 0xffffffffu) * b, high = (a >> 32) * b + (low >> 32);
  int drop = high >> 44 ? 24 : 23;
  int exponent = (int)(product >> 52) + (int)(factor >> 52) - 1023 + (drop - 23);
  if (exponent < 1) return 0;  // a factor of 0 has the exponent 0, and the other is at most 1
  ULONG result = (high << (32 - drop)) | ((low & 0xffffffffu) >> drop);
  uint rest = (uint)low & ((1u << drop) - 1u), middle = 1u << (drop - 1);
  if (rest > middle || (rest == middle && (result & 1))) result++;
  // The top one of the 53 bits counts as one of the exponent; so it does where rounding up made it the 54th.
  return ((ULONG)(exponent - 1) << 52) + result;
}

// Takes the next probability into the product of those before it; whether that is at least the threshold. p is no NaN.
DEVICE int keeps_p_cum(float p, ULONG *product, float threshold) {
  *product = product64(*product, p);
  return *product >= widen64(threshold);
}
#endif

// Whether a chain's next draft, of probability p, is kept, all before it having been. product: the chain's running product, which a kept
// draft's p becomes part of; threshold: of the round's depth, from the host's table. Both are left alone where PCUM is 0.
DEVICE int keeps_draft(float p, float min_p, ULONG *product, float threshold) {
  if (!keeps_min_p(p, min_p)) return 0;
#if PCUM
  if (!keeps_p_cum(p, product, threshold)) return 0;
#endif
  return 1;
}
