// Bulk copies from shared to global memory (sm_90): the copy engine stores whole sectors while the threads go on.
// Under `__CUDACPU__` the emulator's version of each stands beside the PTX.
#pragma once
#include "common/ptx.cuh"

#ifdef __CUDACPU__
namespace ptx_emulation {
// Done only when a wait says so: a forgotten wait, or an image filled again too early, shows.
struct PendingStores : PendingCopies {};
}  // namespace ptx_emulation
#endif

// Before a bulk copy, by every thread that stored to what it reads; then a barrier of these threads and the copying one.
__device__ __forceinline__ void copy_engine_sees_stores() {
#if !defined(__CUDACPU__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Copies `bytes` from shared to global memory. Addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
#ifdef __CUDACPU__
  if (reinterpret_cast<size_t>(shared) % 16 != 0 || reinterpret_cast<size_t>(global) % 16 != 0 || bytes % 16 != 0 ||
      bytes <= 0) {
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "bulk_store: %d bytes, not all multiples of 16", bytes);
  }
  if (!__isShared(shared)) cuda_on_cpu::stop(cudaErrorIllegalAddress, "bulk_store: the source is not shared memory");
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingStores>();
  mine.add({global, shared, bytes, bytes, mine.committed});
#elif __CUDA_ARCH__ >= 900
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from), "r"(bytes)
               : "memory");
#endif
}

// Closes a group: the bulk stores of this thread since the last commit.
__device__ __forceinline__ void bulk_store_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::PendingStores>().committed;
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until all but the latest `pending` groups of this thread have read their sources.
template <int pending>
__device__ __forceinline__ void bulk_store_wait_read() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::PendingStores>().finish_all_but(pending);
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
#endif
}
