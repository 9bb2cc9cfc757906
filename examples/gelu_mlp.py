"""GELU MLP: the feed-forward block of GPT-2, BERT and vision transformers (here with GPT-2's tanh form of GELU)."""

import torch
from torch import nn
from torch.nn import functional as F


# kernel-lsp: init: dim=384, hidden=1536
class GeluMLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    # kernel-lsp: x=f32[256, 384]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(x), approximate="tanh")
        return self.down(hidden)
