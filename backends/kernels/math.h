// Strata's own float32 functions: one text for OpenCL C, CUDA C++ and HIP, so that every device gives the same bits.
//
// A template: source.py includes it once per lane count with F, I, U (lane types), AS_F, AS_I, AS_U (bit casts), TO_I (float to int,
// toward zero), TO_F (int to float, nearest even), FN(name) and DEVICE defined. Only integer operations, +, -, *, fma, comparisons and
// selects are used. A comparison is 1 on a scalar and -1 in a vector, so masks meet only in &, | and ?:.
//
// Subnormals: none of these functions gives different bits on a device that flushes subnormals to zero. Subnormal operands are taken
// apart as integers, subnormal results are put together as integers, and no intermediate result that matters is subnormal. (m_silu has
// an exception.) Infinities behave as in IEEE 754. A NaN gives a NaN, whose payload is not specified.
//
// Errors are in units in the last place (ulp) of the exact result: the largest over every one of the 2^32 inputs, against float64.
// Polynomials: weighted least squares with Lawson's reweighting (which tends to minimax) on 1500 Chebyshev nodes in extended precision,
// weighted by 1 / (function's value); the lowest coefficient is rounded to float32, then the rest are fitted again, and so on.

// 1 / d to about 2^-18 for d in [1, 2]. Magic-constant start (error 1/8), one cubic and one quadratic Newton step.
DEVICE F FN(m_reciprocal_seed)(F d) {
  F y = AS_F(0x7ef311c7 - AS_I(d));
  F e = fma(-d, y, (F)(1.0f));
  y = fma(y, fma(e, e, e), y);
  return fma(y, fma(-d, y, (F)(1.0f)), y);
}

// n / (d + rest) for d in [1, 2], n of ordinary size and a rest below the last bit of d: the seed with its remainder added back.
// Relative error 2^-24 + 2^-35.
DEVICE F FN(m_near_division)(F n, F d, F rest) {
  F y = FN(m_reciprocal_seed)(d), q = n * y;
  return fma(fma(-rest, q, fma(-d, q, n)), y, q);
}

// a / b, correctly rounded (nearest even) for every input, subnormals, infinities and zeros included, as IEEE 754 says; 0/0 and inf/inf
// give NaN. With 24-bit integers ma, mb and Q = ma / mb * 2^shift scaled to the precision of the result, the float estimate truncates to
// an integer q with |Q - q| < 1.5 (before its last rounding it is good to 2^-35). The remainder ma * 2^shift - q * mb, exact modulo 2^32,
// then says which of q - 1, q, q + 1 is nearest.
DEVICE F FN(m_div)(F a, F b) {
  U ua = AS_U(a) & 0x7fffffffu, ub = AS_U(b) & 0x7fffffffu, sign = (AS_U(a) ^ AS_U(b)) & 0x80000000u;
  // The bits of a subnormal, read as an integer, are its value times 2^149.
  I small_a = ua < 0x00800000u, small_b = ub < 0x00800000u;
  U na = small_a ? AS_U(TO_F(AS_I(ua))) : ua, nb = small_b ? AS_U(TO_F(AS_I(ub))) : ub;
  U ma = (na & 0x007fffffu) | 0x00800000u, mb = (nb & 0x007fffffu) | 0x00800000u;
  I e = AS_I(na >> 23) - AS_I(nb >> 23) + 127 - (small_a ? (I)(149) : (I)(0)) + (small_b ? (I)(149) : (I)(0));
  I less = ma < mb;
  ma = less ? ma << 1 : ma;
  e = less ? e - 1 : e;  // now a / b = +- ma / mb * 2^(e - 127) with ma / mb in [1, 2)
  I shift = e < 1 ? e + 22 : (I)(23);
  shift = shift < -2 ? (I)(-2) : shift;
  F d = AS_F((nb & 0x007fffffu) | 0x3f800000u);
  F n = TO_F(AS_I(ma)) * AS_F((shift + 104) << 23);  // ma * 2^(shift - 23)
  U q = AS_U(TO_I(FN(m_near_division)(n, d, (F)(0.0f))));
  I remainder = AS_I((ma << (shift + 2)) - ((q * mb) << 2)), tie = AS_I(mb << 1);  // both times 4, as shift may be -2
  I odd = (q & 1u) != 0u;
  I up = (remainder > tie) | ((remainder == tie) & odd), down = (remainder < -tie) | ((remainder == -tie) & odd);
  q = up ? q + 1u : q;
  q = down ? q - 1u : q;
  U bits = (e < 1 ? (U)(0u) : AS_U(e - 1) << 23) + q;
  I to_infinity = (ua == 0x7f800000u) | (ub == 0u), to_zero = (ua == 0u) | (ub == 0x7f800000u);
  I invalid = (to_infinity & to_zero) | (ua > 0x7f800000u) | (ub > 0x7f800000u);
  bits = ((e > 254) | to_infinity) ? (U)(0x7f800000u) : bits;
  bits = to_zero ? (U)(0u) : bits;
  return AS_F(invalid ? (U)(0x7fc00000u) : bits | sign);
}

// 1 / sqrt(x), correctly rounded (checked on every input). +-0 gives +-inf, below 0 NaN, inf 0.
// Magic-constant start, one cubic Newton step, one quadratic, one cubic whose residual uses y * y in two parts.
DEVICE F FN(m_rsqrt)(F x) {
  U u = AS_U(x);
  I small = u < 0x00800000u;
  I i = (small ? AS_I(TO_F(AS_I(u << 1))) : AS_I(u)) - 0x3f800000;  // a subnormal is scaled by 2^150
  I e = i >> 24;
  F m = AS_F((i & 0x00ffffff) + 0x3f800000);  // x = m * 4^e with m in [1, 4)
  F y = AS_F(0x5f3759df - (AS_I(m) >> 1));
  F r = fma(-m, y * y, (F)(1.0f));
  y = fma(y * r, fma(r, (F)(0.375f), (F)(0.5f)), y);
  r = fma(-m, y * y, (F)(1.0f));
  y = fma(y * 0.5f, r, y);
  F s = y * y;
  r = fma(-m, fma(y, y, -s), fma(-m, s, (F)(1.0f)));
  y = fma(y * 0.5f, fma(r * 0.75f, r, r), y);
  U bits = AS_U(AS_I(y) - ((e - (small ? (I)(75) : (I)(0))) << 23));
  bits = u == 0x7f800000u ? (U)(0u) : bits;
  bits = u > 0x7f800000u ? (U)(0x7fc00000u) : bits;
  return AS_F((u << 1) == 0u ? u | 0x7f800000u : bits);
}

// exp(x) for x in [-110, 88.7228], times 2^64 where `low`; wrong for a NaN. Cody-Waite reduction x = n ln 2 + r with ln 2 in two parts,
// n rounded by adding 1.5 * 2^23; minimax polynomial of degree 6 (2^-28.2); n is added to the exponent bits.
DEVICE F FN(m_exp_scaled)(F x, I low) {
  F magic = low ? (F)(12582976.0f) : (F)(12582912.0f);
  F t = fma(x, (F)(1.442695f), magic);
  F n = t - magic;
  F r = fma(n, (F)(-0.6931472f), x);
  r = fma(n, (F)(1.9046542e-9f), r);
  F p = fma((F)(0.0013821468f), r, (F)(0.008368663f));
  p = fma(p, r, (F)(0.041668255f));
  p = fma(p, r, (F)(0.16666521f));
  p = fma(p, r, (F)(0.49999994f));
  p = fma(p, r, (F)(1.0f));
  p = fma(p, r, (F)(1.0f));
  return AS_F(AS_U(p) + (AS_U(t) << 23));
}

// exp(x), error 0.892 ulp; about 20 vector instructions. Results below 2^-126 go gradually to zero, exactly 0 below -103.98: the sum with
// 2^-62 rounds such a result, held times 2^64, to a multiple of 2^-149, and the low bits of the sum are the subnormal's bits.
DEVICE F FN(m_exp)(F x) {
  F bounded = x < -110.0f ? (F)(-110.0f) : x;
  I low = x < -87.33654f;  // below ln 2^-126
  F y = FN(m_exp_scaled)(bounded, low);
  y = low ? AS_F(AS_I(y + 2.16840434e-19f) - 0x20800000) : y;
  return x <= 88.72283f ? y : x + AS_F((U)(0x7f800000u));
}

// v * 2^-64 for v >= 0, by integer arithmetic where v is normal, as in m_exp where the result is subnormal.
DEVICE F FN(m_descale)(F v) {
  return AS_F(v < 2.16840434e-19f ? AS_I(v + 2.16840434e-19f) - 0x20800000 : AS_I(v) - 0x20000000);
}

// 1 / (1 + exp(-x)), times 2^64 for x < -70; wrong for a NaN. z = exp(-|x|) cannot overflow: z / (1 + z) below 0, else 1 / (1 + z), with
// the rounding error of 1 + z carried along. From |x| = 70 on, z does not matter beside 1, with or without its factor 2^64.
DEVICE F FN(m_sigmoid_scaled)(F x) {
  F a = AS_F(AS_U(x) | 0x80000000u);
  a = a < -110.0f ? (F)(-110.0f) : a;
  F z = FN(m_exp_scaled)(a, a < -70.0f), d = z + 1.0f;
  return FN(m_near_division)(x < 0.0f ? z : (F)(1.0f), d, z - (d - 1.0f));
}

// 1 / (1 + exp(-x)), error 1.48 ulp.
DEVICE F FN(m_sigmoid)(F x) {
  F y = FN(m_sigmoid_scaled)(x);
  y = x < -70.0f ? FN(m_descale)(y) : y;
  return x == x ? y : x;
}

// x * sigmoid(x), error 2.42 ulp; -inf gives -0. Exception to the rule on subnormals: for |x| < 2^-125 the result x / 2 is an ordinary product.
DEVICE F FN(m_silu)(F x) {
  F bounded = x < -110.0f ? (F)(-110.0f) : x;
  F y = bounded * FN(m_sigmoid_scaled)(bounded);
  y = x < -70.0f ? -FN(m_descale)(-y) : y;
  return x == x ? y : x;
}

// log(2^e * (1 + f)) for f in [-1/4, 1/2]: f - f^2 / 2 + f^3 P(f) with a minimax P of degree 7 (2^-27.6), plus e ln 2.
DEVICE F FN(m_log_reduced)(F f, F e) {
  F p = fma((F)(-0.04515227f), f, (F)(0.10472551f));
  p = fma(p, f, (F)(-0.13163936f));
  p = fma(p, f, (F)(0.1447763f));
  p = fma(p, f, (F)(-0.16646878f));
  p = fma(p, f, (F)(0.19990848f));
  p = fma(p, f, (F)(-0.2500011f));
  p = fma(p, f, (F)(0.3333345f));
  p = fma(p, f, (F)(-0.5f));
  p = fma(p, f * f, f);
  return fma(e, (F)(0.6931472f), p);
}

// Natural logarithm, error 0.929 ulp; +-0 gives -inf, below 0 NaN.
DEVICE F FN(m_log)(F x) {
  U u = AS_U(x);
  I small = u < 0x00800000u;
  I i = (small ? AS_I(TO_F(AS_I(u))) : AS_I(u)) - 0x3f400000;  // 3/4; a subnormal is scaled by 2^149
  F f = AS_F((i & 0x007fffff) + 0x3f400000) - 1.0f;
  F y = FN(m_log_reduced)(f, TO_F((i >> 23) - (small ? (I)(149) : (I)(0))));
  y = u == 0x7f800000u ? x : y;
  y = u > 0x7f800000u ? AS_F((U)(0x7fc00000u)) : y;
  return (u << 1) == 0u ? AS_F((U)(0xff800000u)) : y;
}

// log(1 + x), error 0.929 ulp (1.27 at the one float just below 1/2); -1 gives -inf, below -1 NaN. The exponent e of 1 + x only selects
// the reduction: f = x 2^-e + (2^-e - 1), exact for x < 1/2 but one.
DEVICE F FN(m_log1p)(F x) {
  I e = (AS_I(x + 1.0f) - 0x3f400000) >> 23;
  F scale = AS_F(0x40800000 - (e << 23));  // 4 * 2^-e, as 2^-e can be subnormal
  F f = fma(x * 0.25f, scale, fma((F)(0.25f), scale, (F)(-1.0f)));
  F y = FN(m_log_reduced)(f, TO_F(e));
  U magnitude = AS_U(x) & 0x7fffffffu;
  y = ((magnitude < 0x33000000u) | (AS_U(x) == 0x7f800000u)) ? x : y;  // below 2^-25, log(1 + x) is x
  y = x == -1.0f ? AS_F((U)(0xff800000u)) : y;
  return ((x < -1.0f) | (magnitude > 0x7f800000u)) ? AS_F((U)(0x7fc00000u)) : y;
}

// log(1 + exp(x)), error 1.66 ulp, as max(x, 0) + log1p(exp(-|x|)).
DEVICE F FN(m_softplus)(F x) {
  F y = FN(m_log1p)(FN(m_exp)(AS_F(AS_U(x) | 0x80000000u)));
  return x > 0.0f ? x + y : y;
}
