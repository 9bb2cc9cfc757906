"""A 4D tensor times a matrix, as an einsum."""

import torch
from torch import nn

b = 2
i = 12
j = 16
dim = 48
k = 40


class Model(nn.Module):
    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bijl,lk->bijk", A, B)


def get_inputs():
    return [torch.rand(b, i, j, dim), torch.rand(dim, k)]


def get_init_inputs():
    return []
