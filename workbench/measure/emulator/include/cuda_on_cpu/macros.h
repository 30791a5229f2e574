// CUDA's keywords. `__noinline__` is missing: translate.py replaces it, because the C++ library uses that word itself.
#pragma once
#pragma GCC system_header

#define __CUDACPU__ 1

// Each kernel library keeps its own state. Only the namespace: a launcher with a hidden type among its parameters would
// be hidden itself.
namespace cuda_on_cpu __attribute__((visibility("hidden"))) {}

#define __global__
#define __device__
#define __host__
#define __managed__
#define __constant__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#ifdef __OPTIMIZE__
#define __forceinline__ inline __attribute__((always_inline))
#else  // at -O0 it would only be more to compile
#define __forceinline__ inline
#endif
#ifndef __clang__
#define __builtin_assume(condition) static_cast<void>(0)
#endif

// translate.py turns declarations of shared memory into the macros of shared_memory.h. One that it does not understand
// keeps the keyword: one OS thread runs one block at a time, so a thread_local (which implies static at block scope)
// is shared by the block. It is then neither filled nor guarded.
#define __shared__ thread_local
