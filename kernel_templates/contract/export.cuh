// The launchers that a built library exports: one C signature for each direction, with raw pointers.
// They do not allocate or synchronise. They return a cudaError_t. `<symbol>_workspace` returns the bytes of workspace
// (0: none).
#pragma once
#include "contract/problem.cuh"
#include "contract/scalar.cuh"

// docs/writing-a-variant.md lists the template functions that a variant must define.
#define KW_EXPORT_WORKSPACE(symbol, query, Layer, Tune)                                                        \
  extern "C" __attribute__((visibility("default"))) long long symbol##_workspace(const Problem* problem) {     \
    Layer layer;                                                                                               \
    return bind_layer(layer, *problem) ? query<Layer, Tune>(layer, sizes_of(*problem)) : -1;                   \
  }

#define KW_EXPORT_FORWARD(symbol, Layer, Tune)                                                                 \
  KW_EXPORT_WORKSPACE(symbol, forward_workspace, Layer, Tune)                                                  \
  extern "C" __attribute__((visibility("default"))) int symbol(                                                \
      const Problem* problem, const void* input, const void* weight, const void* bias, void* output,           \
      void* workspace, void* stream) {                                                                         \
    Layer layer;                                                                                               \
    using scalar = typename Layer::scalar;                                                                     \
    if (!bind_layer(layer, *problem)) return cudaErrorInvalidValue;                                            \
    return forward<Layer, Tune>(layer, sizes_of(*problem), static_cast<const scalar*>(input),                  \
                                static_cast<const scalar*>(weight), static_cast<const scalar*>(bias),          \
                                static_cast<scalar*>(output), workspace, static_cast<cudaStream_t>(stream));   \
  }

#define KW_EXPORT_GRAD_INPUT(symbol, Layer, Tune)                                                              \
  KW_EXPORT_WORKSPACE(symbol, grad_input_workspace, Layer, Tune)                                               \
  extern "C" __attribute__((visibility("default"))) int symbol(                                                \
      const Problem* problem, const void* grad_output, const void* weight, void* grad_input_out,               \
      void* workspace, void* stream) {                                                                         \
    Layer layer;                                                                                               \
    using scalar = typename Layer::scalar;                                                                     \
    if (!bind_layer(layer, *problem)) return cudaErrorInvalidValue;                                            \
    return grad_input<Layer, Tune>(layer, sizes_of(*problem), static_cast<const scalar*>(grad_output),         \
                                   static_cast<const scalar*>(weight), static_cast<scalar*>(grad_input_out),   \
                                   workspace, static_cast<cudaStream_t>(stream));                              \
  }

// grad_bias is null if the layer has no bias or its gradient is not wanted.
#define KW_EXPORT_GRAD_WEIGHT(symbol, Layer, Tune)                                                             \
  KW_EXPORT_WORKSPACE(symbol, grad_weight_workspace, Layer, Tune)                                              \
  extern "C" __attribute__((visibility("default"))) int symbol(                                                \
      const Problem* problem, const void* input, const void* grad_output, void* grad_weight_out,               \
      void* grad_bias, void* workspace, void* stream) {                                                        \
    Layer layer;                                                                                               \
    using scalar = typename Layer::scalar;                                                                     \
    if (!bind_layer(layer, *problem)) return cudaErrorInvalidValue;                                            \
    return grad_weight<Layer, Tune>(layer, sizes_of(*problem), static_cast<const scalar*>(input),              \
                                    static_cast<const scalar*>(grad_output),                                   \
                                    static_cast<scalar*>(grad_weight_out), static_cast<scalar*>(grad_bias),    \
                                    workspace, static_cast<cudaStream_t>(stream));                             \
  }

#define KW_EXPORT_BACKWARD(symbol, Layer, Tune)                                                                \
  KW_EXPORT_WORKSPACE(symbol, backward_workspace, Layer, Tune)                                                 \
  extern "C" __attribute__((visibility("default"))) int symbol(                                                \
      const Problem* problem, const void* input, const void* weight, const void* grad_output,                  \
      void* grad_input_out, void* grad_weight_out, void* grad_bias, void* workspace, void* stream) {           \
    Layer layer;                                                                                               \
    using scalar = typename Layer::scalar;                                                                     \
    if (!bind_layer(layer, *problem)) return cudaErrorInvalidValue;                                            \
    return backward<Layer, Tune>(layer, sizes_of(*problem), static_cast<const scalar*>(input),                 \
                                 static_cast<const scalar*>(weight), static_cast<const scalar*>(grad_output),  \
                                 static_cast<scalar*>(grad_input_out), static_cast<scalar*>(grad_weight_out),  \
                                 static_cast<scalar*>(grad_bias), workspace,                                   \
                                 static_cast<cudaStream_t>(stream));                                           \
  }
