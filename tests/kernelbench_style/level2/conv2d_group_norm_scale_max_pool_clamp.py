"""Convolution, group norm, scale, max pooling, clamp."""

import torch
from torch import nn

batch_size = 4
in_channels = 4
out_channels = 8
height = 20
width = 20
kernel_size = 3


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(4, out_channels)
        self.scale = nn.Parameter(torch.ones(out_channels, 1, 1))
        self.maxpool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.group_norm(self.conv(x))
        x = x * self.scale
        x = self.maxpool(x)
        return torch.clamp(x, 0.0, 1.0)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
