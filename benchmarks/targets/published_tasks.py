"""Tasks that published CUDA kernels were timed on, at the sizes of robust-kbench's single configurations."""

import torch
from torch import nn
from torch.nn import functional as F


# kernel-lsp: x=f32[1, 64, 256, 256], weight=f32[64, 256, 256], bias=f32[64, 256, 256]
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (64, 256, 256), weight, bias, 1e-5)


# kernel-lsp: x=f32[16, 1024, 4096]
def rms_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)


# kernel-lsp: x=f32[2, 128, 4096], gate=f32[14336, 4096], up=f32[14336, 4096], down=f32[4096, 14336]
def llama_feed_forward(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


# kernel-lsp: init: n_channels=64
class ResNetBlock(nn.Module):
    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_channels, n_channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_channels)
        self.conv2 = nn.Conv2d(n_channels, n_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_channels)
        self.eval()

    # kernel-lsp: x=f32[32, 64, 112, 112]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + x)


# kernel-lsp: x=f32[64, 1, 28, 28], weight=f32[32, 1, 3, 3], bias=f32[32]
def conv_relu_pool(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(torch.relu(F.conv2d(x, weight, bias)), 2)


# kernel-lsp: logits=f32[64, 10], targets=i64[64] in [0, 10)
def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets)


# kernel-lsp: x=f32[64, 128], weight=f32[10, 128], bias=f32[10]
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, bias)


# kernel-lsp: x=f32[64, 1600], weight=f32[128, 1600], bias=f32[128]
def linear_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, weight, bias))


# kernel-lsp: x=f32[64, 64, 28, 28]
def max_pool(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 2)
