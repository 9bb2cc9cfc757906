"""A gated block for sensor readings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Standardize(nn.Module):
    """Shift and scale the features of every reading."""

    def __init__(self, features: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, readings: Tensor) -> Tensor:
        centred = readings - readings.mean(dim=-1, keepdim=True)
        spread = (centred.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()
        return self.gain * centred / spread + self.shift


class GatedBlock(nn.Module):
    def __init__(self, features: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.before = Standardize(features)
        self.after = Standardize(features, eps=1e-3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, readings: Tensor) -> Tensor:
        inner = self.before(readings)
        gated = F.softplus(inner) * torch.tanh(inner)
        return readings + self.dropout(self.after(gated))
