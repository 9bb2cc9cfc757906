"""Attention of decoders, and the rotation of its queries and keys."""

import torch
from torch.nn import functional as F


# kernel-lsp: q=f32[4, 32, 2048, 128], k=f32[4, 32, 2048, 128], v=f32[4, 32, 2048, 128]
def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# kernel-lsp: q=bf16[4, 32, 2048, 128], k=bf16[4, 32, 2048, 128], v=bf16[4, 32, 2048, 128]
def causal_attention_bf16(q, k, v):
    return causal_attention(q, k, v)


# kernel-lsp: q=f16[4, 32, 2048, 128], k=f16[4, 32, 2048, 128], v=f16[4, 32, 2048, 128]
def causal_attention_f16(q, k, v):
    return causal_attention(q, k, v)


# kernel-lsp: q=f32[4, 32, 2048, 128], k=f32[4, 8, 2048, 128], v=f32[4, 8, 2048, 128]
def grouped_query_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


# kernel-lsp: q=bf16[4, 32, 2048, 128], k=bf16[4, 8, 2048, 128], v=bf16[4, 8, 2048, 128]
def grouped_query_attention_bf16(q, k, v):
    return grouped_query_attention(q, k, v)


# kernel-lsp: q=f16[4, 32, 2048, 128], k=f16[4, 8, 2048, 128], v=f16[4, 8, 2048, 128]
def grouped_query_attention_f16(q, k, v):
    return grouped_query_attention(q, k, v)


def _rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


# kernel-lsp: q=f32[4, 32, 2048, 128], k=f32[4, 8, 2048, 128], cos=f32[2048, 128], sin=f32[2048, 128]
def rope(q, k, cos, sin):
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


# kernel-lsp: q=bf16[4, 32, 2048, 128], k=bf16[4, 8, 2048, 128], cos=bf16[2048, 128], sin=bf16[2048, 128]
def rope_bf16(q, k, cos, sin):
    return rope(q, k, cos, sin)


# kernel-lsp: q=f16[4, 32, 2048, 128], k=f16[4, 8, 2048, 128], cos=f16[2048, 128], sin=f16[2048, 128]
def rope_f16(q, k, cos, sin):
    return rope(q, k, cos, sin)
