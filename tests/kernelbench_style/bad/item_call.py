"""Takes a number out of a tensor."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().max().item()


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
