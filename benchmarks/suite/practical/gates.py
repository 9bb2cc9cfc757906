"""Gated activations of feed-forward layers."""

import torch
from torch.nn import functional as F


# kernel-lsp: gate=f32[8192, 11008], up=f32[8192, 11008]
def silu_mul(gate, up):
    return F.silu(gate) * up


# kernel-lsp: gate=bf16[8192, 11008], up=bf16[8192, 11008]
def silu_mul_bf16(gate, up):
    return silu_mul(gate, up)


# kernel-lsp: gate=f16[8192, 11008], up=f16[8192, 11008]
def silu_mul_f16(gate, up):
    return silu_mul(gate, up)


# kernel-lsp: gate=f32[8192, 11008], up=f32[8192, 11008]
def gelu_mul(gate, up):
    return F.gelu(gate, approximate="tanh") * up


# kernel-lsp: gate=bf16[8192, 11008], up=bf16[8192, 11008]
def gelu_mul_bf16(gate, up):
    return gelu_mul(gate, up)


# kernel-lsp: gate=f16[8192, 11008], up=f16[8192, 11008]
def gelu_mul_f16(gate, up):
    return gelu_mul(gate, up)


# kernel-lsp: x=f32[1024, 4096], gate=f32[11008, 4096], up=f32[11008, 4096]
def swiglu(x, gate, up):
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


# kernel-lsp: x=bf16[1024, 4096], gate=bf16[11008, 4096], up=bf16[11008, 4096]
def swiglu_bf16(x, gate, up):
    return swiglu(x, gate, up)


# kernel-lsp: x=f16[1024, 4096], gate=f16[11008, 4096], up=f16[11008, 4096]
def swiglu_f16(x, gate, up):
    return swiglu(x, gate, up)


# kernel-lsp: x=f32[1024, 4096], gate=f32[11008, 4096], up=f32[11008, 4096]
def geglu(x, gate, up):
    return F.gelu(F.linear(x, gate), approximate="tanh") * F.linear(x, up)


# kernel-lsp: x=bf16[1024, 4096], gate=bf16[11008, 4096], up=bf16[11008, 4096]
def geglu_bf16(x, gate, up):
    return geglu(x, gate, up)


# kernel-lsp: x=f16[1024, 4096], gate=f16[11008, 4096], up=f16[11008, 4096]
def geglu_f16(x, gate, up):
    return geglu(x, gate, up)


# kernel-lsp: x=f32[8192, 4096], gate=f32[8192, 4096], residual=f32[8192, 4096]
def gated_residual(x, gate, residual):
    return residual + torch.sigmoid(gate) * x


# kernel-lsp: x=bf16[8192, 4096], gate=bf16[8192, 4096], residual=bf16[8192, 4096]
def gated_residual_bf16(x, gate, residual):
    return gated_residual(x, gate, residual)


# kernel-lsp: x=f16[8192, 4096], gate=f16[8192, 4096], residual=f16[8192, 4096]
def gated_residual_f16(x, gate, residual):
    return gated_residual(x, gate, residual)
