"""Tasks of the suite, computed by the libraries that trainers install. Arguments are those of the task's function.

Each library is imported by the function that uses it: a missing one is reported as that row's missing baseline.
"""

from functools import cache
from importlib import import_module


@cache
def _liger():
    return import_module("liger_kernel.transformers.functional")


def liger_rms_norm(x, weight):
    return _liger().liger_rms_norm(x, weight, 1e-6, in_place=False)


def liger_rms_norm_residual(x, residual, weight):
    return _liger().liger_fused_add_rms_norm(x, residual, weight, 1e-6, in_place=False)


def liger_layer_norm(x, weight, bias):
    return _liger().liger_layer_norm(x, weight, bias, 1e-5)


def liger_group_norm(x, weight, bias):
    return _liger().liger_group_norm(x, weight, bias, x.shape[1], 32, 1e-5)


def liger_cross_entropy_smoothed(logits, targets):
    return _liger().liger_cross_entropy(logits, targets, label_smoothing=0.1)


def liger_cross_entropy_z_loss(logits, targets):
    return _liger().liger_cross_entropy(logits, targets, lse_square_scale=1e-4)


def liger_linear_cross_entropy(x, weight, targets):
    return _liger().liger_fused_linear_cross_entropy(x, weight, targets)


def liger_kl_divergence(student, teacher):
    return _liger().liger_kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")


def liger_js_divergence(student, teacher):
    return _liger().liger_jsd(student.log_softmax(-1), teacher.log_softmax(-1))


def liger_silu_mul(gate, up):
    return _liger().liger_swiglu(gate, up)


def liger_gelu_mul(gate, up):
    return _liger().liger_geglu(gate, up)


def liger_rope(q, k, cos, sin):
    return _liger().liger_rope(q, k, cos[None], sin[None])


def flash_attn_causal(q, k, v):
    heads_last = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return import_module("flash_attn").flash_attn_func(*heads_last, causal=True).transpose(1, 2)


def xformers_causal(q, k, v):
    ops = import_module("xformers.ops")
    heads_last = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return ops.memory_efficient_attention(*heads_last, attn_bias=ops.LowerTriangularMask()).transpose(1, 2)
