"""Never returns."""

from torch import nn


class ModelNew(nn.ConvTranspose2d):
    def forward(self, x):
        while True:
            x = x + 0
