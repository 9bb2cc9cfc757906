"""A transposed tensor and a strided one; otherwise good, so it must work."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y


def get_inputs():
    return [torch.randn(64, 16).t(), torch.randn(16, 128)[:, ::2]]


def get_init_inputs():
    return []
