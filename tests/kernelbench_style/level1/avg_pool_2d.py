"""Average pooling over images."""

import torch
from torch import nn

batch_size = 4
channels = 16
height = 32
width = 32


class Model(nn.Module):
    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(kernel_size=kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]


def get_init_inputs():
    return [3]
