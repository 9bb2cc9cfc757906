"""LayerNorm over the last three dims of an image."""

import torch
from torch import nn
from torch.nn import functional as F


def forward_fn(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, weight.shape, weight, bias, eps)


class Model(nn.Module):
    def __init__(self, num_features, dim1, dim2, init_method="random"):
        super().__init__()
        scale = 0.1 if init_method == "random" else 0.0
        self.weight = nn.Parameter(1 + scale * torch.randn(num_features, dim1, dim2))
        self.bias = nn.Parameter(scale * torch.randn(num_features, dim1, dim2))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.bias)


def get_inputs(batch_size, num_features, dim1, dim2):
    return [torch.randn(batch_size, num_features, dim1, dim2)]


input_names = ["x"]
