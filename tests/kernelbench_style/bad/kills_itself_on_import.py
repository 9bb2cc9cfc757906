"""Dies of a signal, as a faulty native extension does."""

import os
import signal

import torch
from torch import nn

os.kill(os.getpid(), signal.SIGSEGV)


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
