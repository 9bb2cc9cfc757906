"""Imports a package that nobody has."""

import torch
from a_package_that_is_not_installed import fused_relu  # noqa: F401
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
