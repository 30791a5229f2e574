// Keeps the compiler from carrying what is computed from a value along in registers, or from one row to the next.
#pragma once
#include <cuda_runtime.h>

// The same number, but what is computed from it is not carried along from one turn of a loop to the next.
__device__ __forceinline__ int computed_anew(int value) {
#ifndef __CUDACPU__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// The same pointer: the next row's is then this one plus a distance. Left alone, ptxas 13 works each row's out from the
// first one's, in three times as many instructions.
template <class T>
__device__ __forceinline__ T* computed_anew(T* pointer) {
#ifndef __CUDACPU__
  asm volatile("" : "+l"(pointer));
#endif
  return pointer;
}
