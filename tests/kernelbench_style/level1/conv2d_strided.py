"""2D convolution with a large kernel and stride, as the first layer of AlexNet."""

import torch
from torch import nn

batch_size = 2
in_channels = 3
out_channels = 16
height = 64
width = 64
kernel_size = 11


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=4, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
