"""An input that is neither a tensor nor a number."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mode: str) -> torch.Tensor:
        return torch.relu(x) if mode == "relu" else x


def get_inputs():
    return [torch.randn(16, 64), "relu"]


def get_init_inputs():
    return []
