"""Normalizations of transformers and of image networks, alone and after a residual addition."""

import torch
from torch.nn import functional as F


# kernel-lsp: x=f32[8192, 4096], weight=f32[4096]
def rms_norm(x, weight):
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).to(x.dtype) * weight


# kernel-lsp: x=bf16[8192, 4096], weight=bf16[4096]
def rms_norm_bf16(x, weight):
    return rms_norm(x, weight)


# kernel-lsp: x=f16[8192, 4096], weight=f16[4096]
def rms_norm_f16(x, weight):
    return rms_norm(x, weight)


# kernel-lsp: x=f32[8192, 4096], residual=f32[8192, 4096], weight=f32[4096]
def rms_norm_residual(x, residual, weight):
    total = x + residual
    return rms_norm(total, weight), total


# kernel-lsp: x=bf16[8192, 4096], residual=bf16[8192, 4096], weight=bf16[4096]
def rms_norm_residual_bf16(x, residual, weight):
    return rms_norm_residual(x, residual, weight)


# kernel-lsp: x=f16[8192, 4096], residual=f16[8192, 4096], weight=f16[4096]
def rms_norm_residual_f16(x, residual, weight):
    return rms_norm_residual(x, residual, weight)


# kernel-lsp: x=f32[8192, 4096], weight=f32[4096], bias=f32[4096]
def layer_norm(x, weight, bias):
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


# kernel-lsp: x=bf16[8192, 4096], weight=bf16[4096], bias=bf16[4096]
def layer_norm_bf16(x, weight, bias):
    return layer_norm(x, weight, bias)


# kernel-lsp: x=f16[8192, 4096], weight=f16[4096], bias=f16[4096]
def layer_norm_f16(x, weight, bias):
    return layer_norm(x, weight, bias)


# kernel-lsp: x=f32[8192, 4096], residual=f32[8192, 4096], weight=f32[4096], bias=f32[4096]
def layer_norm_residual(x, residual, weight, bias):
    total = x + residual
    return F.layer_norm(total, weight.shape, weight, bias, 1e-5), total


# kernel-lsp: x=bf16[8192, 4096], residual=bf16[8192, 4096], weight=bf16[4096], bias=bf16[4096]
def layer_norm_residual_bf16(x, residual, weight, bias):
    return layer_norm_residual(x, residual, weight, bias)


# kernel-lsp: x=f16[8192, 4096], residual=f16[8192, 4096], weight=f16[4096], bias=f16[4096]
def layer_norm_residual_f16(x, residual, weight, bias):
    return layer_norm_residual(x, residual, weight, bias)


# kernel-lsp: x=f32[32, 256, 64, 64], weight=f32[256], bias=f32[256]
def group_norm(x, weight, bias):
    return F.group_norm(x, 32, weight, bias, 1e-5)


# kernel-lsp: x=bf16[32, 256, 64, 64], weight=bf16[256], bias=bf16[256]
def group_norm_bf16(x, weight, bias):
    return group_norm(x, weight, bias)


# kernel-lsp: x=f16[32, 256, 64, 64], weight=f16[256], bias=f16[256]
def group_norm_f16(x, weight, bias):
    return group_norm(x, weight, bias)
