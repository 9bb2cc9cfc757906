"""Scaled dot product attention."""

import torch
from torch import nn
from torch.nn import functional as F

batch_size = 2
num_heads = 4
sequence_length = 64
dim = 32


class Model(nn.Module):
    def forward(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(Q, K, V)


def get_inputs():
    return [
        torch.rand(batch_size, num_heads, sequence_length, dim),
        torch.rand(batch_size, num_heads, sequence_length, dim),
        torch.rand(batch_size, num_heads, sequence_length, dim),
    ]


def get_init_inputs():
    return []
