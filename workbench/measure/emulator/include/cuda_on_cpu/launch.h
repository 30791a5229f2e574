// kernel<<<grid, block, bytes, stream>>>(arguments), which translate.py writes as
// cuda_on_cpu::launch(kernel, grid, block, bytes, stream)(arguments): the driver's checks, then all blocks, at once.
#pragma once
#pragma GCC system_header

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>

#include "cuda_on_cpu/block.h"
#include "cuda_on_cpu/device_memory.h"
#include "cuda_on_cpu/shared_memory.h"

struct CUstream_st;
typedef CUstream_st* cudaStream_t;

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

// translate.py puts it around decltype(x) in decltype(x)::value.
template <class T>
using plain = std::remove_reference_t<T>;

// Set by whoever loads the library; empty: the environment's CUDACPU_ORDER, which host code can change.
inline char given_order[32] = "";

// What cudaFuncSetAttribute has allowed, by kernel.
struct DynamicSharedLimits {
  struct Node {
    Node* next;
    const void* kernel;
    size_t bytes;
  };
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Node* first = nullptr;
};
inline DynamicSharedLimits dynamic_shared_limits;

inline void set_dynamic_shared_limit(const void* kernel, size_t bytes) {
  DynamicSharedLimits& limits = dynamic_shared_limits;
  pthread_mutex_lock(&limits.lock);
  auto* node = limits.first;
  while (node != nullptr && node->kernel != kernel) {
    node = node->next;
  }
  if (node == nullptr) {
    node = limits.first = new DynamicSharedLimits::Node{limits.first, kernel, 0};
  }
  node->bytes = bytes;
  pthread_mutex_unlock(&limits.lock);
}

// What `kernel` may use; of a kernel whose address is not known (null), what any kernel may.
inline size_t dynamic_shared_limit(const void* kernel) {
  DynamicSharedLimits& limits = dynamic_shared_limits;
  size_t bytes = max_default_shared;
  pthread_mutex_lock(&limits.lock);
  for (const auto* node = limits.first; node != nullptr; node = node->next) {
    if ((kernel == nullptr || node->kernel == kernel) && node->bytes > bytes) {
      bytes = node->bytes;
    }
  }
  pthread_mutex_unlock(&limits.lock);
  return bytes;
}

// The driver's checks of a launch; records what is wrong.
inline bool launch_allowed(const void* kernel, const Grid& grid) {
  const dim3 b = grid.blocks, t = grid.threads;
  const uint64_t threads = static_cast<uint64_t>(t.x) * t.y * t.z;
  if (threads == 0 || t.x > max_threads || t.y > max_threads || threads > max_threads || t.z > 64) {
    record_error(cudaErrorInvalidConfiguration,
                 "invalid configuration argument: block of %u x %u x %u threads; allowed are 1 to 1024 in all, z to 64",
                 t.x, t.y, t.z);
    return false;
  }
  if (threads > grid.most_threads) {
    record_error(cudaErrorInvalidValue, "invalid argument: block of %u x %u x %u threads; the kernel's __launch_bounds__ allow %u",
                 t.x, t.y, t.z, grid.most_threads);
    return false;
  }
  if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > 0x7FFFFFFFu || b.y > 65535 || b.z > 65535) {
    record_error(cudaErrorInvalidConfiguration,
                 "invalid configuration argument: grid of %u x %u x %u blocks; allowed are 1 to 2^31-1, 65535, 65535",
                 b.x, b.y, b.z);
    return false;
  }
  if (grid.dynamic_bytes > max_shared) {
    record_error(cudaErrorInvalidValue, "invalid argument: %zu bytes of dynamic shared memory; the limit is %zu",
                 grid.dynamic_bytes, max_shared);
    return false;
  }
  const size_t limit = dynamic_shared_limit(kernel);
  if (grid.dynamic_bytes > limit) {
    record_error(cudaErrorInvalidValue,
                 "invalid argument: %zu bytes of dynamic shared memory; this kernel may use %zu: call "
                 "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first",
                 grid.dynamic_bytes, limit);
    return false;
  }
  return true;
}

// The n-th block to run, of `count`: a permutation without a table, since there may be 2^62 of them.
struct BlockOrder {
  uint64_t count, factor = 1, offset = 0;

  BlockOrder(uint64_t count, const char* order) : count(count) {
    if (order == nullptr || order[0] == 'f') {
      return;
    }
    if (order[0] == 'r') {
      factor = offset = count - 1;
      return;
    }
    uint64_t random = strtoull(order, nullptr, 10) * 2 + 1;
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    offset = (random >> 33) % count;
    do {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      factor = (random >> 3) % count;
    } while (count > 1 && common_divisor(factor, count) != 1);
  }

  uint64_t operator()(uint64_t n) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(n) * factor + offset) % count);
  }

  static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
      const uint64_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }
};

// One launch, and the OS threads that work it off.
struct Run {
  const Grid& grid;
  const char* order;
  BlockOrder block_order;
  uint64_t next = 0;
  bool failed = false;

  void work() {
    Block* before = current;
    Block* block = new Block(grid, order);
    block->dynamic = {allocate_shared_bytes(grid.dynamic_bytes), grid.dynamic_bytes};
    current = block;
    SharedWatch shared_watch;
    if (device_memory.watch.active && shared_watch.begin()) {
      block->shared_watch = &shared_watch;
    }
    while (!__atomic_load_n(&failed, __ATOMIC_RELAXED)) {
      const uint64_t n = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (n >= block_order.count) {
        break;
      }
      const uint64_t i = block_order(n);
      const uint64_t row = i / grid.blocks.x;
      memset(block->dynamic.data, 0xFF, grid.dynamic_bytes);
      const uint3 index = {static_cast<unsigned>(i % grid.blocks.x), static_cast<unsigned>(row % grid.blocks.y),
                           static_cast<unsigned>(row / grid.blocks.y)};
      if (!block->run(index)) {
        __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
      }
      if (device_memory.watch.active) {
        device_memory.watch.end_block(index);
      }
    }
    current = before;
    shared_watch.end();
    free_shared_bytes(block->dynamic.data, grid.dynamic_bytes);
    delete block;
  }
};

inline int worker_count() {
  if (const char* wanted = getenv("CUDACPU_THREADS")) {
    const int count = atoi(wanted);
    return count < 1 ? 1 : count;
  }
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

inline int launched = 0;  // 1 after the first launch of this library

inline void run_grid(const Grid& grid) {
  __atomic_store_n(&launched, 1, __ATOMIC_RELAXED);
  const OpenDeviceMemory open;
  const char* order = given_order[0] != 0 ? given_order : getenv("CUDACPU_ORDER");
  const uint64_t blocks = static_cast<uint64_t>(grid.blocks.x) * grid.blocks.y * grid.blocks.z;
  Run run{grid, order, BlockOrder(blocks, order)};
  constexpr int most = 256;
  int workers = worker_count();
  const WatchedBlocks watched;
  workers = device_memory.watch.active ? 1 : workers < most ? workers : most;
  workers = static_cast<uint64_t>(workers) < blocks ? workers : static_cast<int>(blocks);
  pthread_t others[most];
  int started = 0;
  while (started < workers - 1 &&
         pthread_create(
             &others[started], nullptr,
             [](void* work) -> void* {
               static_cast<Run*>(work)->work();
               return nullptr;
             },
             &run) == 0) {
    ++started;
  }
  run.work();
  for (int i = 0; i < started; ++i) {
    pthread_join(others[i], nullptr);
  }
}

// Runs call() as every CUDA thread of the grid; it must copy what threads may change.
template <class Call>
void run_grid_of(Grid grid, const Call& call) {
  grid.run_thread = [](const void* call_of_thread) { (*static_cast<const Call*>(call_of_thread))(); };
  grid.call = &call;
  run_grid(grid);
}

template <class... Parameters>
struct Launch {
  void (*kernel)(Parameters...);
  Grid grid;

  Launch of_most(unsigned threads) const {
    Launch bounded = *this;
    bounded.grid.most_threads = threads;
    return bounded;
  }
  void operator()(std::type_identity_t<Parameters>... arguments) const {
    if (launch_allowed(reinterpret_cast<const void*>(kernel), grid)) {
      run_grid_of(grid, [kernel = kernel, arguments...] { kernel(arguments...); });
    }
  }
};

template <class... Parameters>
Launch<Parameters...> launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t dynamic_bytes = 0,
                             cudaStream_t stream = nullptr) {
  note_stream(stream);
  return {kernel, Grid{blocks, threads, dynamic_bytes, nullptr, nullptr}};
}

// A kernel whose template arguments follow from the call's.
template <class Kernel>
struct DeducedLaunch {
  Kernel kernel;
  Grid grid;

  DeducedLaunch of_most(unsigned threads) const {
    DeducedLaunch bounded = *this;
    bounded.grid.most_threads = threads;
    return bounded;
  }
  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    if (launch_allowed(nullptr, grid)) {
      run_grid_of(grid, [kernel = kernel, arguments...] { kernel(arguments...); });
    }
  }
};

template <class Kernel>
DeducedLaunch<Kernel> launch_deduced(Kernel kernel, dim3 blocks, dim3 threads, size_t dynamic_bytes = 0,
                                     cudaStream_t stream = nullptr) {
  note_stream(stream);
  return {kernel, Grid{blocks, threads, dynamic_bytes, nullptr, nullptr}};
}

}  // namespace cuda_on_cpu

CUDA_ON_CPU_EXPORT int cuda_on_cpu_launched() {
  return cuda_on_cpu::launched;
}

CUDA_ON_CPU_EXPORT void cuda_on_cpu_set_order(const char* order) {
  snprintf(cuda_on_cpu::given_order, sizeof cuda_on_cpu::given_order, "%s", order);
}
