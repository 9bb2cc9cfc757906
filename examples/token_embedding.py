"""Token plus position embedding: the first layer of GPT-2."""

import torch
from torch import nn


# kernel-lsp: init: n_tokens=8192, n_positions=256, dim=384
class TokenEmbedding(nn.Module):
    def __init__(self, n_tokens: int, n_positions: int, dim: int) -> None:
        super().__init__()
        self.token = nn.Embedding(n_tokens, dim)
        self.position = nn.Parameter(torch.randn(n_positions, dim) * 0.02)

    # kernel-lsp: tokens=i64[8, 256] in [0, 8192)
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position
