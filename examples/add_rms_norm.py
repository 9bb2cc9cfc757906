"""Residual add and RMSNorm in one, in bf16 with f32 inside: what serving engines run twice per layer of LLaMA.
Returns the normed tensor and the new residual."""

import torch


# kernel-lsp: x=bf16[1024, 2048], residual=bf16[1024, 2048], weight=bf16[2048], eps=1e-6
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.pow(2).mean(dim=-1, keepdim=True) + eps)
    normed = (total * scale).to(x.dtype) * weight
    return normed, total.to(x.dtype)
