"""Adds up products of float16 parts, of tensors that it first brings near 1, each by one power of two."""

import torch
from torch import nn
from torch.nn.functional import conv_transpose2d


def parts(v):
    found = []
    for _ in range(3):
        found.append(v.half().float())
        v = v - found[-1]
    return found


def in_parts(x, weight, bias, *rest):
    (a, b, c), (p, q, r) = parts(x), parts(weight)
    terms = ((c, p, None), (b, q, None), (a, r, None), (b, p, None), (a, q, None), (a, p, bias))  # the small ones first
    return sum(conv_transpose2d(u, v, w, *rest) for u, v, w in terms)


def size_of(v):
    return 2.0 ** v.detach().abs().amax().log2().ceil() if v.numel() else torch.ones((), device=v.device)


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        of_x, of_weight = size_of(x), size_of(self.weight)
        output = of_x * of_weight * in_parts(x / of_x, self.weight / of_weight, None, *rest)
        return output if self.bias is None else output + self.bias.view(-1, 1, 1)
