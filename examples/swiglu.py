"""SwiGLU: the feed-forward block of LLaMA, Mistral and Qwen. `FeedForward.gate` is what lies between its matrix
products, where fusing pays."""

import torch
from torch import nn
from torch.nn import functional as F


# kernel-lsp: init: dim=256, hidden=704
class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    # kernel-lsp: x=f32[256, 256]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.gate(self.gate_proj(x), self.up_proj(x)))

    # kernel-lsp: gate=f32[1024, 1408], up=f32[1024, 1408]
    def gate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up
