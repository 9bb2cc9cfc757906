"""RMSNorm on tensors so small that calls are all that takes time."""

import torch
from torch import Tensor


# kernel-lsp: x=f32[64, 128], weight=f32[128], eps=1e-6
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
