"""KernelBench #81 as it is often written at first: a gather kernel without the divisibility test, and no autograd."""

from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void conv_transpose2d_kernel(const float* x, const float* w, float* y, int N, int CI, int CO, int H, int W,
                                        int OH, int OW, int K, int stride, int padding, int dilation) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= N * CO * OH * OW) return;
    int ow = index % OW, oh = index / OW % OH, co = index / (OW * OH) % CO, n = index / (OW * OH * CO);
    float sum = 0.0f;
    for (int ci = 0; ci < CI; ++ci)
        for (int kh = 0; kh < K; ++kh)
            for (int kw = 0; kw < K; ++kw) {
                int th = oh + padding - kh * dilation, tw = ow + padding - kw * dilation;
                if (th < 0 || tw < 0) continue;
                int ih = th / stride, iw = tw / stride;
                if (ih >= H || iw >= W) continue;
                sum += x[((n * CI + ci) * H + ih) * W + iw] * w[((ci * CO + co) * K + kh) * K + kw];
            }
    y[index] = sum;
}

torch::Tensor conv_transpose2d(torch::Tensor x, torch::Tensor w, int stride, int padding, int dilation) {
    x = x.contiguous();
    int N = x.size(0), CI = x.size(1), H = x.size(2), W = x.size(3), CO = w.size(1), K = w.size(2);
    int OH = (H - 1) * stride - 2 * padding + dilation * (K - 1) + 1;
    int OW = (W - 1) * stride - 2 * padding + dilation * (K - 1) + 1;
    auto y = torch::empty({N, CO, OH, OW}, x.options());
    int total = N * CO * OH * OW;
    conv_transpose2d_kernel<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(),
                                                          N, CI, CO, H, W, OH, OW, K, stride, padding, dilation);
    return y;
}
"""
cpp_source = "torch::Tensor conv_transpose2d(torch::Tensor x, torch::Tensor w, int stride, int padding, int dilation);"
module = load_inline(name="conv_transpose2d_gather", cpp_sources=cpp_source, cuda_sources=cuda_source,
                     functions=["conv_transpose2d"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, bias=bias)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x):
        return module.conv_transpose2d(x, self.conv_transpose2d.weight, self.stride, self.padding, self.dilation)
