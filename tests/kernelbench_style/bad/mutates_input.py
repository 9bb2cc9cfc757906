"""Changes its input in place."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return x + 1.0


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
