"""Gemm, group norm, hardtanh."""

import torch
from torch import nn
from torch.nn import functional as F

batch_size = 64
in_features = 128
out_features = 96


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(8, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.group_norm(self.gemm(x))
        return F.hardtanh(x, -2.0, 2.0)


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
