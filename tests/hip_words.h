// Stands before CUDA text that clang compiles as HIP: a stand-in for the header that AMD's run-time compiler (hiprtc) has built in. Only
// the words that prelude_cuda.h and the kernels use, each made of the same compiler builtins as there, so that no ROCm is needed.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))

typedef __SIZE_TYPE__ size_t;
struct hip_index { unsigned x; };
#define threadIdx (hip_index{__builtin_amdgcn_workitem_id_x()})
#define blockIdx (hip_index{__builtin_amdgcn_workgroup_id_x()})
#define blockDim (hip_index{__builtin_amdgcn_workgroup_size_x()})
#define gridDim (hip_index{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()})

__device__ static inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ static inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__device__ static inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__device__ static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
__device__ static inline int atomicAdd(int *p, int v) { return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
__device__ static inline int atomicExch(int *p, int v) { return __hip_atomic_exchange(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
__device__ static inline int min(int a, int b) { return a < b ? a : b; }
__device__ static inline int max(int a, int b) { return a > b ? a : b; }
