"""Complex numbers, which are not supported."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)


def get_inputs():
    return [torch.randn(16, 64, dtype=torch.complex64)]


def get_init_inputs():
    return []
