"""3D convolution, division, max pooling, global average, bias, sum."""

import torch
from torch import nn
from torch.nn import functional as F

batch_size = 2
in_channels = 3
out_channels = 8
depth = 8
height = 12
width = 12
kernel_size = 3


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1, 1))
        self.max_pool = nn.MaxPool3d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) / 2.0
        x = self.max_pool(x)
        x = F.adaptive_avg_pool3d(x, 1) + self.bias
        return torch.sum(x, dim=1)


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
