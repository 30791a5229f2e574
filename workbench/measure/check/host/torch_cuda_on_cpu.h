// What CUDA files take from torch's own CUDA headers, for a torch without CUDA: the emulator has one stream.
#pragma once
#include "cuda_on_cpu.h"
#include <c10/util/Exception.h>
#include <utility>

namespace at {  // torch has it for nvcc alone
template <class T>
struct RestrictPtrTraits {
    typedef T* __restrict__ PtrType;
};
}  // namespace at

namespace c10::cuda {
struct CUDAStream {
    operator cudaStream_t() const { return nullptr; }
    cudaStream_t stream() const { return nullptr; }
    void synchronize() const {}
    bool query() const { return true; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}
inline CUDAStream getStreamFromExternal(cudaStream_t, int) { return {}; }
struct CUDAStreamGuard {
    template <class Stream> explicit CUDAStreamGuard(const Stream&) {}
    CUDAStream original_stream() const { return {}; }
    CUDAStream current_stream() const { return {}; }
};
struct CUDAGuard {
    template <class Device> explicit CUDAGuard(const Device&) {}
};
struct OptionalCUDAGuard {
    OptionalCUDAGuard() = default;
    template <class Device> explicit OptionalCUDAGuard(const Device&) {}
};
}  // namespace c10::cuda
namespace at::cuda {
struct CUDAEvent {
    explicit CUDAEvent(unsigned int = 0) { cudaEventCreate(&event_); }
    CUDAEvent(CUDAEvent&& other) noexcept { std::swap(event_, other.event_); }
    CUDAEvent& operator=(CUDAEvent&& other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    ~CUDAEvent() { cudaEventDestroy(event_); }
    bool isCreated() const { return event_ != nullptr; }
    template <class... Stream> void record(const Stream&...) { cudaEventRecord(event_); }
    template <class... Stream> void recordOnce(const Stream&...) { record(); }
    template <class Stream> void block(const Stream&) {}
    void synchronize() const {}
    bool query() const { return true; }
    float elapsed_time(const CUDAEvent& end) const {
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, event_, end.event_);
        return milliseconds;
    }
    cudaEvent_t event() const { return event_; }

 private:
    cudaEvent_t event_ = nullptr;
};
using namespace c10::cuda;  // as torch has it
}  // namespace at::cuda
#define C10_CUDA_CHECK(call)                                                                    \
    do {                                                                                        \
        const cudaError_t error_ = (call);                                                      \
        TORCH_CHECK(error_ == cudaSuccess, "CUDA error: ", cudaGetErrorString(error_));         \
    } while (0)
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
