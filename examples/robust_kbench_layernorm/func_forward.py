"""LayerNorm over the last three dims as a robust-kbench task: `forward_fn` is what a kernel replaces."""

import torch
from torch import nn
from torch.nn import functional as F


def forward_fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


class Model(nn.Module):
    def __init__(self, features: int, dim1: int, dim2: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(features, dim1, dim2) * 0.1 + 1)
        self.bias = nn.Parameter(torch.randn(features, dim1, dim2) * 0.1)

    def forward(self, x: torch.Tensor, fn=forward_fn) -> torch.Tensor:
        return fn(x, self.weight, self.bias, self.eps)


def get_inputs(batch_size: int, features: int, dim1: int, dim2: int) -> list[torch.Tensor]:
    return [torch.randn(batch_size, features, dim1, dim2)]


input_names = ["x"]
