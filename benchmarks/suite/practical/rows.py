"""Softmax, selection and scans along rows; a lookup in a table of embeddings."""

import torch
from torch.nn import functional as F


# kernel-lsp: x=f32[8192, 8192]
def softmax(x):
    return F.softmax(x, -1)


# kernel-lsp: x=bf16[8192, 8192]
def softmax_bf16(x):
    return softmax(x)


# kernel-lsp: x=f16[8192, 8192]
def softmax_f16(x):
    return softmax(x)


# kernel-lsp: x=f32[8192, 8192]
def log_softmax(x):
    return F.log_softmax(x, -1)


# kernel-lsp: x=bf16[8192, 8192]
def log_softmax_bf16(x):
    return log_softmax(x)


# kernel-lsp: x=f16[8192, 8192]
def log_softmax_f16(x):
    return log_softmax(x)


# kernel-lsp: x=f32[4096, 32000]
def top_k(x):
    values, indices = torch.topk(x, 8, -1)
    return values, indices


# kernel-lsp: x=bf16[4096, 32000]
def top_k_bf16(x):
    return top_k(x)


# kernel-lsp: x=f16[4096, 32000]
def top_k_f16(x):
    return top_k(x)


# kernel-lsp: x=f32[8192, 8192]
def cumulative_sum(x):
    return torch.cumsum(x, -1)


# kernel-lsp: x=bf16[8192, 8192]
def cumulative_sum_bf16(x):
    return cumulative_sum(x)


# kernel-lsp: x=f16[8192, 8192]
def cumulative_sum_f16(x):
    return cumulative_sum(x)


# kernel-lsp: x=f32[8192, 8192]
def reverse_cumulative_sum(x):
    return torch.cumsum(x.flip(-1), -1).flip(-1)


# kernel-lsp: x=bf16[8192, 8192]
def reverse_cumulative_sum_bf16(x):
    return reverse_cumulative_sum(x)


# kernel-lsp: x=f16[8192, 8192]
def reverse_cumulative_sum_f16(x):
    return reverse_cumulative_sum(x)


# kernel-lsp: ids=i64[16384] < 32000, weight=f32[32000, 2048]
def embedding(ids, weight):
    return F.embedding(ids, weight)


# kernel-lsp: ids=i64[16384] < 32000, weight=bf16[32000, 2048]
def embedding_bf16(ids, weight):
    return embedding(ids, weight)


# kernel-lsp: ids=i64[16384] < 32000, weight=f16[32000, 2048]
def embedding_f16(ids, weight):
    return embedding(ids, weight)
