"""Gemm, dropout in evaluation, softmax."""

import torch
from torch import nn

batch_size = 64
in_features = 128
out_features = 96


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(0.2)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.gemm(x))
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
