// CUDA kernels on the host: what printed kernels need, and a launch that runs the threads of a block as coroutines.
#include <cmath>
#include <cstdlib>
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
alignas(16) static unsigned char mlc_shared[227 << 10];  // what launches ask for
#define __launch_bounds__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
struct Index { unsigned x, y, z; };
static Index blockIdx, threadIdx;
static float __int_as_float(int bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }

// what printed functions do in PTX
static unsigned mlc_to_tf32(unsigned bits) { return (bits + 0x1000) & ~0x1fffu; }
static float mlc_from_f16(unsigned short bits) { _Float16 h; std::memcpy(&h, &bits, 2); return float(h); }
static unsigned short mlc_to_f16(float f) {
  _Float16 h = _Float16(f);
  unsigned short bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

namespace host {
constexpr size_t STACK = 256 << 10;
struct Copy { void* to; const void* from; size_t bytes; bool there; };
using Copies = std::vector<Copy>;
struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool done;
  Index index;
  Copies begun;
  std::vector<Copies> groups;
};
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
    t.begun.clear();
    t.groups.clear();
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
  current = 0;
  if (threads.empty()) threads.resize(1);
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

namespace host {
static unsigned long long given[1024];
template <class T> T shuffle(T value, unsigned flip) {
  std::memcpy(&given[current], &value, sizeof value);
  barrier();
  std::memcpy(&value, &given[current ^ flip], sizeof value);
  barrier();
  return value;
}
}  // namespace host
#define __shfl_xor_sync(all, value, flip) host::shuffle(value, flip)

// Asynchronous copies arrive as late as they may: when their thread waits for them.
namespace host {
static void copy(void* to, const void* from, size_t bytes, bool there) {
  threads[current].begun.push_back({to, from, bytes, there});
}
static void commit() {
  threads[current].groups.push_back(std::move(threads[current].begun));
  threads[current].begun.clear();
}
static void wait(size_t latest) {
  std::vector<Copies>& groups = threads[current].groups;
  while (groups.size() > latest) {
    for (const Copy& c : groups.front()) {
      if (c.there) std::memcpy(c.to, c.from, c.bytes);
      else std::memset(c.to, 0, c.bytes);
    }
    groups.erase(groups.begin());
  }
}
}  // namespace host
#define COPY(n)                                                                                            \
  static void mlc_copy_##n(void* to, const void* from) { host::copy(to, from, n, true); }                    \
  static void mlc_copy_##n##_or_zero(void* to, const void* from, bool there) { host::copy(to, from, n, there); }
COPY(4)
COPY(8)
COPY(16)
static void mlc_commit() { host::commit(); }
#define WAIT(n) static void mlc_wait_##n() { host::wait(n); }
WAIT(0)
WAIT(1)
WAIT(2)
WAIT(3)

// What a warp does together: every thread leaves its registers, and when all have, each takes what it needs. Fragments
// are those of the PTX ISA, for words of 4 bytes: of A, word w of row r is register r / 8 + 2 * (w / 4) of thread
// 4 * (r % 8) + w % 4; of B, word w of column n is register w / 4 of thread 4 * n + w % 4.
namespace host {
struct Registers { unsigned a[4], b[2]; };
static Registers warps[1024];

struct f16 {
  static constexpr int count = 2;
  static float at(unsigned word, int k) { return mlc_from_f16(word >> 16 * k); }
};
struct bf16 {
  static constexpr int count = 2;
  static float at(unsigned word, int k) { return __int_as_float(word >> 16 * k << 16); }
};
struct f32 {
  static constexpr int count = 1;
  static float at(unsigned word, int) { return __int_as_float(word); }
};
struct i8 {
  static constexpr int count = 4;
  static int at(unsigned word, int k) { return (signed char)(word >> 8 * k); }
};
struct u8 {
  static constexpr int count = 4;
  static int at(unsigned word, int k) { return (unsigned char)(word >> 8 * k); }
};

template <class A, class B, class S>
void mma(S& c0, S& c1, S& c2, S& c3, Registers mine) {
  warps[current] = mine;
  barrier();
  const Registers* warp = warps + current / 32 * 32;
  S* c[4] = {&c0, &c1, &c2, &c3};
  for (int i = 0; i < 4; ++i) {
    int row = current % 32 / 4 + i / 2 * 8, column = current % 4 * 2 + i % 2;
    for (int w = 0; w < 8; ++w)
      for (int k = 0; k < A::count; ++k)
        *c[i] += A::at(warp[row % 8 * 4 + w % 4].a[row / 8 + w / 4 * 2], k) * B::at(warp[column * 4 + w % 4].b[w / 4], k);
  }
  barrier();
}
}  // namespace host
// Rows of 16 bytes: thread 8 * m + r says where row r of matrix m begins; a thread gets word l % 4 of row l / 4 of each,
// or of what it is transposed, elements of 2 bytes. What does not begin at 16 bytes would be a fault.
namespace host {
static const void* rows[1024];
template <bool Turned, class... R> void ldmatrix(const void* row, R&... words) {
  if ((unsigned long)row % 16) std::abort();
  rows[current] = row;
  barrier();
  const char** warp = (const char**)rows + current / 32 * 32;
  int m = 0, line = current % 32 / 4, word = current % 4;
  for (unsigned* to : {&words...}) {
    const char** matrix = warp + 8 * m++;
    if (!Turned) std::memcpy(to, matrix[line] + word * 4, 4);
    else for (int e = 0; e < 2; ++e) std::memcpy((char*)to + 2 * e, matrix[word * 2 + e] + line * 2, 2);
  }
  barrier();
}
}  // namespace host
template <bool Turned> static void mlc_ldmatrix_2(unsigned& a, unsigned& b, const void* row) {
  host::ldmatrix<Turned>(row, a, b);
}
template <bool Turned>
static void mlc_ldmatrix_4(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* row) {
  host::ldmatrix<Turned>(row, a, b, c, d);
}
#define MMA(A, B, S)                                                                                             \
  static void mlc_mma_sync_##A##_##B(S& c0, S& c1, S& c2, S& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                                     unsigned b0, unsigned b1) {                                                   \
    host::mma<host::A, host::B>(c0, c1, c2, c3, {{a0, a1, a2, a3}, {b0, b1}});                                     \
  }
MMA(f16, f16, float)
MMA(bf16, bf16, float)
MMA(f32, f32, float)
MMA(i8, i8, int)
MMA(u8, i8, int)
MMA(i8, u8, int)
MMA(u8, u8, int)
#define KERNEL(name, meets)                                                                                       \
  extern "C" int count_##name() { return host::count(name); }                                                     \
  extern "C" int launch_##name(void** a, const unsigned* n) {                                                     \
    return host::launch([](void** p) { host::apply(name, p); }, a, {n[0], n[1], n[2]}, {n[3], n[4], n[5]}, meets); \
  }
