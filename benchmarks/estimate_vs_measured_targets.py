"""The PyTorch code of the measured rows of `estimate_vs_measured.py`, at the sizes they were measured at."""

import torch
from torch import nn
from torch.nn import functional as F


# kernel-lsp: x=f32[1, 64, 256, 256], weight=f32[64, 256, 256], bias=f32[64, 256, 256]
def layer_norm(x, weight, bias):
    return F.layer_norm(x, (64, 256, 256), weight, bias)


# kernel-lsp: x=f32[16, 1024, 4096], weight=f32[4096]
def rms_norm(x, weight):
    rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-6)
    return x / rms * weight


# kernel-lsp: x=f32[2, 128, 4096], gate=f32[14336, 4096], up=f32[14336, 4096], down=f32[4096, 14336]
def llama_ffw(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


# kernel-lsp: x=f32[64, 1, 28, 28], weight=f32[32, 1, 3, 3], bias=f32[32]
def conv_relu_pool(x, weight, bias):
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias)), 2)


# kernel-lsp: logits=f32[64, 10], targets=i64[64] in [0, 10)
def cross_entropy(logits, targets):
    return F.cross_entropy(logits, targets)


# kernel-lsp: x=f32[64, 128], weight=f32[10, 128], bias=f32[10]
def linear(x, weight, bias):
    return F.linear(x, weight, bias)


# kernel-lsp: x=f32[64, 1600], weight=f32[128, 1600], bias=f32[128]
def linear_relu(x, weight, bias):
    return F.relu(F.linear(x, weight, bias))


class Pool(nn.Module):
    # kernel-lsp: x=f32[64, 64, 28, 28]
    def forward(self, x):
        return F.max_pool2d(x, 2)
