"""Softmax with a temperature and a mask: attention scores with padding, and token sampling with banned tokens."""

import torch


# kernel-lsp: scores=f32[8, 256, 512], allowed=bool[8, 1, 512], temperature=0.7
def softmax_with_temperature(scores: torch.Tensor, allowed: torch.Tensor, temperature: float) -> torch.Tensor:
    scaled = scores / temperature
    masked = scaled.masked_fill(~allowed, -1e9)
    return torch.softmax(masked, dim=-1)
