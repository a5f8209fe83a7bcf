"""NumPy twins of ``kernels/math.h`` and ``kernels/philox.h``: the same operations in the same order, so the same bits.

What the functions do, and why, is said once, in those headers. Float arguments and results are float32 arrays (any shape; scalars
become 0-d arrays), and results equal a device's bit for bit, except for a NaN's payload.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int32]
Words: TypeAlias = NDArray[np.uint32]
Mask: TypeAlias = NDArray[np.bool_]

QUIET: dict[str, Any] = {"over": "ignore", "under": "ignore", "invalid": "ignore", "divide": "ignore"}


def _f(x: Any) -> Floats:
    return np.asarray(x, dtype=np.float32)


def _as_f(x: Ints | Words) -> Floats:
    return np.asarray(x).view(np.float32)


def _as_i(x: Floats | Words) -> Ints:
    return np.asarray(x).view(np.int32)


def _as_u(x: Floats | Ints) -> Words:
    return np.asarray(x).view(np.uint32)


def _u(x: int) -> Words:
    return np.asarray(x, dtype=np.uint32)


def _i(x: int) -> Ints:
    return np.asarray(x, dtype=np.int32)


NAN = _as_f(_u(0x7FC00000))
INFINITY = _as_f(_u(0x7F800000))


def fma32(a: Any, b: Any, c: Any) -> Floats:
    """a * b + c rounded once to float32.

    The product of two float32 is exact in float64. The float64 sum is rounded to odd (the error of the rounded sum, from Knuth's
    TwoSum, says whether a bit was lost and on which side): rounding that to float32's 24 bits or fewer then gives what rounding the
    exact sum would, because 53 >= 24 + 2 (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    with np.errstate(**QUIET):
        product = _f(a).astype(np.float64) * _f(b).astype(np.float64)
        addend = _f(c).astype(np.float64)
        total = np.asarray(product + addend)
        back = total - product
        error = (product - (total - back)) + (addend - back)
        bits = total.view(np.int64)
        # An even last bit with an error left over: step to the odd neighbour on the error's side.
        step = np.where((error > 0) == (total > 0), 1, -1)
        inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
        return np.asarray((bits + np.where(inexact, step, 0)).view(np.float64).astype(np.float32))


def _reciprocal_seed(d: Floats) -> Floats:
    y = _as_f(_i(0x7EF311C7) - _as_i(d))
    e = fma32(-d, y, 1)
    y = fma32(y, fma32(e, e, e), y)
    return fma32(y, fma32(-d, y, 1), y)


def _near_division(n: Floats, d: Floats, rest: Floats) -> Floats:
    y = _reciprocal_seed(d)
    q = n * y
    return fma32(fma32(-rest, q, fma32(-d, q, n)), y, q)


def div(a: Any, b: Any) -> Floats:
    """a / b, correctly rounded."""
    a, b = np.broadcast_arrays(_f(a), _f(b))
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    with np.errstate(**QUIET):
        ua, ub, sign = _as_u(a) & _u(0x7FFFFFFF), _as_u(b) & _u(0x7FFFFFFF), (_as_u(a) ^ _as_u(b)) & _u(0x80000000)
        small_a, small_b = ua < 0x00800000, ub < 0x00800000
        na = np.where(small_a, _as_u(_as_i(ua).astype(np.float32)), ua)
        nb = np.where(small_b, _as_u(_as_i(ub).astype(np.float32)), ub)
        ma, mb = (na & _u(0x007FFFFF)) | _u(0x00800000), (nb & _u(0x007FFFFF)) | _u(0x00800000)
        e = _as_i(na >> _u(23)) - _as_i(nb >> _u(23)) + _i(127) - np.where(small_a, _i(149), _i(0)) + np.where(small_b, _i(149), _i(0))
        less = ma < mb
        ma = np.where(less, ma << _u(1), ma)
        e = np.where(less, e - _i(1), e)
        shift = np.where(e < 1, e + _i(22), _i(23))
        shift = np.where(shift < -2, _i(-2), shift)
        d = _as_f((nb & _u(0x007FFFFF)) | _u(0x3F800000))
        n = _as_i(ma).astype(np.float32) * _as_f((shift + _i(104)) << _i(23))
        q = _as_u(_near_division(n, d, _f(0)).astype(np.int32))
        remainder = _as_i((ma << _as_u(shift + _i(2))) - ((q * mb) << _u(2)))
        tie = _as_i(mb << _u(1))
        odd = (q & _u(1)) != 0
        up, down = (remainder > tie) | ((remainder == tie) & odd), (remainder < -tie) | ((remainder == -tie) & odd)
        q = np.where(up, q + _u(1), q)
        q = np.where(down, q - _u(1), q)
        bits = np.where(e < 1, _u(0), _as_u(e - _i(1)) << _u(23)) + q
        to_infinity, to_zero = (ua == 0x7F800000) | (ub == 0), (ua == 0) | (ub == 0x7F800000)
        invalid = (to_infinity & to_zero) | (ua > 0x7F800000) | (ub > 0x7F800000)
        bits = np.where((e > 254) | to_infinity, _u(0x7F800000), bits)
        bits = np.where(to_zero, _u(0), bits)
        return _as_f(np.where(invalid, _u(0x7FC00000), bits | sign))


def rsqrt(x: Any) -> Floats:
    """1 / sqrt(x), correctly rounded."""
    x = _f(x)
    with np.errstate(**QUIET):
        u = _as_u(x)
        small = u < 0x00800000
        i = np.where(small, _as_i(_as_i(u << _u(1)).astype(np.float32)), _as_i(u)) - _i(0x3F800000)
        e = i >> _i(24)
        m = _as_f((i & _i(0x00FFFFFF)) + _i(0x3F800000))
        y = _as_f(_i(0x5F3759DF) - (_as_i(m) >> _i(1)))
        r = fma32(-m, y * y, 1)
        y = fma32(y * r, fma32(r, 0.375, 0.5), y)
        r = fma32(-m, y * y, 1)
        y = fma32(y * _f(0.5), r, y)
        s = y * y
        r = fma32(-m, fma32(y, y, -s), fma32(-m, s, 1))
        y = fma32(y * _f(0.5), fma32(r * _f(0.75), r, r), y)
        bits = _as_u(_as_i(y) - ((e - np.where(small, _i(75), _i(0))) << _i(23)))
        bits = np.where(u == 0x7F800000, _u(0), bits)
        bits = np.where(u > 0x7F800000, _u(0x7FC00000), bits)
        return _as_f(np.where(u << _u(1) == 0, u | _u(0x7F800000), bits))


def _exp_scaled(x: Floats, low: Mask) -> Floats:
    magic = np.where(low, _f(12582976), _f(12582912))
    t = fma32(x, 1.442695, magic)
    n = t - magic
    r = fma32(n, -0.6931472, x)
    r = fma32(n, 1.9046542e-9, r)
    p = fma32(0.0013821468, r, 0.008368663)
    for coefficient in (0.041668255, 0.16666521, 0.49999994, 1, 1):
        p = fma32(p, r, coefficient)
    return _as_f(_as_u(p) + (_as_u(t) << _u(23)))


def exp(x: Any) -> Floats:
    """e to the x."""
    x = _f(x)
    with np.errstate(**QUIET):
        bounded = np.where(x < -110, _f(-110), x)
        low = x < _f(-87.33654)
        y = _exp_scaled(bounded, low)
        y = np.where(low, _as_f(_as_i(y + _f(2.16840434e-19)) - _i(0x20800000)), y)
        return np.asarray(np.where(x <= _f(88.72283), y, x + INFINITY))


def _descale(v: Floats) -> Floats:
    return _as_f(np.where(v < _f(2.16840434e-19), _as_i(v + _f(2.16840434e-19)) - _i(0x20800000), _as_i(v) - _i(0x20000000)))


def _sigmoid_scaled(x: Floats) -> Floats:
    a = _as_f(_as_u(x) | _u(0x80000000))
    a = np.where(a < -110, _f(-110), a)
    z = _exp_scaled(a, a < -70)
    d = z + _f(1)
    return _near_division(np.where(x < 0, z, _f(1)), d, z - (d - _f(1)))


def sigmoid(x: Any) -> Floats:
    """1 / (1 + exp(-x))."""
    x = _f(x)
    with np.errstate(**QUIET):
        y = _sigmoid_scaled(x)
        y = np.where(x < -70, _descale(y), y)
        return np.asarray(np.where(np.isnan(x), x, y))


def silu(x: Any) -> Floats:
    """x * sigmoid(x)."""
    x = _f(x)
    with np.errstate(**QUIET):
        bounded = np.where(x < -110, _f(-110), x)
        y = bounded * _sigmoid_scaled(bounded)
        y = np.where(x < -70, -_descale(-y), y)
        return np.asarray(np.where(np.isnan(x), x, y))


def _log_reduced(f: Floats, e: Floats) -> Floats:
    p = fma32(-0.04515227, f, 0.10472551)
    for coefficient in (-0.13163936, 0.1447763, -0.16646878, 0.19990848, -0.2500011, 0.3333345, -0.5):
        p = fma32(p, f, coefficient)
    p = fma32(p, f * f, f)
    return fma32(e, 0.6931472, p)


def log(x: Any) -> Floats:
    """Natural logarithm."""
    x = _f(x)
    with np.errstate(**QUIET):
        u = _as_u(x)
        small = u < 0x00800000
        i = np.where(small, _as_i(_as_i(u).astype(np.float32)), _as_i(u)) - _i(0x3F400000)
        f = _as_f((i & _i(0x007FFFFF)) + _i(0x3F400000)) - _f(1)
        y = _log_reduced(f, ((i >> _i(23)) - np.where(small, _i(149), _i(0))).astype(np.float32))
        y = np.where(u == 0x7F800000, x, y)
        y = np.where(u > 0x7F800000, NAN, y)
        return np.asarray(np.where(u << _u(1) == 0, -INFINITY, y))


def log1p(x: Any) -> Floats:
    """log(1 + x)."""
    x = _f(x)
    with np.errstate(**QUIET):
        e = (_as_i(x + _f(1)) - _i(0x3F400000)) >> _i(23)
        scale = _as_f(_i(0x40800000) - (e << _i(23)))
        f = fma32(x * _f(0.25), scale, fma32(0.25, scale, -1))
        y = _log_reduced(f, e.astype(np.float32))
        magnitude = _as_u(x) & _u(0x7FFFFFFF)
        y = np.where((magnitude < 0x33000000) | (_as_u(x) == 0x7F800000), x, y)
        y = np.where(x == -1, -INFINITY, y)
        return np.asarray(np.where((x < -1) | (magnitude > 0x7F800000), NAN, y))


def softplus(x: Any) -> Floats:
    """log(1 + exp(x))."""
    x = _f(x)
    with np.errstate(**QUIET):
        y = log1p(exp(_as_f(_as_u(x) | _u(0x80000000))))
        return np.asarray(np.where(x > 0, x + y, y))


def philox4x32_10(key: tuple[int, int], *counter: Any) -> Words:
    """Four random words per counter, as a uint32 array [..., 4]. Up to four counter arrays; missing ones are 0."""
    words = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint32) for c in (*counter, 0, 0, 0, 0)[:4]))
    c0, c1, c2, c3 = (word.astype(np.uint64) for word in words)
    low = np.uint64(0xFFFFFFFF)
    for step in range(10):
        k0, k1 = (np.uint64((k + step * weyl) & 0xFFFFFFFF) for k, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        product0, product1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (product1 >> np.uint64(32)) ^ c1 ^ k0, product1 & low, (product0 >> np.uint64(32)) ^ c3 ^ k1, product0 & low
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def gumbel(word: Any) -> Floats:
    """Standard Gumbel noise from random 32-bit words."""
    v = (np.asarray(word, dtype=np.uint32).astype(np.float32) + _f(0.5)) * _f(2.32830644e-10)
    v = np.where(v > _f(0.99999994), _f(0.99999994), v)
    return np.asarray(-log(-log1p(-v)))
