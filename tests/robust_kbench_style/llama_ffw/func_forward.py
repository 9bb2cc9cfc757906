"""LLaMA's feed-forward layer. The dtype is a setting."""

import torch
from torch import nn
from torch.nn import functional as F

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def forward_fn(x, gate_proj, up_proj, down_proj):
    return F.linear(F.silu(F.linear(x, gate_proj)) * F.linear(x, up_proj), down_proj)


def _matrix(rows, columns, dtype):
    return nn.Parameter((torch.randn(rows, columns) / columns**0.5).to(dtype))


class Model(nn.Module):
    def __init__(self, hidden_size, intermediate_size, dtype="float32"):
        super().__init__()
        self.gate_proj = _matrix(intermediate_size, hidden_size, DTYPES[dtype])
        self.up_proj = _matrix(intermediate_size, hidden_size, DTYPES[dtype])
        self.down_proj = _matrix(hidden_size, intermediate_size, DTYPES[dtype])

    def forward(self, x, fn=forward_fn):
        return fn(x, self.gate_proj, self.up_proj, self.down_proj)


def get_inputs(batch_size, seq_len, hidden_size, dtype="float32"):
    return [torch.randn(batch_size, seq_len, hidden_size).to(DTYPES[dtype])]


input_names = ["x"]
