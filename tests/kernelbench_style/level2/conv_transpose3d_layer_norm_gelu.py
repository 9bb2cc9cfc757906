"""Transposed 3D convolution, an added scalar, layer norm over the last dim, GELU."""

import torch
from torch import nn
from torch.nn import functional as F

batch_size = 2
in_channels = 3
out_channels = 8
depth = 4
height = 8
width = 8
kernel_size = 3


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride=2, padding=1, output_padding=1)
        self.sum_weight = nn.Parameter(torch.tensor(1.0))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) + self.sum_weight
        x = self.norm(x)
        return F.gelu(x)


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
