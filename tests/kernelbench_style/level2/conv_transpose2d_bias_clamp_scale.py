"""Transposed convolution, bias, clamp, scale, clamp, divide."""

import torch
from torch import nn

batch_size = 4
in_channels = 4
out_channels = 8
height = 12
width = 12
kernel_size = 3


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) + self.bias
        x = torch.clamp(x, 0.0, 1.0)
        x = x * 2.0
        x = torch.clamp(x, 0.0, 1.0)
        return x / 2.0


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
