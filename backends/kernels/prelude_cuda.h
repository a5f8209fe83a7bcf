// CUDA C++ and HIP dialect, GPU shape only (LANES = 1): the words of prelude_opencl.h. Needs no header and no include path, since NVRTC
// has none by default. Types are macros: headers that some compilers put in front already hold names like `half` and `uint`.
#ifdef GROUP
#define KERNEL extern "C" __global__ __launch_bounds__(GROUP)
#else
#define KERNEL extern "C" __global__
#endif
#define GLOBAL
#define LOCAL
#define LOCAL_ARRAY __shared__
#define CONSTANT const
#define DEVICE static __device__ inline
#define ALWAYS_INLINE __attribute__((always_inline))
#define RESTRICT __restrict__
#define BARRIER() __syncthreads()
#define BARRIER_GLOBAL() __syncthreads()  // which orders a block's global memory accesses too
#define group_id() ((int)blockIdx.x)
#define num_groups() ((int)gridDim.x)
#define local_id() ((int)threadIdx.x)
#define local_size() ((int)blockDim.x)
#define PREFETCH(pointer)
#define uchar unsigned char
#define uint unsigned int
#define LONG long long
#define ULONG unsigned long long
#define ATOMIC_INC(p) atomicAdd(p, 1)
#define ATOMIC_INC_LOCAL(p) atomicAdd(p, 1)
#define ATOMIC_TAKE(p) atomicExch(p, 0)
#undef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define fma(a, b, c) __fmaf_rn(a, b, c)

// The lane types: name_1 for one lane.
DEVICE int bits_as_int(int x) { return x; }
DEVICE int bits_as_int(unsigned int x) { return (int)x; }
DEVICE int bits_as_int(float x) { return __float_as_int(x); }
#define F_1 float
#define I_1 int
#define U_1 uint
#define AS_F_1(x) __int_as_float(bits_as_int(x))
#define AS_I_1(x) bits_as_int(x)
#define AS_U_1(x) ((unsigned int)bits_as_int(x))
#define TO_F_1(x) ((float)(x))    // from an integer: nearest even
#define TO_I_1(x) ((int)(x))      // toward zero
#define U_TO_F_1(x) ((float)(x))
#define MUL_HI(a, b) __umulhi(a, b)

// Half precision, kept as 16 bits: exact to float, nearest even from float. Integer code is the base path; where the compiler is known
// to reach the device's conversion, that is used, with the same bits but for what a NaN carries. HALF_BY_INTEGERS asks for the base path.
#define half unsigned short
DEVICE float half_to_float(unsigned int h) {
  unsigned int sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
  // A subnormal is size * 2^-24, and that product is exact; infinities and NaNs keep their mantissa under the larger exponent.
  if (size < 0x0400u) return __int_as_float((int)(sign | (unsigned int)__float_as_int((float)size * 5.9604644775390625e-8f)));
  return __int_as_float((int)(sign | ((size << 13) + (size >= 0x7c00u ? 0x70000000u : 0x38000000u))));
}
DEVICE unsigned int float_to_half(float v) {
  unsigned int bits = (unsigned int)__float_as_int(v), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7e00u | (size >> 13 & 0x3ffu);
  if (size >= 0x477ff000u) return sign | 0x7c00u;  // from 65520 on
  // Below 2^-14 a half is a multiple of 2^-24, which is the last place of floats from 1/2 on: the sum rounds, its low bits are the half.
  if (size < 0x38800000u) return sign | ((unsigned int)__float_as_int(__int_as_float((int)size) + 0.5f) - 0x3f000000u);
  return sign | ((size - 0x38000000u + 0x0fffu + (size >> 13 & 1u)) >> 13);
}
#if defined(HALF_BY_INTEGERS)
#define load_half(i, p) half_to_float((p)[i])
#define store_half(v, i, p) ((p)[i] = (unsigned short)float_to_half(v))
#elif defined(__CUDA_ARCH__)
DEVICE float loaded_half(const unsigned short *p) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(*p)); return v; }
DEVICE unsigned short stored_half(float v) { unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h; }
#define load_half(i, p) loaded_half((p) + (i))
#define store_half(v, i, p) ((p)[i] = stored_half(v))
#elif defined(__HIP_DEVICE_COMPILE__)
#define load_half(i, p) ((float)((const _Float16 *)(p))[i])
#define store_half(v, i, p) (((_Float16 *)(p))[i] = (_Float16)(v))
#else
#define load_half(i, p) half_to_float((p)[i])
#define store_half(v, i, p) ((p)[i] = (unsigned short)float_to_half(v))
#endif

// sum + the products of four unsigned bytes of w with four signed bytes of x, for DOT == 4 (dot.h). Every form is exact. AMD's compiler
// says which instruction the device has: SUDOT4 takes unsigned by signed bytes, SDOT4 only signed by signed.
#ifdef __HIP_DEVICE_COMPILE__
#if __has_builtin(__builtin_amdgcn_sudot4)
#define SUDOT4(w, x, sum) __builtin_amdgcn_sudot4(false, (int)(w), true, (int)(x), sum, false)
#elif __has_builtin(__builtin_amdgcn_sdot4)
#define SDOT4(a, b, sum) __builtin_amdgcn_sdot4((int)(a), (int)(b), sum, false)
#endif
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
DEVICE int DP4A(int sum, unsigned int w, unsigned int x) { int r; asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(x), "r"(sum)); return r; }
#elif defined(SUDOT4)
DEVICE int DP4A(int sum, unsigned int w, unsigned int x) { return SUDOT4(w, x, sum); }
#elif defined(SDOT4)
DEVICE ALWAYS_INLINE int DP4A(int sum, unsigned int w, unsigned int x) {
  // Where the compiler sees that every byte is below 128, as 4-bit codes are, signed is unsigned. Else w - 128, with 128 * sum(x) put back.
  if (__builtin_constant_p(w & 0x80808080u) && (w & 0x80808080u) == 0u) return SDOT4(w, x, sum);
  return SDOT4(w ^ 0x80808080u, x, sum) + 128 * SDOT4(0x01010101u, x, 0);
}
#else
DEVICE int DP4A(int sum, unsigned int w, unsigned int x) {
  for (int j = 0; j < 32; j += 8) sum += (int)(w >> j & 255u) * (int)(signed char)(x >> j & 255u);
  return sum;
}
#endif
