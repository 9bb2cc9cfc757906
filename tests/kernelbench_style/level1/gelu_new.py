"""GELU by its tanh approximation, written out."""

import math

import torch
from torch import nn

batch_size = 16
dim = 4096


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return []
