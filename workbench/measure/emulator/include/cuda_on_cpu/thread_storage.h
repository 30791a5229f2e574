// Storage that each CUDA thread owns while its block runs, for emulations of hardware that keeps state per thread
// (cp.async groups). T: all-zero bytes are a valid empty value; clear() empties it; release() also frees what it holds.
#pragma once
#pragma GCC system_header

#include <stdlib.h>

#include "cuda_on_cpu/block.h"

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

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
