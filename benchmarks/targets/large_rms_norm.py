"""RMSNorm at the size of robust-kbench's task: 64 million elements, at the bandwidth of the device's memory."""

import torch


# kernel-lsp: x=f32[16, 1024, 4096], weight=f32[4096], eps=1e-5
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight
