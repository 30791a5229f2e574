"""Forward and grad_input are right, grad_weight is twice what it should be."""

import torch
from torch import nn


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        return nn.functional.conv_transpose2d(x, Double.apply(self.weight), self.bias, self.stride, self.padding,
                                              self.output_padding, self.groups, self.dilation)
