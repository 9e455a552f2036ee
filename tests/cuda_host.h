// CUDA kernels on the host: what printed kernels need, and a launch that runs the threads of a block as coroutines.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

using std::isinf;
using std::isnan;
#define __global__
#define __device__ static
#define __shared__ static
#define __launch_bounds__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
struct Index { unsigned x, y, z; };
static Index blockIdx, threadIdx;
static float __int_as_float(int bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }

// what printed functions do in PTX
static float mlc_from_f16(unsigned short bits) { _Float16 h; std::memcpy(&h, &bits, 2); return float(h); }
static unsigned short mlc_to_f16(float f) {
  _Float16 h = _Float16(f);
  unsigned short bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

namespace host {
constexpr size_t STACK = 256 << 10;
struct Thread { ucontext_t context; std::vector<char> stack; bool done; Index index; };
static std::vector<Thread> threads;
static ucontext_t scheduler;
static size_t current;
static void (*kernel)(void**);
static void** operands;

static void body() { kernel(operands); threads[current].done = true; }
static void barrier() { swapcontext(&threads[current].context, &scheduler); }

// every thread as far as the next barrier, in turn, until all are done; false if some wait where others have ended
static bool block(Index size) {
  size_t n = size_t(size.x) * size.y * size.z;
  if (threads.size() < n) threads.resize(n);
  for (size_t k = 0; k < n; ++k) {
    Thread& t = threads[k];
    t.stack.resize(STACK);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = STACK;
    t.context.uc_link = &scheduler;
    t.done = false;
    t.index = {unsigned(k % size.x), unsigned(k / size.x % size.y), unsigned(k / size.x / size.y)};
    makecontext(&t.context, body, 0);
  }
  for (size_t done = 0; done < n;) {
    done = 0;
    for (current = 0; current < n; ++current) {
      threadIdx = threads[current].index;
      swapcontext(&scheduler, &threads[current].context);
      done += threads[current].done;
    }
    if (done != 0 && done != n) return false;
  }
  return true;
}

template <class... P, size_t... I> void apply(void (*f)(P...), void** a, std::index_sequence<I...>) { f((P)a[I]...); }
template <class... P> void apply(void (*f)(P...), void** a) { apply(f, a, std::index_sequence_for<P...>{}); }
template <class... P> int count(void (*)(P...)) { return sizeof...(P); }

static bool launch(void (*f)(void**), void** a, Index grid, Index size, bool meets) {
  kernel = f;
  operands = a;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        if (meets) {
          if (!block(size)) return false;
          continue;
        }
        for (threadIdx.z = 0; threadIdx.z < size.z; ++threadIdx.z)
          for (threadIdx.y = 0; threadIdx.y < size.y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < size.x; ++threadIdx.x) f(a);
      }
  return true;
}
}  // namespace host
#define __syncthreads() host::barrier()
#define KERNEL(name, meets)                                                                                       \
  extern "C" int count_##name() { return host::count(name); }                                                     \
  extern "C" int launch_##name(void** a, const unsigned* n) {                                                     \
    return host::launch([](void** p) { host::apply(name, p); }, a, {n[0], n[1], n[2]}, {n[3], n[4], n[5]}, meets); \
  }
