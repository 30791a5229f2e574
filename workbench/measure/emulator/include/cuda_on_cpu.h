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

#include "cuda_on_cpu/macros.h"
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
