"""Families of ATen operators with similar cost, by base name."""

from __future__ import annotations


def base_op(op: str) -> str:
    """``mul`` for ``aten.mul.Tensor``, ``aten.mul_.Tensor`` and ``aten::mul``; ``_softmax`` keeps its underscore."""
    return op.replace("::", ".").removeprefix("aten.").split(".")[0].rstrip("_")


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


VIEWS = _ops(
    "view _unsafe_view reshape expand permute transpose t slice select unsqueeze squeeze alias detach split "
    "split_with_sizes unbind as_strided flatten unflatten chunk narrow view_as expand_as lift_fresh_copy sym_size"
)
PRODUCTS = _ops("mm addmm bmm baddbmm linear matmul addbmm")
BIASED_PRODUCTS = _ops("addmm baddbmm addbmm")
"""Products with an added first operand."""
CONVOLUTIONS = _ops("convolution conv1d conv2d conv3d")
ROW_KERNELS = _ops("native_layer_norm layer_norm _softmax _log_softmax softmax log_softmax rms_norm _fused_rms_norm")
TWO_PASS = _ops(
    "native_group_norm group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training batch_norm instance_norm native_layer_norm_backward "
    "native_group_norm_backward"
)
POOLS = _ops("max_pool2d_with_indices max_pool2d avg_pool2d max_pool3d_with_indices avg_pool3d max_pool1d avg_pool1d")
POOLS_BACKWARD = _ops("max_pool2d_with_indices_backward avg_pool2d_backward max_pool3d_with_indices_backward")
GATHERS = _ops("gather index index_select embedding take")
TOGETHER = _ops("sum mean amax amin prod var std var_mean argmax argmin any all cumsum sort topk")
"""Single-pass operators where one element of the result needs many of the operand."""
FILLS = _ops("full zeros ones empty full_like zeros_like ones_like arange scalar_tensor")


def is_attention(op: str) -> bool:
    """Return True for the base name of a fused attention operator."""
    return op.startswith(("_scaled_dot_product", "scaled_dot_product", "_flash_attention", "_efficient_attention"))


def is_product(op: str) -> bool:
    """Return True for an operator that tensor cores can compute."""
    return is_attention(op) or op in PRODUCTS or op in CONVOLUTIONS


def is_heavy(op: str) -> bool:
    """Return True for an operator that needs more than one pass over memory."""
    families = (PRODUCTS, CONVOLUTIONS, ROW_KERNELS, TWO_PASS)
    return is_attention(op) or any(op in family for family in families)
