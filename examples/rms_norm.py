"""RMSNorm: before every attention and feed-forward block of LLaMA, Mistral, Gemma and Qwen."""

import torch
from torch import nn


# kernel-lsp: init: dim=2048, eps=1e-6
class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    # kernel-lsp: x=f32[4, 256, 2048]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight
