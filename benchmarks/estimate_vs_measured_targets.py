"""The PyTorch code of the measured rows of `estimate_vs_measured.py`, at the sizes they were measured at."""

import torch
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


# kernel-lsp: x=f32[8192, 8192]
def add(x):
    return x + x


# kernel-lsp: x=f32[8192, 8192], row=f32[8192]
def add_row(x, row):
    return x + row


# kernel-lsp: x=f32[8192, 8192]
def gelu(x):
    return F.gelu(x)


# kernel-lsp: x=bf16[8192, 8192]
def gelu_bf16(x):
    return F.gelu(x)


# kernel-lsp: x=f32[8192, 8192]
def sum_rows(x):
    return x.sum(-1)


# kernel-lsp: x=f32[8192, 8192]
def sum_columns(x):
    return x.sum(0)


# kernel-lsp: x=f32[8192, 8192]
def softmax(x):
    return F.softmax(x, -1)


# kernel-lsp: x=f32[8192, 8192], weight=f32[8192], bias=f32[8192]
def layer_norm_rows(x, weight, bias):
    return F.layer_norm(x, (8192,), weight, bias)


# kernel-lsp: x=f32[8192, 4096], weight=f32[4096], bias=f32[4096]
def layer_norm_rows_backward(x, weight, bias):
    return F.layer_norm(x, (4096,), weight, bias)


# kernel-lsp: x=f32[32, 64, 56, 56], weight=f32[64], bias=f32[64]
def group_norm_silu(x, weight, bias):
    return F.silu(F.group_norm(x, 8, weight, bias))


# kernel-lsp: logits=f32[4096, 4096], targets=i64[4096] in [0, 4096)
def cross_entropy_large(logits, targets):
    return F.cross_entropy(logits, targets)


# kernel-lsp: ids=i64[16384] in [0, 50000), table=f32[50000, 1024]
def embedding(ids, table):
    return F.embedding(ids, table)


# kernel-lsp: x=f32[8192, 8192], y=f32[8192, 8192]
def cat(x, y):
    return torch.cat((x, y), -1)


# kernel-lsp: x=f32[32, 64, 56, 56]
def max_pool(x):
    return F.max_pool2d(x, 2)


# kernel-lsp: x=f32[64, 64, 28, 28]
def max_pool_backward(x):
    return F.max_pool2d(x, 2)


# kernel-lsp: x=f32[32, 64, 56, 56], weight=f32[64, 64, 3, 3], bias=f32[64]
def conv(x, weight, bias):
    return F.conv2d(x, weight, bias, padding=1)


# kernel-lsp: x=f32[4096, 4096], y=f32[4096, 4096]
def mm_4096(x, y):
    return x @ y


# kernel-lsp: x=bf16[8192, 8192], y=bf16[8192, 8192]
def mm_8192_bf16(x, y):
    return x @ y


# kernel-lsp: q=f32[8, 16, 1024, 64], k=f32[8, 16, 1024, 64], v=f32[8, 16, 1024, 64]
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


# kernel-lsp: x=f32[64], y=f32[64]
def tiny_add(x, y):
    return x + y


# kernel-lsp: x=f32[4096, 4096]
def gelu_backward(x):
    return F.gelu(x)
