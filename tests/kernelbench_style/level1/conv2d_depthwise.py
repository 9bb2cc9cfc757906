"""Depthwise 2D convolution."""

import torch
from torch import nn

batch_size = 4
in_channels = 12
height = 32
width = 32
kernel_size = 3


class Model(nn.Module):
    def __init__(self, in_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, kernel_size, padding=1, groups=in_channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, kernel_size]
