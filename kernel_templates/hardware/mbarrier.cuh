// Barriers in shared memory (mbarrier): they count arrivals (sm_80) and bytes (sm_90). Also the bulk copies that report
// to them.
#pragma once

#ifndef __CUDACPU__
#include <cuda_runtime.h>
#endif

#ifdef __CUDACPU__
// The emulator's version of each stands beside the PTX.
namespace ptx_emulation {

// What the 8 bytes of an mbarrier hold here.
struct Barrier {
  unsigned expected : 12, pending : 12, phase : 8;
  int bytes;  // still to arrive in this phase
};
static_assert(sizeof(Barrier) == 8, "as large as on the GPU");

// `size` bytes of dynamic shared memory at a shared address (an offset, as on the GPU).
inline char* shared_bytes(unsigned address, unsigned size, const char* who) {
  const auto& memory = cuda_on_cpu::current->dynamic;
  if (address + static_cast<size_t>(size) > memory.bytes) {
    cuda_on_cpu::stop(cudaErrorIllegalAddress, "%s: bytes %u to %u of %zu bytes of shared memory", who, address,
                      address + size, memory.bytes);
  }
  return memory.data + address;
}

inline Barrier& barrier_at(unsigned address) {
  return *reinterpret_cast<Barrier*>(shared_bytes(address, sizeof(Barrier), "mbarrier"));
}

inline void end_phase_if_complete(Barrier& barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.phase ^= 1;
    barrier.pending = barrier.expected;
  }
}

// Bulk copies of the running block that have not arrived yet. The emulator executes each only when a thread waits for
// its barrier, so a missing wait gives wrong results.
struct BulkCopies {
  struct Copy {
    unsigned to, bytes, barrier;
    const void* from;
  };
  Copy* copies;
  int count, capacity;
  unsigned long serial;

  void add(const Copy& copy) {
    begin_block();
    if (count == capacity) {
      capacity = capacity == 0 ? 64 : 2 * capacity;
      copies = static_cast<Copy*>(realloc(copies, capacity * sizeof(Copy)));
    }
    copies[count++] = copy;
  }

  void arrive_at(unsigned barrier) {
    begin_block();
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Copy copy = copies[i];
      if (copy.barrier != barrier) {
        copies[kept++] = copy;
        continue;
      }
      memcpy(shared_bytes(copy.to, copy.bytes, "bulk_copy"), copy.from, copy.bytes);
      barrier_at(barrier).bytes -= static_cast<int>(copy.bytes);
      end_phase_if_complete(barrier_at(barrier));
    }
    count = kept;
  }

  void begin_block() {
    if (serial != cuda_on_cpu::current->serial) {
      serial = cuda_on_cpu::current->serial;
      count = 0;
    }
  }
};
inline thread_local BulkCopies bulk_copies{};

}  // namespace ptx_emulation
#endif

// The address within shared memory that the functions below and descriptors take.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
#ifdef __CUDACPU__
  return static_cast<unsigned>(cuda_on_cpu::shared_offset(pointer));
#else
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
#endif
}

// A phase ends when `arrivals` threads have arrived and all announced bytes have.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
#ifdef __CUDACPU__
  ptx_emulation::barrier_at(barrier) = {static_cast<unsigned>(arrivals), static_cast<unsigned>(arrivals), 0, 0};
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

// Call it after the inits, in the thread that made them, before the __syncthreads() after which other threads use them.
__device__ __forceinline__ void mbarrier_init_done() {
#if !defined(__CUDACPU__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
#ifdef __CUDACPU__
  auto& state = ptx_emulation::barrier_at(barrier);
  if (state.pending == 0) {
    cuda_on_cpu::stop(cudaErrorLaunchFailure, "mbarrier_arrive: more than %d arrivals in one phase", int(state.expected));
  }
  --state.pending;
  ptx_emulation::end_phase_if_complete(state);
#elif __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
#endif
}

// Arrives, and announces bytes of bulk copies that must arrive too.
__device__ __forceinline__ void mbarrier_arrive_expecting(unsigned barrier, int bytes) {
#ifdef __CUDACPU__
  ptx_emulation::barrier_at(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
#elif __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(barrier),
               "r"(bytes)
               : "memory");
#endif
}

// Waits until the phase of that parity has ended. The phase before the first one counts as ended and has parity 1.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
#ifdef __CUDACPU__
  for (int polls = 0;; ++polls) {
    ptx_emulation::bulk_copies.arrive_at(barrier);
    if (static_cast<int>(ptx_emulation::barrier_at(barrier).phase & 1) != parity) {
      return;
    }
    if (polls > 20000) {
      cuda_on_cpu::stop(cudaErrorLaunchFailure, "mbarrier_wait: the barrier at %u is waited for in vain", barrier);
    }
    cuda_on_cpu::current->let_others_run();
  }
#elif __CUDA_ARCH__ >= 800
  unsigned ended = 0;
  // A wait that never ends stops the launch instead of blocking the GPU.
  for (int polls = 0; ended == 0; ++polls) {
#if __CUDA_ARCH__ >= 900
#define KW_WAIT "mbarrier.try_wait"  // waits for some time, then returns false
#else
#define KW_WAIT "mbarrier.test_wait"
#endif
    asm volatile("{\n.reg .pred p;\n" KW_WAIT ".parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#undef KW_WAIT
    if (polls > 8000000) __trap();
  }
#endif
}

// The copy engine copies `bytes` from global to shared memory and reports them to the barrier. Addresses and size are
// multiples of 16. They take no registers and need no fence: wgmma reads through the same proxy.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier) {
#ifdef __CUDACPU__
  if (to % 16 != 0 || reinterpret_cast<size_t>(from) % 16 != 0 || bytes % 16 != 0 || bytes <= 0) {
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "bulk_copy: %d bytes to %u, not all multiples of 16", bytes, to);
  }
  ptx_emulation::bulk_copies.add({to, static_cast<unsigned>(bytes), barrier, from});
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
#endif
}
