"""Convolution, group norm, tanh, hardswish, residual, logsumexp over channels."""

import torch
from torch import nn
from torch.nn import functional as F

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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x_conv = self.conv(x)
        x_norm = self.group_norm(x_conv)
        x_act = F.hardswish(torch.tanh(x_norm))
        return torch.logsumexp(x_conv + x_act, dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
