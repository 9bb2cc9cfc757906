"""A tensor whose rows are one row in memory; otherwise good, so it must work."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(1, 64).expand(16, 64)]


def get_init_inputs():
    return []
