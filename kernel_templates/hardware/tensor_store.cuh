// Stores of boxes of a tensor by the copy engine (TMA, sm_90). They go on while the threads compute.
//
// The tensor has four dimensions; the first is contiguous. A box is `width` bytes (128, 64 or 32) of the first dimension
// and `rows` places of the third. In shared memory it is a table of rows of these bytes that begins at a multiple of 8 rows. The
// 16-byte parts of a row change places (box_byte), so threads that write the same part of different rows meet different banks.
#pragma once
#include "hardware/mbarrier.cuh"
#ifndef __CUDACPU__
#include <cuda.h>
#endif

// Where a byte of a row lies within the row (the swizzles of TMA).
__host__ __device__ __forceinline__ int box_byte(int width, int row, int byte) {
  return byte ^ (row / (128 / width) * 16 & (width - 16));
}

#ifdef __CUDACPU__
struct TensorMap {
  char* data;
  long long size[4], pitch[4];
  int width, rows, bytes;  // of a box; of a value
};

namespace ptx_emulation {
// Boxes that one thread has stored and not waited for yet.
struct PendingStores {
  struct Store {
    const TensorMap* map;
    unsigned from;
    int at[4];
    long group;
  };
  Store* stores;
  int count, capacity;
  long committed;  // groups closed so far

  void clear() { count = 0, committed = 0; }
  void release() { free(stores); }
  void add(const Store& store) {
    if (count == capacity) {
      capacity = capacity == 0 ? 16 : 2 * capacity;
      stores = static_cast<Store*>(realloc(stores, capacity * sizeof(Store)));
    }
    stores[count++] = store;
  }
  static void execute(const Store& store) {
    const TensorMap& map = *store.map;
    const char* const box = shared_bytes(store.from, map.rows * map.width, "tensor_store");
    for (int row = 0; row < map.rows; ++row)
      for (int i = 0; i < map.width / map.bytes; ++i) {
        const long long at[4] = {store.at[0] + i, store.at[1], store.at[2] + row, store.at[3]};
        long long place = 0;
        bool exists = true;
        for (int d = 0; d < 4; ++d) exists = exists && at[d] >= 0 && at[d] < map.size[d], place += at[d] * map.pitch[d];
        const int byte = box_byte(map.width, row, i * map.bytes);
        if (exists) memcpy(map.data + place, box + row * map.width + byte, map.bytes);
      }
  }
  // Does the stores of all committed groups but the latest `pending`.
  void finish_all_but(int pending) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const Store store = stores[i];
      if (store.group < committed - pending) execute(store);
      else stores[kept++] = store;
    }
    count = kept;
  }
};
}  // namespace ptx_emulation
#else
using TensorMap = CUtensorMap;
#endif

// `pitch`: bytes between neighbours along a dimension, multiples of 16; pitch[0] is sizeof(Scalar). `data` is aligned to 16 bytes.
template <class Scalar>
cudaError_t make_tensor_map(TensorMap& map, Scalar* data, const long long (&size)[4], const long long (&pitch)[4],
                            int width, int rows) {
#ifdef __CUDACPU__
  map = {reinterpret_cast<char*>(data), {size[0], size[1], size[2], size[3]}, {pitch[0], pitch[1], pitch[2], pitch[3]}, width,
         rows, int(sizeof(Scalar))};
  return cudaSuccess;
#else
  // A function of the driver, asked for here so that nobody has to link with libcuda.
  static void* encode = nullptr;
  if (encode == nullptr) {
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || encode == nullptr) return cudaErrorNotSupported;
  }
  const cuuint64_t sizes[4] = {cuuint64_t(size[0]), cuuint64_t(size[1]), cuuint64_t(size[2]), cuuint64_t(size[3])};
  const cuuint64_t pitches[3] = {cuuint64_t(pitch[1]), cuuint64_t(pitch[2]), cuuint64_t(pitch[3])};
  const cuuint32_t box[4] = {cuuint32_t(width / sizeof(Scalar)), 1, cuuint32_t(rows), 1}, steps[4] = {1, 1, 1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, sizeof(Scalar) == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, data, sizes, pitches, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      width == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
      : width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                    : CU_TENSOR_MAP_SWIZZLE_32B,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
#endif
}

// All lanes of a warp call it with the same values, and one stores. `from`: the box. `w`, `row`, `channel`, `n`: its first place in
// the tensor; a negative one is an illegal instruction. Values beyond the end of a dimension are not stored. `map` is part of a
// __grid_constant__ parameter.
__device__ __forceinline__ void tensor_store(const TensorMap& map, unsigned from, int w, int row, int channel, int n) {
#ifdef __CUDACPU__
  if (from % (8 * map.width) != 0)
    cuda_on_cpu::stop(cudaErrorMisalignedAddress, "tensor_store: %u is no multiple of %d", from, 8 * map.width);
  if (w < 0 || row < 0 || channel < 0 || n < 0)
    cuda_on_cpu::stop(cudaErrorInvalidValue, "tensor_store: place (%d, %d, %d, %d) is negative", w, row, channel, n);
  auto& mine = cuda_on_cpu::thread_storage<ptx_emulation::PendingStores>();
  if (threadIdx.x % 32 == 0) mine.add({&map, from, {w, row, channel, n}, mine.committed});
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nelect.sync _|p, -1;\n"
      "@p cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];\n}" ::"l"(&map),
      "r"(w), "r"(row), "r"(channel), "r"(n), "r"(from)
      : "memory");
#endif
}

// Closes a group: the stores of this thread since the last commit.
__device__ __forceinline__ void tensor_store_commit() {
#ifdef __CUDACPU__
  ++cuda_on_cpu::thread_storage<ptx_emulation::PendingStores>().committed;
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until the boxes of all groups of this thread but the latest `pending` have been read: then they may be written again. A
// block waits before it ends.
template <int pending>
__device__ __forceinline__ void tensor_store_wait() {
#ifdef __CUDACPU__
  cuda_on_cpu::thread_storage<ptx_emulation::PendingStores>().finish_all_but(pending);
#elif __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
#endif
}
