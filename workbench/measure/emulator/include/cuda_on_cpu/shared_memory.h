// Shared memory. Each variable has its own pages, filled with 0xFF for every block: what a kernel reads before writing is NaN or
// -1, never what the block before left. An access outside ends the launch: the pages beside it are closed, and what is left
// of its own pages is looked at when the block has ended. With AddressSanitizer it is a heap buffer of exactly its size.
#pragma once
#pragma GCC system_header

#include <stdlib.h>
#include <string.h>

#include "cuda_on_cpu/block.h"
#include "cuda_on_cpu/device_memory.h"

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

inline size_t shared_pages(size_t bytes) {
  return (SharedRegion::whole(bytes) + page_bytes - 1) / page_bytes * page_bytes;
}

inline char* allocate_shared_bytes(size_t bytes) {
  char* data = nullptr;
#ifdef CUDA_ON_CPU_ASAN
  void* found = nullptr;
  data = posix_memalign(&found, SharedRegion::step, bytes) == 0 ? static_cast<char*>(found) : nullptr;
#else
  const size_t pages = shared_pages(bytes);
  void* found = mmap(nullptr, pages + 2 * page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found != MAP_FAILED && mprotect(static_cast<char*>(found) + page_bytes, pages, PROT_READ | PROT_WRITE) == 0) {
    memset(static_cast<char*>(found) + page_bytes, 0xFF, pages);
    data = static_cast<char*>(found) + page_bytes + pages - SharedRegion::whole(bytes);
    watch_faults();
  }
#endif
  if (data == nullptr) {
    fprintf(stderr, "cuda_on_cpu: no memory for %zu bytes of shared memory\n", bytes);
    abort();
  }
  return data;
}

inline void free_shared_bytes(char* data, size_t bytes) {
#ifdef CUDA_ON_CPU_ASAN
  static_cast<void>(bytes);
  free(data);
#else
  const size_t pages = shared_pages(bytes);
  munmap(data + SharedRegion::whole(bytes) - pages - page_bytes, pages + 2 * page_bytes);
#endif
}

// The static shared variables of this OS thread; they live as long as it does.
struct OwnedBuffers {
  struct Node {
    Node* next;
    char* data;
    size_t bytes;
  };
  Node* first = nullptr;
  void add(char* data, size_t bytes) { first = new Node{first, data, bytes}; }
  ~OwnedBuffers() {
    while (first != nullptr) {
      Node* node = first;
      first = node->next;
      free_shared_bytes(node->data, node->bytes);
      delete node;
    }
  }
};
inline thread_local OwnedBuffers owned_buffers;

template <class T>
T& allocate_shared() {
  char* data = allocate_shared_bytes(sizeof(T));
  owned_buffers.add(data, sizeof(T));
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
#ifdef CUDA_ON_CPU_ASAN
  memset(data, 0xFF, bytes);
#else
  const SharedRegion all{static_cast<char*>(data), bytes};  // and what an earlier launch has written beside it
  memset(all.data - all.spare_before(), 0xFF, all.spare_before() + SharedRegion::whole(bytes));
#endif
  if (block.shared_watch != nullptr) {
    size_t before = SharedRegion::whole(block.dynamic.bytes);
    for (int i = 0; i < block.static_count; ++i) {
      before += SharedRegion::whole(block.statics[i].bytes);
    }
    memset(block.shared_watch->copy + before, 0xFF, bytes);
  }
  block.statics[block.static_count++] = {static_cast<char*>(data), bytes};
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(current->dynamic.data);
}

// The offset of an address within the block's shared memory, dynamic first; ~0 if it lies elsewhere.
inline size_t offset_in_shared(const void* address) {
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

// The same for instructions that read and write shared memory by offset, in an order that only barriers there tell.
inline size_t shared_offset(const void* address) {
  current->shared_watch = nullptr;
  return offset_in_shared(address);
}

// Whether the bytes beside a buffer of shared memory are as they were; records an error if not.
inline bool Block::shared_is_whole(const SharedRegion& region) {
#ifndef CUDA_ON_CPU_ASAN
  const size_t spare = region.spare_before(), end = SharedRegion::whole(region.bytes);
  const size_t before = SharedRegion::written(region.data - spare, spare, false);
  const size_t behind = SharedRegion::written(region.data + region.bytes, end - region.bytes, true);
  if (before != 0 || behind != 0) {
    record_error(cudaErrorIllegalAddress, "a thread of block (%u, %u, %u) wrote %zu bytes %s of %zu bytes of shared memory",
                 index.x, index.y, index.z, behind != 0 ? behind : before, behind != 0 ? "behind the end" : "before the start",
                 region.bytes);
    return false;
  }
#endif
  return true;
}

inline bool SharedWatch::begin() {
  copy = static_cast<char*>(Watch::reserve(most_bytes));
  marks = static_cast<Mark*>(Watch::reserve(most_bytes * sizeof(Mark)));
  return copy != nullptr && marks != nullptr;
}

inline void SharedWatch::end() {
  munmap(copy, most_bytes);
  munmap(marks, most_bytes * sizeof(Mark));
}

inline void SharedWatch::block_begins(const Block& block) {
  ++epoch;
  memset(copy, 0xFF, SharedRegion::whole(block.dynamic.bytes));
}

inline void SharedWatch::note(Block& block) {
  const uint16_t me = block.thread->id, warp = me / warp_size;
  size_t before = 0;
  for (int i = -1; i < block.static_count; ++i) {
    const SharedRegion& region = i < 0 ? block.dynamic : block.statics[i];
    char* const old = copy + before;
    if (memcmp(old, region.data, region.bytes) != 0) {
      for (size_t byte = 0; byte < region.bytes; ++byte) {
        if (old[byte] == region.data[byte]) {
          continue;
        }
        Mark& mark = marks[before + byte];
        const bool met = mark.thread / warp_size == warp && mark.warp_epoch != warp_epochs[warp];
        if (mark.epoch == epoch && mark.thread != me && !met && device_memory.fault == no_fault) {
          device_memory.fault = two_threads;
          device_memory.fault_at = device_memory.whole.start;
          record_error(cudaErrorLaunchFailure, "threads %d and %d of block (%u, %u, %u) change byte %zu of %zu of shared memory",
                       mark.thread, me, block.index.x, block.index.y, block.index.z, byte, region.bytes);
        }
        mark = {epoch, me, warp_epochs[warp]};
        old[byte] = region.data[byte];
      }
    }
    compared += region.bytes;
    before += SharedRegion::whole(region.bytes);
  }
  if (compared > most_compared) {
    block.shared_watch = nullptr;
  }
}

// Around an atomic, which other threads may wait for: what it changes is no conflict.
struct AtomicInShared {
  const void* address;
  size_t bytes;
  AtomicInShared(const void* address, size_t bytes) : address(address), bytes(bytes) {
    if (current != nullptr && current->shared_watch != nullptr) {
      current->note_shared();
    }
  }
  ~AtomicInShared() {
    SharedWatch* watch = current == nullptr ? nullptr : current->shared_watch;
    if (watch == nullptr) {
      return;
    }
    ++watch->epoch;
    const size_t offset = offset_in_shared(address);
    if (offset != ~size_t(0)) {
      memcpy(watch->copy + offset, address, bytes);
    }
  }
};

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
