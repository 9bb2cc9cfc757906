"""Weights stored as 8 or 4 bits, expanded before a product or on their own."""

import torch
from torch.nn import functional as F


# kernel-lsp: q=i8[4096, 11008] in [-127, 128), scale=f32[4096, 1]
def dequantize_int8(q, scale):
    return q.to(scale.dtype) * scale


# kernel-lsp: q=i8[4096, 11008] in [-127, 128), scale=bf16[4096, 1]
def dequantize_int8_bf16(q, scale):
    return dequantize_int8(q, scale)


# kernel-lsp: q=i8[4096, 11008] in [-127, 128), scale=f16[4096, 1]
def dequantize_int8_f16(q, scale):
    return dequantize_int8(q, scale)


# kernel-lsp: packed=u8[4096, 5504] in [0, 256), scale=f32[4096, 86]
def dequantize_int4(packed, scale):
    low, high = (packed & 15).to(scale.dtype) - 8, (packed >> 4).to(scale.dtype) - 8
    groups = torch.stack((low, high), -1).view(4096, 86, 128)
    return (groups * scale[:, :, None]).view(4096, 11008)


# kernel-lsp: packed=u8[4096, 5504] in [0, 256), scale=bf16[4096, 86]
def dequantize_int4_bf16(packed, scale):
    return dequantize_int4(packed, scale)


# kernel-lsp: packed=u8[4096, 5504] in [0, 256), scale=f16[4096, 86]
def dequantize_int4_f16(packed, scale):
    return dequantize_int4(packed, scale)


# kernel-lsp: x=f32[16, 4096], q=i8[11008, 4096] in [-127, 128), scale=f32[11008]
def linear_int8(x, q, scale):
    return F.linear(x, q.to(x.dtype)) * scale


# kernel-lsp: x=bf16[16, 4096], q=i8[11008, 4096] in [-127, 128), scale=bf16[11008]
def linear_int8_bf16(x, q, scale):
    return linear_int8(x, q, scale)


# kernel-lsp: x=f16[16, 4096], q=i8[11008, 4096] in [-127, 128), scale=f16[11008]
def linear_int8_f16(x, q, scale):
    return linear_int8(x, q, scale)
