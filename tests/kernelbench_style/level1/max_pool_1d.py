"""Max pooling over sequences, dilated."""

import torch
from torch import nn

batch_size = 8
features = 32
length = 256


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool1d(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.rand(batch_size, features, length)]


def get_init_inputs():
    return [4, 2, 1, 2]
