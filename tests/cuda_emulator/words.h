// Stands before CUDA text that is compiled as C++: the words a CUDA compiler knows without a header. A block's threads are fibres, each
// with a stack of its own, that run one at a time and switch at __syncthreads; blocks run one after another. Found and reported: a
// barrier that some threads of a block do not reach, or that they reach at different places. Shared memory starts a block full of ones
// (NaNs), so that reading what no thread wrote shows. Threads and blocks can run in reverse: text without races gives the same bits.
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <utility>

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __shared__ static __attribute__((section("emulated_shared")))
#define __launch_bounds__(threads)
#define __syncthreads() emulator::barrier(__LINE__)

extern "C" char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));

struct emulated_index { unsigned x, y, z; };
static emulated_index blockIdx, threadIdx, blockDim, gridDim;

static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

namespace emulator {
constexpr int threads_max = 1024, stack_bytes = 256 << 10;
enum { done = -1, not_begun = 0 };  // else the line of the barrier a fibre waits at
struct fibre { ucontext_t start; jmp_buf at; int state; };
static fibre fibres[threads_max], *current;
static jmp_buf scheduler;
static char *stacks;
static std::function<void()> body;

static void enter() {
  body();
  current->state = done;
  _longjmp(scheduler, 1);
}

[[maybe_unused]] static void barrier(int line) {
  current->state = line;
  if (!_setjmp(current->at)) _longjmp(scheduler, 1);
}

// Runs a thread until its next barrier or its end.
static void resume(int thread) {
  current = &fibres[thread];
  threadIdx.x = thread;
  if (_setjmp(scheduler)) return;
  if (current->state == not_begun) setcontext(&current->start);
  _longjmp(current->at, 1);
}

// 0, or the line of a barrier that not all threads of a block reached.
static int run_block(int threads, bool reverse) {
  if (__start_emulated_shared) memset(__start_emulated_shared, 0xff, __stop_emulated_shared - __start_emulated_shared);
  ucontext_t blank;
  getcontext(&blank);
  for (int i = 0; i < threads; i++) {
    fibres[i].start = blank;
    fibres[i].start.uc_stack.ss_sp = stacks + (size_t)i * stack_bytes;
    fibres[i].start.uc_stack.ss_size = stack_bytes;
    fibres[i].start.uc_link = nullptr;
    fibres[i].state = not_begun;
    makecontext(&fibres[i].start, enter, 0);
  }
  while (fibres[0].state != done) {
    for (int i = 0; i < threads; i++) resume(reverse ? threads - 1 - i : i);
    for (int i = 1; i < threads; i++)
      if (fibres[i].state != fibres[0].state) return fibres[i].state == done ? fibres[0].state : fibres[i].state;
  }
  return 0;
}

static int launch(int grid, int block, bool reverse, const std::function<void()> &kernel) {
  if (!stacks) stacks = (char *)malloc((size_t)threads_max * stack_bytes);
  body = kernel;
  gridDim = {(unsigned)grid, 1, 1};
  blockDim = {(unsigned)block, 1, 1};
  for (int i = 0; i < grid; i++) {
    blockIdx = {(unsigned)(reverse ? grid - 1 - i : i), 0, 0};
    if (int line = run_block(block, reverse)) return line;
  }
  return 0;
}

template <class T> constexpr char kind(T *) { return 'p'; }
constexpr char kind(int) { return 'i'; }
constexpr char kind(float) { return 'f'; }

template <class... A> const char *signature(void (*)(A...)) {
  static const char text[] = {kind(A{})..., 0};
  return text;
}

template <class... A, std::size_t... I> void call(void (*kernel)(A...), void **args, std::index_sequence<I...>) {
  kernel(*(A *)args[I]...);
}

template <class... A> int launch_kernel(void (*kernel)(A...), int grid, int block, void **args, bool reverse) {
  return launch(grid, block, reverse, [=] { call(kernel, args, std::index_sequence_for<A...>{}); });
}
}  // namespace emulator

// Stands after the text, once for each kernel: what the host calls.
#define EMULATED_KERNEL(name) \
  extern "C" const char *signature_##name() { return emulator::signature(name); } \
  extern "C" int launch_##name(int grid, int block, void **args, int reverse) { return emulator::launch_kernel(name, grid, block, args, reverse); }
