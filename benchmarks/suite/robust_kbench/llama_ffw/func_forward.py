"""LLaMA's feed-forward layer with SiLU gating."""

import torch
from torch import nn
from torch.nn import functional as F


def forward_fn(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class Model(nn.Module):
    def __init__(self, num_features, up_features):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(up_features, num_features) / num_features**0.5)
        self.up = nn.Parameter(torch.randn(up_features, num_features) / num_features**0.5)
        self.down = nn.Parameter(torch.randn(num_features, up_features) / up_features**0.5)

    def forward(self, x, fn=forward_fn):
        return fn(x, self.gate, self.up, self.down)


def get_inputs(batch_size, num_tokens, num_features):
    return [torch.randn(batch_size, num_tokens, num_features)]


input_names = ["x"]
