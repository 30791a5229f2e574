// A launch that may begin before the kernel ahead of it in the stream has ended (sm_90): blocks start while its
// last blocks still run.
#pragma once
#include <cuda_runtime.h>

// The kernel ahead calls it. The next one may start when every block has called it or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if !defined(__CUDACPU__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The next kernel calls it. It waits until the kernel ahead has ended and what that wrote can be read. At least one
// thread must call it; otherwise the next kernel could end first.
__device__ __forceinline__ void wait_for_kernel_ahead() {
#if !defined(__CUDACPU__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class... Parameters, class... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
                         const Arguments&... arguments) {
#ifdef __CUDACPU__  // it launches in order
  kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
#else
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = dim3(unsigned(threads)), config.dynamicSmemBytes = size_t(shared_bytes);
  config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
#endif
}
