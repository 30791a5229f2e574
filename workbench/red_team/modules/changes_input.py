"""Adds one to its input after having used it."""

from torch import nn


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        output = super().forward(x)
        x.data.add_(1)
        return output
