// OpenCL C 1.2 dialect: the words that kernel text is written in. A prelude per dialect defines the same words.
#pragma OPENCL FP_CONTRACT OFF
#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_ARRAY __local  // declares an array that a work-group shares
#define CONSTANT __constant
#define DEVICE static inline
#define ALWAYS_INLINE __attribute__((always_inline))
#define load_half(i, p) vload_half(i, p)
#define store_half(v, i, p) vstore_half_rte(v, i, p)
#define RESTRICT restrict
#define LONG long
#define ULONG ulong
#define ATOMIC_INC(p) atomic_inc(p)
#define ATOMIC_INC_LOCAL(p) atomic_inc(p)
#define ATOMIC_TAKE(p) atomic_xchg(p, 0)
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define BARRIER_GLOBAL() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define group_id() ((int)get_group_id(0))
#define num_groups() ((int)get_num_groups(0))
#define local_id() ((int)get_local_id(0))
#define local_size() ((int)get_local_size(0))
// Not part of OpenCL C: clang-based compilers have it, others need not. It takes a pointer of the generic address space.
#if defined(STRATA_PREFETCH) && defined(__opencl_c_generic_address_space)
#define PREFETCH(pointer) __builtin_prefetch((const void *)(pointer))
#else
#define PREFETCH(pointer)
#endif
// sum + the products of four unsigned bytes of w with four signed bytes of x, for DOT == 4 (dot.h): cl_khr_integer_dot_product has it.
#define DP4A(sum, w, x) ((sum) + dot_4x8packed_us_int(w, x))

// The lane types: name_N for N lanes.
#define F_1 float
#define I_1 int
#define U_1 uint
#define AS_F_1(x) as_float(x)
#define AS_I_1(x) as_int(x)
#define AS_U_1(x) as_uint(x)
#define TO_F_1(x) convert_float(x)
#define TO_I_1(x) convert_int(x)
#define U_TO_F_1(x) convert_float(x)
#define F_16 float16
#define I_16 int16
#define U_16 uint16
#define AS_F_16(x) as_float16(x)
#define AS_I_16(x) as_int16(x)
#define AS_U_16(x) as_uint16(x)
#define TO_F_16(x) convert_float16(x)
#define TO_I_16(x) convert_int16(x)
#define U_TO_F_16(x) convert_float16(x)
#define MUL_HI(a, b) mul_hi(a, b)
