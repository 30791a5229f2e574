// Runs CUDA C++ on the CPU: the same .cu text, translated by translate.py, compiled by g++.
//
// Blocks run in parallel on OS threads. The threads of one block run in turn on one OS thread: as a plain loop for as
// long as none has to wait, and as fibers from the first barrier or warp operation on (block.h).
//
// What differs from a GPU:
//   - inside a block memory is sequentially consistent, and lanes of a warp do not run in lockstep;
//   - a thread that spins for another one of its block hangs, unless it calls __nanosleep() in the loop;
//   - __activemask() names all lanes that have not exited: divergence is not tracked;
//   - registers and occupancy are not checked, __launch_bounds__ only where they are numbers (translate.py);
//   - inline PTX is not assembled: a wrapper with an emulation stands beside it, under `#ifdef __CUDACPU__`;
//   - approximate functions (__expf, ...) are exact but for the scaling of their argument;
//   - default arguments of kernels are not known to a launch;
//   - shared variables are declared inside functions, not at namespace scope;
//   - an error is cleared by cudaGetLastError(), also one that would poison a context.
#pragma once
#pragma GCC system_header

// CUDA's keywords. `__noinline__` is missing: translate.py replaces it, because the C++ library uses that word itself.
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

#include "cuda_on_cpu/vector_types.h"
#include "cuda_on_cpu/half.h"
#include "cuda_on_cpu/errors.h"
#include "cuda_on_cpu/fiber.h"
#include "cuda_on_cpu/block.h"
#include "cuda_on_cpu/shared_memory.h"
#include "cuda_on_cpu/device_memory.h"
#include "cuda_on_cpu/launch.h"
#include "cuda_on_cpu/warp.h"
#include "cuda_on_cpu/atomics.h"
#include "cuda_on_cpu/builtins.h"
#include "cuda_on_cpu/runtime_api.h"
