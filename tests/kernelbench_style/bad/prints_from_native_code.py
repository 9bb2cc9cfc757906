"""Writes to file descriptor 1 past Python's buffers, as a C library would; otherwise good, so it must work."""

import os

import torch
from torch import nn

os.write(1, b"native library version 7\n")


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
