"""An element type that is not supported."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * 2.0


def get_inputs():
    return [torch.randn(16, 64).to(torch.float8_e4m3fn)]


def get_init_inputs():
    return []
