// What the host tells a launcher: the layer's parameters and the run-time sizes, always in three dimensions.
// A 1-D layer has D = H = 1, a 2-D layer has D = 1. Tensors are NCDHW, or NDHWC if CHANNELS_LAST is 1. Sizes are in elements.
#pragma once
#include <cuda_runtime.h>

// The layer's own parameters. In the constant form of Layer they are static constexpr members of the same names.
#define KW_LAYER_FIELDS(X)                                                   \
  X(in_channels) X(out_channels) X(groups)                                   \
  X(kernel_d) X(kernel_h) X(kernel_w) X(stride_d) X(stride_h) X(stride_w)    \
  X(padding_d) X(padding_h) X(padding_w)                                     \
  X(dilation_d) X(dilation_h) X(dilation_w) X(has_bias)

// The only argument struct of every launcher. A test compares its order with workbench/core/candidate.py.
struct Problem {
  long long batch;
  long long in_d, in_h, in_w;
  long long out_d, out_h, out_w;
#define KW_DECLARE(name) long long name;
  KW_LAYER_FIELDS(KW_DECLARE)
#undef KW_DECLARE
};

// The part of a problem that is known only at run time. Kernels take it by value.
struct Sizes {
  long long batch;
  int in_d, in_h, in_w;
  int out_d, out_h, out_w;
};

enum class Precision { ieee, tf32, tf32x3, fp16, bf16, fp64 };

// Fills a run-time layer, or compares a constant layer with the problem. Returns false if a library was built for
// another layer.
template <class Layer>
bool bind_layer(Layer& layer, const Problem& problem) {
  bool same = true;
  if constexpr (Layer::is_constant) {
#define KW_COMPARE(name) same = same && problem.name == Layer::name;
    KW_LAYER_FIELDS(KW_COMPARE)
#undef KW_COMPARE
  } else {
#define KW_ASSIGN(name) layer.name = static_cast<int>(problem.name);
    KW_LAYER_FIELDS(KW_ASSIGN)
#undef KW_ASSIGN
  }
  return same;
}

inline Sizes sizes_of(const Problem& p) {
  return {p.batch, int(p.in_d), int(p.in_h), int(p.in_w), int(p.out_d), int(p.out_h), int(p.out_w)};
}

template <class A, class B>
constexpr __host__ __device__ auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}
