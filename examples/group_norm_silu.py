"""GroupNorm + SiLU: before every convolution in the UNet and the VAE of Stable Diffusion."""

import torch
from torch import nn
from torch.nn import functional as F


# kernel-lsp: init: channels=128, groups=32
class GroupNormSiLU(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)

    # kernel-lsp: x=f32[4, 128, 32, 32]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(x))
