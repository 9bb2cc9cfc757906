"""Linear + ReLU: the hidden layer of a classifier, here the one of a small MNIST network (1600 -> 128)."""

import torch
from torch import nn


# kernel-lsp: init: in_features=1600, out_features=128
class LinearReLU(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    # kernel-lsp: x=f32[64, 1600]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))
