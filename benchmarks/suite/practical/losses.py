"""Losses over a vocabulary: of language models, and of distillation."""

import torch
from torch.nn import functional as F


# kernel-lsp: logits=f32[4096, 32000], targets=i64[4096] < 32000
def cross_entropy_smoothed(logits, targets):
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


# kernel-lsp: logits=bf16[4096, 32000], targets=i64[4096] < 32000
def cross_entropy_smoothed_bf16(logits, targets):
    return cross_entropy_smoothed(logits, targets)


# kernel-lsp: logits=f16[4096, 32000], targets=i64[4096] < 32000
def cross_entropy_smoothed_f16(logits, targets):
    return cross_entropy_smoothed(logits, targets)


# kernel-lsp: logits=f32[4096, 32000], targets=i64[4096] < 32000
def cross_entropy_z_loss(logits, targets):
    logits = logits.float()
    return F.cross_entropy(logits, targets) + 1e-4 * torch.logsumexp(logits, -1).pow(2).mean()


# kernel-lsp: logits=bf16[4096, 32000], targets=i64[4096] < 32000
def cross_entropy_z_loss_bf16(logits, targets):
    return cross_entropy_z_loss(logits, targets)


# kernel-lsp: logits=f16[4096, 32000], targets=i64[4096] < 32000
def cross_entropy_z_loss_f16(logits, targets):
    return cross_entropy_z_loss(logits, targets)


# kernel-lsp: x=f32[4096, 2048], weight=f32[32000, 2048], targets=i64[4096] < 32000
def linear_cross_entropy(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight), targets)


# kernel-lsp: x=bf16[4096, 2048], weight=bf16[32000, 2048], targets=i64[4096] < 32000
def linear_cross_entropy_bf16(x, weight, targets):
    return linear_cross_entropy(x, weight, targets)


# kernel-lsp: x=f16[4096, 2048], weight=f16[32000, 2048], targets=i64[4096] < 32000
def linear_cross_entropy_f16(x, weight, targets):
    return linear_cross_entropy(x, weight, targets)


# kernel-lsp: student=f32[4096, 32000], teacher=f32[4096, 32000]
def kl_divergence(student, teacher):
    return F.kl_div(F.log_softmax(student, -1), F.softmax(teacher, -1), reduction="batchmean")


# kernel-lsp: student=bf16[4096, 32000], teacher=bf16[4096, 32000]
def kl_divergence_bf16(student, teacher):
    return kl_divergence(student, teacher)


# kernel-lsp: student=f16[4096, 32000], teacher=f16[4096, 32000]
def kl_divergence_f16(student, teacher):
    return kl_divergence(student, teacher)


# kernel-lsp: student=f32[4096, 32000], teacher=f32[4096, 32000]
def js_divergence(student, teacher):
    log_p, log_q = F.log_softmax(student, -1), F.log_softmax(teacher, -1)
    p, q = log_p.exp(), log_q.exp()
    log_mean = torch.log(0.5 * (p + q))
    return 0.5 * ((p * (log_p - log_mean)).sum(-1) + (q * (log_q - log_mean)).sum(-1)).mean()


# kernel-lsp: student=bf16[4096, 32000], teacher=bf16[4096, 32000]
def js_divergence_bf16(student, teacher):
    return js_divergence(student, teacher)


# kernel-lsp: student=f16[4096, 32000], teacher=f16[4096, 32000]
def js_divergence_f16(student, teacher):
    return js_divergence(student, teacher)
