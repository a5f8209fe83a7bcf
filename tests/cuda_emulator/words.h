// Stands before CUDA text that is compiled as C++: the words a CUDA compiler knows without a header. A block's threads are fibres, each
// with a stack of its own, that run one at a time and switch at __syncthreads; blocks run one after another. Found and reported: a
// barrier that some threads of a block do not reach, or that they reach at different places. Shared memory starts a block full of ones
// (NaNs), so that reading what no thread wrote shows. Threads and blocks can run in another order: text without races gives the same bits.
#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#ifdef EMULATED_ASAN
#include <sanitizer/common_interface_defs.h>
#define __shared__ static  // AddressSanitizer puts guards around an array, but not in a section of its own
#else
#define __shared__ static __attribute__((section("emulated_shared")))
#endif
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
// The fibres of a block run one at a time, and blocks one after another.
static inline int atomicAdd(int *p, int v) { int old = *p; *p += v; return old; }
static inline int atomicExch(int *p, int v) { int old = *p; *p = v; return old; }
// AMD's byte dot products by their definition: the text takes them for the instructions with -DSDOT4=emulated_sdot4 and the like.
static inline int emulated_sdot4(unsigned a, unsigned b, int sum) {
  for (int i = 0; i < 4; i++) sum += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return sum;
}
static inline int emulated_sudot4(unsigned a, unsigned b, int sum) {
  for (int i = 0; i < 4; i++) sum += (unsigned char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return sum;
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

namespace emulator {
constexpr int threads_max = 1024, stack_bytes = 256 << 10;
enum { done = -1, not_begun = 0 };  // else the line of the barrier a fibre waits at
struct fibre { ucontext_t start; jmp_buf at; int state; void *stack; };
static fibre fibres[threads_max], *current;
static jmp_buf scheduler;
static char *stacks;
static std::function<void()> body;
static int skipped;                 // the line whose barriers do nothing: a fault that a test plants
static std::vector<int> reached;    // the lines of the barriers that the last launch came to
static unsigned long long random_;  // of the order, if that is to be shuffled

// AddressSanitizer must know on which stack a thread runs.
#ifdef EMULATED_ASAN
static const void *main_stack;
static size_t main_bytes;
static void leave_for(void **own, const void *stack, size_t bytes) { __sanitizer_start_switch_fiber(own, stack, bytes); }
static void arrived(void *own, bool in_thread) { __sanitizer_finish_switch_fiber(own, in_thread ? &main_stack : nullptr, in_thread ? &main_bytes : nullptr); }
#else
static const void *const main_stack = nullptr;
static const size_t main_bytes = 0;
static void leave_for(void **, const void *, size_t) {}
static void arrived(void *, bool) {}
#endif

static void enter() {
  arrived(nullptr, true);
  body();
  current->state = done;
  leave_for(nullptr, main_stack, main_bytes);
  _longjmp(scheduler, 1);
}

[[maybe_unused]] static void barrier(int line) {
  if (std::find(reached.begin(), reached.end(), line) == reached.end()) reached.push_back(line);
  if (line == skipped) return;
  current->state = line;
  leave_for(&current->stack, main_stack, main_bytes);
  if (!_setjmp(current->at)) _longjmp(scheduler, 1);
  arrived(current->stack, true);
}

// Runs a thread until its next barrier or its end.
static void resume(int thread) {
  static void *own;  // not on the stack, where a jump back could find an old value
  current = &fibres[thread];
  threadIdx.x = thread;
  leave_for(&own, stacks + (size_t)thread * stack_bytes, stack_bytes);
  if (_setjmp(scheduler)) return arrived(own, false);
  if (current->state == not_begun) setcontext(&current->start);
  _longjmp(current->at, 1);
}

// The order in which threads or blocks take their turns. order: 0 for as they are numbered, 1 for backwards, else a seed.
static void arrange(std::vector<int> &turns, int order) {
  for (size_t i = 0; i < turns.size(); i++) turns[i] = (int)(order == 1 ? turns.size() - 1 - i : i);
  if (order < 2) return;
  for (size_t i = turns.size(); i > 1; i--) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    std::swap(turns[i - 1], turns[(random_ >> 33) % i]);
  }
}

// 0, or the line of a barrier that not all threads of a block reached. The order is another at each barrier, if it is shuffled.
static int run_block(int threads, int order) {
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
  std::vector<int> turns(threads);
  while (fibres[0].state != done) {
    arrange(turns, order);
    for (int thread : turns) resume(thread);
    for (int i = 1; i < threads; i++)
      if (fibres[i].state != fibres[0].state) return fibres[i].state == done ? fibres[0].state : fibres[i].state;
  }
  return 0;
}

static int launch(int grid, int block, int order, int without_barrier, const std::function<void()> &kernel) {
  if (!stacks) stacks = (char *)malloc((size_t)threads_max * stack_bytes);
  body = kernel;
  gridDim = {(unsigned)grid, 1, 1};
  blockDim = {(unsigned)block, 1, 1};
  skipped = without_barrier;
  reached.clear();
  random_ = order;
  std::vector<int> turns(grid);
  arrange(turns, order);
  for (int i : turns) {
    blockIdx = {(unsigned)i, 0, 0};
    if (int line = run_block(block, order)) return line;
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

template <class... A> int launch_kernel(void (*kernel)(A...), int grid, int block, void **args, int order, int without_barrier) {
  return launch(grid, block, order, without_barrier, [=] { call(kernel, args, std::index_sequence_for<A...>{}); });
}
}  // namespace emulator

// The i-th of the lines with a barrier that the last launch came to; 0 behind them.
extern "C" int reached_barrier(size_t i) { return i < emulator::reached.size() ? emulator::reached[i] : 0; }

// Stands after the text, once for each kernel: what the host calls.
#define EMULATED_KERNEL(name) \
  extern "C" const char *signature_##name() { return emulator::signature(name); } \
  extern "C" int launch_##name(int grid, int block, void **args, int order, int without_barrier) { \
    return emulator::launch_kernel(name, grid, block, args, order, without_barrier); \
  }
