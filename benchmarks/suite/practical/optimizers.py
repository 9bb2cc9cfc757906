"""Steps of training over a list of parameters: a large matrix, a larger one, and a vector."""

import torch


def _adamw(w, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v + 0.05 * g * g
    step = m / 0.1 / ((v / 0.05).sqrt() + 1e-8)
    return w * (1 - 3e-4 * 0.1) - 3e-4 * step, m, v


# kernel-lsp: w0=f32[4096, 4096], w1=f32[11008, 4096], w2=f32[4096]
# kernel-lsp: g0=f32[4096, 4096], g1=f32[11008, 4096], g2=f32[4096]
# kernel-lsp: m0=f32[4096, 4096], m1=f32[11008, 4096], m2=f32[4096]
# kernel-lsp: v0=f32[4096, 4096], v1=f32[11008, 4096], v2=f32[4096]
def adamw(w0, w1, w2, g0, g1, g2, m0, m1, m2, v0, v1, v2):
    first, second, third = _adamw(w0, g0, m0, v0), _adamw(w1, g1, m1, v1), _adamw(w2, g2, m2, v2)
    return *first, *second, *third


# kernel-lsp: w0=bf16[4096, 4096], w1=bf16[11008, 4096], w2=bf16[4096]
# kernel-lsp: g0=bf16[4096, 4096], g1=bf16[11008, 4096], g2=bf16[4096]
# kernel-lsp: m0=bf16[4096, 4096], m1=bf16[11008, 4096], m2=bf16[4096]
# kernel-lsp: v0=bf16[4096, 4096], v1=bf16[11008, 4096], v2=bf16[4096]
def adamw_bf16(w0, w1, w2, g0, g1, g2, m0, m1, m2, v0, v1, v2):
    return adamw(w0, w1, w2, g0, g1, g2, m0, m1, m2, v0, v1, v2)


# kernel-lsp: w0=f16[4096, 4096], w1=f16[11008, 4096], w2=f16[4096]
# kernel-lsp: g0=f16[4096, 4096], g1=f16[11008, 4096], g2=f16[4096]
# kernel-lsp: m0=f16[4096, 4096], m1=f16[11008, 4096], m2=f16[4096]
# kernel-lsp: v0=f16[4096, 4096], v1=f16[11008, 4096], v2=f16[4096]
def adamw_f16(w0, w1, w2, g0, g1, g2, m0, m1, m2, v0, v1, v2):
    return adamw(w0, w1, w2, g0, g1, g2, m0, m1, m2, v0, v1, v2)


# kernel-lsp: a0=f32[4096, 4096], a1=f32[11008, 4096], a2=f32[4096]
# kernel-lsp: w0=f32[4096, 4096], w1=f32[11008, 4096], w2=f32[4096]
def ema(a0, a1, a2, w0, w1, w2):
    return torch.lerp(a0, w0, 0.001), torch.lerp(a1, w1, 0.001), torch.lerp(a2, w2, 0.001)


# kernel-lsp: a0=bf16[4096, 4096], a1=bf16[11008, 4096], a2=bf16[4096]
# kernel-lsp: w0=bf16[4096, 4096], w1=bf16[11008, 4096], w2=bf16[4096]
def ema_bf16(a0, a1, a2, w0, w1, w2):
    return ema(a0, a1, a2, w0, w1, w2)


# kernel-lsp: a0=f16[4096, 4096], a1=f16[11008, 4096], a2=f16[4096]
# kernel-lsp: w0=f16[4096, 4096], w1=f16[11008, 4096], w2=f16[4096]
def ema_f16(a0, a1, a2, w0, w1, w2):
    return ema(a0, a1, a2, w0, w1, w2)


# kernel-lsp: g0=f32[4096, 4096], g1=f32[11008, 4096], g2=f32[4096]
def clip_by_global_norm(g0, g1, g2):
    total = sum(g.float().pow(2).sum() for g in (g0, g1, g2))
    scale = torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0)
    return tuple((g * scale).to(g.dtype) for g in (g0, g1, g2))


# kernel-lsp: g0=bf16[4096, 4096], g1=bf16[11008, 4096], g2=bf16[4096]
def clip_by_global_norm_bf16(g0, g1, g2):
    return clip_by_global_norm(g0, g1, g2)


# kernel-lsp: g0=f16[4096, 4096], g1=f16[11008, 4096], g2=f16[4096]
def clip_by_global_norm_f16(g0, g1, g2):
    return clip_by_global_norm(g0, g1, g2)
