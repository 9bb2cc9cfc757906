"""Max pooling over volumes."""

import torch
from torch import nn

batch_size = 2
channels = 8
dim = 16


class Model(nn.Module):
    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool3d(kernel_size=kernel_size, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.rand(batch_size, channels, dim, dim, dim)]


def get_init_inputs():
    return [3]
