"""Conv + ReLU + MaxPool: the first stage of LeNet-like image classifiers. The inputs are given as KernelBench does."""

import torch
from torch import nn

batch_size = 64
in_channels = 1
out_channels = 32
image_size = 28


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3)
        self.pool = nn.MaxPool2d(kernel_size=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(torch.relu(self.conv(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch_size, in_channels, image_size, image_size)]


def get_init_inputs() -> list[int]:
    return [in_channels, out_channels]
