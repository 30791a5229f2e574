"""KernelBench #74, with an argument that load_inline does not have."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void conv_transpose1d_kernel(const float* x, const float* w, float* y, int N, int CI, int CO, int L, int OL,
                                        int K, int dilation) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= N * CO * OL) return;
    int o = index % OL, co = index / OL % CO, n = index / (OL * CO);
    float sum = 0.0f;
    for (int ci = 0; ci < CI; ++ci)
        for (int k = 0; k < K; ++k) {
            int i = o - k * dilation;
            if (i >= 0 && i < L) sum += x[(n * CI + ci) * L + i] * w[(ci * CO + co) * K + k];
        }
    y[index] = sum;
}

torch::Tensor conv_transpose1d(torch::Tensor x, torch::Tensor w, int dilation) {
    int N = x.size(0), CI = x.size(1), L = x.size(2), CO = w.size(1), K = w.size(2), OL = L + dilation * (K - 1);
    auto y = torch::empty({N, CO, OL}, x.options());
    int total = N * CO * OL;
    conv_transpose1d_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(),
                                                          N, CI, CO, L, OL, K, dilation);
    return y;
}
"""
cpp_source = "torch::Tensor conv_transpose1d(torch::Tensor x, torch::Tensor w, int dilation);"
module = load_inline(name="conv_transpose1d", cpp_sources=cpp_source, cuda_sources=cuda_source,
                     functions=["conv_transpose1d"], extra_cuda_flags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, bias=bias)

    def forward(self, x):
        layer = self.conv1d_transpose
        return module.conv_transpose1d(x.contiguous(), layer.weight, layer.dilation[0])
