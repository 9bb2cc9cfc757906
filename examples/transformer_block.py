"""The second half of a LLaMA layer: x + SwiGLU(RMSNorm(x)), with the residual and without dropout."""

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


# kernel-lsp: init: dim=256, hidden=704
class FeedForwardBlock(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim)
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    # kernel-lsp: x=f32[2, 128, 256]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        gated = F.silu(self.gate_proj(normed)) * self.up_proj(normed)
        return x + self.down_proj(gated)
