// CUDA's error codes, and the latest error of this library with the sentence that explains it.
#pragma once
#pragma GCC system_header

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

// name, CUDA's number, CUDA's own words
#define CUDA_ON_CPU_ERRORS(ENTRY)                                        \
  ENTRY(cudaSuccess, 0, "no error")                                      \
  ENTRY(cudaErrorInvalidValue, 1, "invalid argument")                    \
  ENTRY(cudaErrorMemoryAllocation, 2, "out of memory")                   \
  ENTRY(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
  ENTRY(cudaErrorInvalidDeviceFunction, 98, "invalid device function")   \
  ENTRY(cudaErrorInvalidDevice, 101, "invalid device ordinal")           \
  ENTRY(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered") \
  ENTRY(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch") \
  ENTRY(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated") \
  ENTRY(cudaErrorAssert, 710, "device-side assert triggered")            \
  ENTRY(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered") \
  ENTRY(cudaErrorMisalignedAddress, 716, "misaligned address")           \
  ENTRY(cudaErrorLaunchFailure, 719, "unspecified launch failure")       \
  ENTRY(cudaErrorNotSupported, 801, "operation not supported")           \
  ENTRY(cudaErrorUnknown, 999, "unknown error")

#define CUDA_ON_CPU_ENUMERATOR(name, number, words) name = number,
enum cudaError { CUDA_ON_CPU_ERRORS(CUDA_ON_CPU_ENUMERATOR) };
#undef CUDA_ON_CPU_ENUMERATOR
typedef enum cudaError cudaError_t;

namespace cuda_on_cpu __attribute__((visibility("hidden"))) {

// CUDA keeps the last error per host thread; here it is one per library, so that whoever asks gets it.
struct LastError {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  cudaError_t code = cudaSuccess;       // cleared by cudaGetLastError()
  cudaError_t explained = cudaSuccess;  // the code that `text` explains
  char text[1024] = "";                 // stays until the next error
};
inline LastError last_error;

// Records an error and the sentence that explains it; returns the code.
inline cudaError_t record_error(cudaError_t code, const char* format, va_list values) {
  pthread_mutex_lock(&last_error.lock);
  last_error.code = last_error.explained = code;
  vsnprintf(last_error.text, sizeof last_error.text, format, values);
  pthread_mutex_unlock(&last_error.lock);
  return code;
}

__attribute__((format(printf, 2, 3))) inline cudaError_t record_error(cudaError_t code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  record_error(code, format, values);
  va_end(values);
  return code;
}

}  // namespace cuda_on_cpu

// Exported, for whoever loads the library.
#define CUDA_ON_CPU_EXPORT extern "C" __attribute__((visibility("default"), used)) inline

// Why the latest failed call failed; empty if none has.
CUDA_ON_CPU_EXPORT const char* cuda_on_cpu_last_error() {
  return cuda_on_cpu::last_error.text;
}

CUDA_ON_CPU_EXPORT cudaError_t cudaPeekAtLastError() {
  return cuda_on_cpu::last_error.code;
}

CUDA_ON_CPU_EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t code = cuda_on_cpu::last_error.code;
  cuda_on_cpu::last_error.code = cudaSuccess;
  return code;
}

inline const char* cudaGetErrorName(cudaError_t code) {
#define CUDA_ON_CPU_CASE(name, number, words) \
  case name:                                  \
    return #name;
  switch (code) { CUDA_ON_CPU_ERRORS(CUDA_ON_CPU_CASE) }
#undef CUDA_ON_CPU_CASE
  return "unrecognized error code";
}

inline const char* cudaGetErrorString(cudaError_t code) {
  if (code != cudaSuccess && code == cuda_on_cpu::last_error.explained) {
    return cuda_on_cpu::last_error.text;
  }
#define CUDA_ON_CPU_CASE(name, number, words) \
  case name:                                  \
    return words;
  switch (code) { CUDA_ON_CPU_ERRORS(CUDA_ON_CPU_CASE) }
#undef CUDA_ON_CPU_CASE
  return "unrecognized error code";
}
