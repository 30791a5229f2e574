// The part of the CUDA runtime that kernel launchers call. Every call is synchronous; the watch looks at its stream.
#pragma once
#pragma GCC system_header

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_on_cpu/errors.h"
#include "cuda_on_cpu/launch.h"

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

// name, CUDA's number, the emulator's answer: an H200's limits, but four multiprocessors, so that persistent kernels
// start few blocks.
#define CUDA_ON_CPU_ATTRIBUTES(ENTRY)                      \
  ENTRY(cudaDevAttrMaxThreadsPerBlock, 1, 1024)            \
  ENTRY(cudaDevAttrMaxBlockDimX, 2, 1024)                  \
  ENTRY(cudaDevAttrMaxBlockDimY, 3, 1024)                  \
  ENTRY(cudaDevAttrMaxBlockDimZ, 4, 64)                    \
  ENTRY(cudaDevAttrMaxGridDimX, 5, 2147483647)             \
  ENTRY(cudaDevAttrMaxGridDimY, 6, 65535)                  \
  ENTRY(cudaDevAttrMaxGridDimZ, 7, 65535)                  \
  ENTRY(cudaDevAttrMaxSharedMemoryPerBlock, 8, 48 << 10)   \
  ENTRY(cudaDevAttrTotalConstantMemory, 9, 64 << 10)       \
  ENTRY(cudaDevAttrWarpSize, 10, 32)                       \
  ENTRY(cudaDevAttrMaxRegistersPerBlock, 12, 65536)        \
  ENTRY(cudaDevAttrMultiProcessorCount, 16, 4)             \
  ENTRY(cudaDevAttrL2CacheSize, 38, 60 << 20)              \
  ENTRY(cudaDevAttrMaxThreadsPerMultiProcessor, 39, 2048)  \
  ENTRY(cudaDevAttrComputeCapabilityMajor, 75, 9)          \
  ENTRY(cudaDevAttrComputeCapabilityMinor, 76, 0)          \
  ENTRY(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 81, 228 << 10) \
  ENTRY(cudaDevAttrMaxRegistersPerMultiprocessor, 82, 65536) \
  ENTRY(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97, 227 << 10) \
  ENTRY(cudaDevAttrMaxBlocksPerMultiprocessor, 106, 32)    \
  ENTRY(cudaDevAttrReservedSharedMemoryPerBlock, 111, 1 << 10)

#define CUDA_ON_CPU_ENUMERATOR(name, number, answer) name = number,
enum cudaDeviceAttr { CUDA_ON_CPU_ATTRIBUTES(CUDA_ON_CPU_ENUMERATOR) };
#undef CUDA_ON_CPU_ENUMERATOR

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) {
    return cuda_on_cpu::record_error(cudaErrorInvalidDevice, "invalid device ordinal: %d; there is only 0", device);
  }
#define CUDA_ON_CPU_CASE(name, number, answer) \
  case name:                                   \
    *value = answer;                           \
    return cudaSuccess;
  switch (attribute) { CUDA_ON_CPU_ATTRIBUTES(CUDA_ON_CPU_CASE) }
#undef CUDA_ON_CPU_CASE
  return cuda_on_cpu::record_error(cudaErrorInvalidValue, "invalid argument: device attribute %d is not known here",
                                   static_cast<int>(attribute));
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize() {
  return cudaPeekAtLastError();
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaPeekAtLastError();
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return cudaSuccess;
  }
  if (value < 0 || static_cast<size_t>(value) > cuda_on_cpu::max_shared) {
    return cuda_on_cpu::record_error(cudaErrorInvalidValue,
                                     "invalid argument: %d bytes of dynamic shared memory; the limit is %zu", value,
                                     cuda_on_cpu::max_shared);
  }
  cuda_on_cpu::set_dynamic_shared_limit(reinterpret_cast<const void*>(kernel), value);
  return cudaSuccess;
}

// Always one: occupancy is a matter of registers, which only nvcc knows.
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Parameters...), int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream = nullptr) {
  cuda_on_cpu::note_stream(stream);
  const cuda_on_cpu::OpenDeviceMemory open;
  memset(data, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  return cudaMemsetAsync(data, value, bytes);
}

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

// Closed pages, the last of which stays closed. In the heap no place is used twice, so that nothing opens it again.
inline void* closed_pages(uintptr_t bytes) {
  Range& heap = device_memory.heap;
  if (heap.start == 0) {
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  void* found = MAP_FAILED;
  pthread_mutex_lock(&device_memory.lock);
  if (bytes <= heap.bytes) {
    found = reinterpret_cast<void*>(heap.start);
    heap = {heap.start + bytes, heap.bytes - bytes};
  }
  pthread_mutex_unlock(&device_memory.lock);
  return found;
}

// Pages that only kernels and copies may touch, filled with NaN: on a GPU the contents of new memory are undefined. nullptr if
// there are none.
inline void* allocate(size_t bytes) {
  constexpr size_t most_filled = size_t{64} << 20;  // more would take long
  const size_t whole = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  auto* made = static_cast<Allocation*>(malloc(sizeof(Allocation)));
  void* found = whole < bytes || made == nullptr ? MAP_FAILED : closed_pages(whole + page_bytes);
  if (found == MAP_FAILED) {
    free(made);
    return nullptr;
  }
  *made = {{reinterpret_cast<uintptr_t>(found), whole}, nullptr};
  if (protect(made->range.start, whole, PROT_READ | PROT_WRITE) != 0) {  // more than the machine has
    free(made);
    return nullptr;
  }
  memset(found, 0xff, bytes < most_filled ? bytes : most_filled);
  pthread_mutex_lock(&device_memory.lock);
  if (device_memory.users == 0) {
    DeviceMemory::allow(made->range, PROT_NONE);
  }
  made->next = device_memory.allocations;
  device_memory.allocations = made;
  pthread_mutex_unlock(&device_memory.lock);
  find_touches();
  return found;
}

// false if allocate() did not give this address.
inline bool release(void* data) {
  bool found = false;
  pthread_mutex_lock(&device_memory.lock);
  for (Allocation** place = &device_memory.allocations; *place != nullptr; place = &(*place)->next) {
    Allocation* one = *place;
    if (one->range.start == reinterpret_cast<uintptr_t>(data)) {
      if (device_memory.heap.start == 0) {
        munmap(data, one->range.bytes + page_bytes);
      } else {
        madvise(data, one->range.bytes, MADV_DONTNEED);
        DeviceMemory::allow(one->range, PROT_NONE);
      }
      *place = one->next;
      free(one);
      found = true;
      break;
    }
  }
  pthread_mutex_unlock(&device_memory.lock);
  return found;
}

// Where an address lies. In a process with torch, the addresses of small and new tensors are not known.
enum Side { unknown_side, on_host, on_device };

inline Side side_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (device_memory.has(address) || device_memory.allocated(address)) {
    return on_device;
  }
  if (!device_memory.beside_torch && device_memory.count > 0) {
    return on_host;
  }
  pthread_attr_t attributes;
  void* stack = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &stack, &bytes);
    pthread_attr_destroy(&attributes);
  }
  return address - reinterpret_cast<uintptr_t>(stack) < bytes ? on_host : unknown_side;
}

// Like CUDA, refuses a direction that does not fit the addresses.
inline cudaError_t check_direction(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (static_cast<unsigned>(kind) > cudaMemcpyDefault) {
    return record_error(cudaErrorInvalidValue, "invalid argument: cudaMemcpyKind %d", static_cast<int>(kind));
  }
  if (kind == cudaMemcpyDefault || bytes == 0) {
    return cudaSuccess;
  }
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const auto wrong = [](const void* address, bool device) { return side_of(address) == (device ? on_host : on_device); };
  const bool wrong_from = wrong(from, from_device);
  if (!wrong_from && (to == nullptr || !wrong(to, to_device))) {
    return cudaSuccess;
  }
  return record_error(cudaErrorInvalidValue,
                      "invalid argument: a copy from the %s to the %s, but the address it copies %s is on the %s",
                      from_device ? "device" : "host", to_device ? "device" : "host", wrong_from ? "from" : "to",
                      (wrong_from ? from_device : to_device) ? "host" : "device");
}

// A symbol is one for the whole process. If two calls of a launcher copy other values to it, calls on two streams mix them.
// Said only where the watch over blocks is wanted.
inline void note_symbol(const char* to, const void* from, size_t bytes) {
  constexpr int most = 64;
  static const char* written[most];
  static int count = 0;
  bool again = false;
  for (int i = 0; i < count; ++i) {
    again = again || written[i] == to;
  }
  if (again && device_memory.watch.asked && device_memory.fault == no_fault && memcmp(to, from, bytes) != 0) {
    device_memory.fault = shared_symbol;
    device_memory.fault_at = device_memory.whole.start;
  }
  if (!again && count < most) {
    written[count++] = to;
  }
}

}  // namespace cuda_on_cpu

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
  cuda_on_cpu::note_stream(stream);
  if (const cudaError_t error = cuda_on_cpu::check_direction(to, from, bytes, kind)) {
    return error;
  }
  const cuda_on_cpu::OpenDeviceMemory open;
  memmove(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind);
}

template <class T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
  cuda_on_cpu::note_stream(stream);
  if (const cudaError_t error = cuda_on_cpu::check_direction(nullptr, from, bytes, kind)) {
    return error;
  }
  const cuda_on_cpu::OpenDeviceMemory open;
  char* to = const_cast<char*>(reinterpret_cast<const volatile char*>(&symbol)) + offset;
  cuda_on_cpu::note_symbol(to, from, bytes);
  memmove(to, from, bytes);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind);
}

// AddressSanitizer itself checks every access to memory from malloc.
template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  void* found = bytes == 0 ? nullptr : malloc(bytes);
#else
  void* found = bytes == 0 ? nullptr : cuda_on_cpu::allocate(bytes);
#endif
  *data = static_cast<T*>(found);
  return found != nullptr || bytes == 0
             ? cudaSuccess
             : cuda_on_cpu::record_error(cudaErrorMemoryAllocation, "out of memory: %zu bytes", bytes);
}
template <class T>
cudaError_t cudaMallocAsync(T** data, size_t bytes, cudaStream_t) {
  return cudaMalloc(data, bytes);
}
// Pinned memory of the host.
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4;
template <class T>
cudaError_t cudaHostAlloc(T** data, size_t bytes, unsigned) {
  *data = static_cast<T*>(bytes == 0 ? nullptr : malloc(bytes));
  return *data != nullptr || bytes == 0
             ? cudaSuccess
             : cuda_on_cpu::record_error(cudaErrorMemoryAllocation, "out of memory: %zu bytes of the host", bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** data, size_t bytes) {
  return cudaHostAlloc(data, bytes, cudaHostAllocDefault);
}
inline cudaError_t cudaFreeHost(void* data) {
  free(data);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* data) {
#ifdef __SANITIZE_ADDRESS__
  free(data);
#else
  if (data != nullptr && !cuda_on_cpu::release(data)) {
    return cuda_on_cpu::record_error(cudaErrorInvalidValue, "invalid argument: cudaFree of an address that is not the start of "
                                     "memory from cudaMalloc");
  }
#endif
  return cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  return cudaFree(data);
}

// All work is done when its call returns, so streams and events have nothing to wait for. A created stream has an address of its
// own: a launcher that works on it does not work on the stream that it was given.
struct CUstream_st {
  char unused;
};
struct CUevent_st {
  double recorded_ms;
};
typedef CUevent_st* cudaEvent_t;
inline const cudaStream_t cudaStreamLegacy = nullptr, cudaStreamPerThread = nullptr;
constexpr unsigned int cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned int cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;

inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st();
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return cudaStreamCreate(stream);
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  return cudaStreamCreate(stream);
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t) {
  return cudaPeekAtLastError();
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned int = 0) {
  return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st();
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return cudaEventCreate(event);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned int) {
  return cudaEventCreate(event);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->recorded_ms = 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
  return cudaSuccess;
}
inline cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  return cudaEventRecord(event, stream);
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaPeekAtLastError();
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaPeekAtLastError();
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (begin->recorded_ms == 0 || end->recorded_ms == 0) {
    return cuda_on_cpu::record_error(cudaErrorInvalidValue, "invalid argument: an event that was never recorded has no time");
  }
  *milliseconds = static_cast<float>(end->recorded_ms - begin->recorded_ms);
  return cudaSuccess;
}
