// Atomic operations on memory of any kind: blocks run in parallel, so they are real ones.
#pragma once
#pragma GCC system_header

#include <type_traits>

#include "cuda_on_cpu/shared_memory.h"

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

// Replaces *address by update(old); returns old.
template <class T, class Update>
T read_modify_write(T* address, Update update) {
  device_memory.watch.mark_atomic(address, sizeof(T));
  const AtomicInShared watched(address, sizeof(T));
  T before, after;
  __atomic_load(address, &before, __ATOMIC_RELAXED);
  do {
    after = update(before);
  } while (!__atomic_compare_exchange(address, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_ATOMIC(name, expression)                                                              \
  template <class T>                                                                                      \
  T name(T* address, std::type_identity_t<T> value) {                                                     \
    return cuda_on_cpu::read_modify_write(address, [value](T old) { return static_cast<T>(expression); }); \
  }                                                                                                       \
  template <class T>                                                                                      \
  T name##_block(T* address, std::type_identity_t<T> value) {                                             \
    return name(address, value);                                                                          \
  }                                                                                                       \
  template <class T>                                                                                      \
  T name##_system(T* address, std::type_identity_t<T> value) {                                            \
    return name(address, value);                                                                          \
  }
CUDA_ON_CPU_ATOMIC(atomicAdd, old + value)
CUDA_ON_CPU_ATOMIC(atomicSub, old - value)
CUDA_ON_CPU_ATOMIC(atomicMin, value < old ? value : old)
CUDA_ON_CPU_ATOMIC(atomicMax, old < value ? value : old)
CUDA_ON_CPU_ATOMIC(atomicExch, (static_cast<void>(old), value))
CUDA_ON_CPU_ATOMIC(atomicAnd, old & value)
CUDA_ON_CPU_ATOMIC(atomicOr, old | value)
CUDA_ON_CPU_ATOMIC(atomicXor, old ^ value)
CUDA_ON_CPU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
CUDA_ON_CPU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef CUDA_ON_CPU_ATOMIC

template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return cuda_on_cpu::read_modify_write(address, [expected, value](T old) { return old == expected ? value : old; });
}

inline void __threadfence() {
  cuda_on_cpu::device_memory.watch.fenced = true;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  cuda_on_cpu::device_memory.watch.fenced = true;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
