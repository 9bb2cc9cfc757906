"""Dropout in training: a different result every time."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(x))


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
