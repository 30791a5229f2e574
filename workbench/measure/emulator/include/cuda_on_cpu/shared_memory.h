// Shared memory. Each variable is a heap buffer of exactly its size, filled with 0xFF for every block: what a kernel
// reads before writing is NaN or -1, never what the block before left, and AddressSanitizer sees every overrun.
#pragma once
#pragma GCC system_header

#include <stdlib.h>
#include <string.h>

#include "cuda_on_cpu/block.h"

// `extern __shared__ T name[];` and `__shared__ T name;` (the type comes last: it may hold commas).
#define CUDA_ON_CPU_DYNAMIC_SHARED(name, ...) auto* const name = cuda_on_cpu::dynamic_shared<__VA_ARGS__>()
// static, not a plain reference: a lambda in the kernel must not capture it, as it would not on a GPU.
#define CUDA_ON_CPU_SHARED(name, ...)                                                               \
  static thread_local __attribute__((unused)) auto& name = cuda_on_cpu::allocate_shared<__VA_ARGS__>(); \
  cuda_on_cpu::meet_shared(const_cast<void*>(reinterpret_cast<const volatile void*>(&name)), sizeof name)

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

constexpr size_t max_static_shared = 48 << 10;   // more is refused by ptxas
constexpr size_t max_default_shared = 48 << 10;  // more, and the kernel must ask with cudaFuncSetAttribute
constexpr size_t max_shared = 227 << 10;         // of sm_90

inline char* allocate_shared_bytes(size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, 128, bytes) != 0) {
    fprintf(stderr, "cuda_on_cpu: no memory for %zu bytes of shared memory\n", bytes);
    abort();
  }
  return static_cast<char*>(data);
}

// The static shared variables of this OS thread; they live as long as it does.
struct OwnedBuffers {
  struct Node {
    Node* next;
    char* data;
  };
  Node* first = nullptr;
  void add(char* data) { first = new Node{first, data}; }
  ~OwnedBuffers() {
    while (first != nullptr) {
      Node* node = first;
      first = node->next;
      free(node->data);
      delete node;
    }
  }
};
inline thread_local OwnedBuffers owned_buffers;

template <class T>
T& allocate_shared() {
  char* data = allocate_shared_bytes(sizeof(T));
  owned_buffers.add(data);
  return *reinterpret_cast<T*>(data);
}

// A thread has come to the declaration of a static shared variable: the block's first one fills it.
inline void meet_shared(void* data, size_t bytes) {
  Block& block = *current;
  size_t total = bytes;
  for (int i = 0; i < block.static_count; ++i) {
    if (block.statics[i].data == data) {
      return;
    }
    total += block.statics[i].bytes;
  }
  if (total > max_static_shared) {
    block.stop(cudaErrorInvalidValue,
               "the kernel declares %zu bytes of static shared memory; the limit is %zu: use extern __shared__", total,
               max_static_shared);
  }
  if (total + block.dynamic.bytes > max_shared) {
    block.stop(cudaErrorInvalidValue, "%zu bytes of static and %zu of dynamic shared memory; the limit is %zu together",
               total, block.dynamic.bytes, max_shared);
  }
  if (block.static_count == sizeof block.statics / sizeof block.statics[0]) {
    block.stop(cudaErrorNotSupported, "the emulator allows %d static shared variables in a kernel", block.static_count);
  }
  memset(data, 0xFF, bytes);
  block.statics[block.static_count++] = {static_cast<char*>(data), bytes};
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(current->dynamic.data);
}

// The offset of an address within the block's shared memory, dynamic first; ~0 if it lies elsewhere.
inline size_t shared_offset(const void* address) {
  const Block& block = *current;
  const uintptr_t wanted = reinterpret_cast<uintptr_t>(address);
  size_t before = 0;
  for (int i = -1; i < block.static_count; ++i) {
    const SharedRegion& region = i < 0 ? block.dynamic : block.statics[i];
    const uintptr_t start = reinterpret_cast<uintptr_t>(region.data);
    if (wanted >= start && wanted < start + region.bytes) {
      return before + (wanted - start);
    }
    before += (region.bytes + 127) / 128 * 128;
  }
  return ~size_t(0);
}

// Storage that each CUDA thread owns while its block runs, for emulations of hardware that keeps state per thread
// (cp.async groups). T: all-zero bytes are a valid empty value; clear() empties it; release() also frees what it holds.

// The storage of one type T for all threads of one OS thread's blocks.
template <class T>
struct ThreadStorage {
  struct Slot {
    unsigned long serial;  // the block that used it last
    T value;
  };
  Slot* slots = nullptr;
  ~ThreadStorage() {
    for (int i = 0; slots != nullptr && i < max_threads; ++i) {
      slots[i].value.release();
    }
    free(slots);
  }
};

// The running CUDA thread's own T; empty when its block begins.
template <class T>
T& thread_storage() {
  static thread_local ThreadStorage<T> storage;
  if (storage.slots == nullptr) {
    storage.slots = static_cast<typename ThreadStorage<T>::Slot*>(calloc(max_threads, sizeof(storage.slots[0])));
  }
  auto& slot = storage.slots[current->thread->id];
  if (slot.serial != current->serial) {
    slot.serial = current->serial;
    slot.value.clear();
  }
  return slot.value;
}

}  // namespace cuda_on_cpu
