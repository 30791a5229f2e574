"""Sums products of float16 parts: as exact as float32, but in the range of float16."""

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


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        rest = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return in_parts(x, self.weight, self.bias, *rest)
