"""Matrix product with sizes that are no multiples of anything."""

import torch
from torch import nn

M = 61
K = 113
N = 37


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B)


def get_inputs():
    return [torch.rand(M, K), torch.rand(K, N)]


def get_init_inputs():
    return []
