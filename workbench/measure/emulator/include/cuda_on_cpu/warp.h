// Warp operations: __syncwarp, shuffles, votes, reductions, matches; and collective(), from which others are made.
#pragma once
#pragma GCC system_header

#include <string.h>

#include "cuda_on_cpu/block.h"

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

// The number of the running thread within its warp.
inline int lane_id() {
  return current->thread->id % warp_size;
}

// All lanes of `mask` that have not exited meet here; the last to arrive calls function(arguments, present) for all.
inline void collective(unsigned mask, void* argument, Collective function, Where where = Where::here()) {
  current->collective(mask, argument, function, where);
}

// Ends the launch with an error that names the block and the thread.
template <class... Values>
[[noreturn]] void stop(cudaError_t code, const char* format, Values... values) {
  current->stop(code, format, values...);
}

template <class T>
struct Shuffle {
  T value, result;
  int source;
};

template <class T>
T shuffle(unsigned mask, T value, int source, Where where) {
  static_assert(sizeof(T) <= 8, "CUDA shuffles values of at most 8 bytes");
  Shuffle<T> mine{value, value, source};
  auto exchange = [](void* const* arguments, unsigned) {
    for (int lane = 0; lane < warp_size; ++lane) {
      auto* to = static_cast<Shuffle<T>*>(arguments[lane]);
      if (to == nullptr) {
        continue;
      }
      if (auto* from = static_cast<Shuffle<T>*>(arguments[to->source])) {
        to->result = from->value;
      } else {
        // CUDA leaves what an absent lane gives undefined. NaN or -1 here, so that it shows.
        memset(static_cast<void*>(&to->result), 0xFF, sizeof(T));
      }
    }
  };
  collective(mask, &mine, exchange, where);
  return mine.result;
}

// One value from each lane; combine() sees those of the lanes present and gives one result to all.
template <class T, class Combine>
T reduce(unsigned mask, T value, Combine, Where where) {
  struct Reduction {
    T value, result;
  } mine{value, value};
  auto function = [](void* const* arguments, unsigned present) {
    T result = static_cast<Reduction*>(arguments[__builtin_ctz(present)])->value;
    for (unsigned lanes = present & (present - 1); lanes != 0; lanes &= lanes - 1) {
      result = Combine{}(result, static_cast<Reduction*>(arguments[__builtin_ctz(lanes)])->value);
    }
    for (unsigned lanes = present; lanes != 0; lanes &= lanes - 1) {
      static_cast<Reduction*>(arguments[__builtin_ctz(lanes)])->result = result;
    }
  };
  collective(mask, &mine, function, where);
  return mine.result;
}

}  // namespace cuda_on_cpu

inline void __syncwarp(unsigned mask = ~0u, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  cuda_on_cpu::collective(mask, nullptr, [](void* const*, unsigned) {}, where);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  const int lane = cuda_on_cpu::lane_id();
  return cuda_on_cpu::shuffle(mask, value, (lane & -width) + (source & (width - 1)), where);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  const int lane = cuda_on_cpu::lane_id();
  const bool inside = delta <= static_cast<unsigned>(lane & (width - 1));
  return cuda_on_cpu::shuffle(mask, value, inside ? lane - static_cast<int>(delta) : lane, where);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  const int lane = cuda_on_cpu::lane_id();
  const bool inside = delta < static_cast<unsigned>(width - (lane & (width - 1)));
  return cuda_on_cpu::shuffle(mask, value, inside ? lane + static_cast<int>(delta) : lane, where);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  const int lane = cuda_on_cpu::lane_id();
  const int source = (lane ^ lane_mask) & 31;
  // Groups before the own one may be read, groups after it not.
  return cuda_on_cpu::shuffle(mask, value, (source & -width) <= (lane & -width) ? source : lane, where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  const unsigned bit = predicate != 0 ? 1u << cuda_on_cpu::lane_id() : 0;
  return cuda_on_cpu::reduce(mask, bit, [](unsigned a, unsigned b) { return a | b; }, where);
}

inline int __any_sync(unsigned mask, int predicate, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  return __ballot_sync(mask, predicate, where) != 0;
}

inline int __all_sync(unsigned mask, int predicate, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  return __ballot_sync(mask, predicate == 0, where) == 0;
}

// All lanes that have not exited: divergence is not tracked.
inline unsigned __activemask() {
  return cuda_on_cpu::current->lanes_alive();
}

#define CUDA_ON_CPU_REDUCE(name, Type, expression)                                                             \
  inline Type name(unsigned mask, Type value, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {         \
    return cuda_on_cpu::reduce(mask, value, [](Type a, Type b) { return static_cast<Type>(expression); }, where); \
  }
CUDA_ON_CPU_REDUCE(__reduce_add_sync, unsigned, a + b)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_add_sync, int, static_cast<unsigned>(a) + static_cast<unsigned>(b))
CUDA_ON_CPU_REDUCE(__reduce_min_sync, int, a < b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, int, a > b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_and_sync, unsigned, a & b)
CUDA_ON_CPU_REDUCE(__reduce_or_sync, unsigned, a | b)
CUDA_ON_CPU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef CUDA_ON_CPU_REDUCE

// The lanes that hold the same bits as the calling one.
template <class T>
unsigned __match_any_sync(unsigned mask, T value, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  struct Match {
    T value;
    unsigned result;
  } mine{value, 0};
  auto function = [](void* const* arguments, unsigned present) {
    for (unsigned lanes = present; lanes != 0; lanes &= lanes - 1) {
      auto* one = static_cast<Match*>(arguments[__builtin_ctz(lanes)]);
      for (unsigned others = present; others != 0; others &= others - 1) {
        const int other = __builtin_ctz(others);
        if (memcmp(&one->value, &static_cast<Match*>(arguments[other])->value, sizeof(T)) == 0) {
          one->result |= 1u << other;
        }
      }
    }
  };
  cuda_on_cpu::collective(mask, &mine, function, where);
  return mine.result;
}

// `mask` and 1 if all lanes hold the same bits, else 0 and 0.
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all, cuda_on_cpu::Where where = cuda_on_cpu::Where::here()) {
  const unsigned same = __match_any_sync(mask, value, where);
  *all = __all_sync(mask, (same & mask) == (cuda_on_cpu::current->lanes_alive() & mask), where);
  return *all != 0 ? mask : 0;
}
