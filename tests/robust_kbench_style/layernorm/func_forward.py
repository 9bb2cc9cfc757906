"""LayerNorm over the last three dims."""

import torch
from torch import nn


def forward_fn(x, weight, bias, eps=1e-5):
    return torch.nn.functional.layer_norm(x, tuple(weight.shape), weight, bias, eps)


class Model(nn.Module):
    """`weight` and `bias` cover features, height and width."""

    def __init__(self, num_features, dim1, dim2, eps=1e-5):
        super().__init__()
        shape = (num_features, dim1, dim2)
        self.weight = nn.Parameter(torch.ones(shape) + 0.1 * torch.randn(shape))
        self.bias = nn.Parameter(0.1 * torch.randn(shape))
        self.eps = eps

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.bias, self.eps)


def get_inputs(batch_size, num_features, dim1, dim2):
    x = torch.randn(batch_size, num_features, dim1, dim2)
    return (x,)


input_names = ("x",)
