"""Product of two symmetric matrices."""

import torch
from torch import nn

N = 96


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B)


def symmetric():
    A = torch.rand(N, N)
    return (A + A.T) / 2


def get_inputs():
    return [symmetric(), symmetric()]


def get_init_inputs():
    return []
