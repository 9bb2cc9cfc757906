"""Compute PyTorch's fused attention and its gradients: the library steps ``sdpa::forward`` and ``sdpa::backward``.

The part below the imports is carried by the shared runtime of operator files, word for word.
"""

from __future__ import annotations

import torch
from torch import Tensor

# --- Fused attention --------------------------------------------------------------------------------------

_FLASH, _EFFICIENT, _CUDNN = 1, 2, 3  # of SDPBackend


def sdpa_forward(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> Tensor:
    """Return the attention of (B, H, M, D) queries over (B, H / groups, N, D) keys and values."""
    fused = torch.nn.functional.scaled_dot_product_attention
    return fused(query, key, value, is_causal=is_causal, scale=scale, enable_gqa=_is_grouped(query, key))


def sdpa_backward(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, after another forward pass, by PyTorch's choice of backend.
    Where it chooses none of the fused ones, as on a CPU, by products."""
    aten, operands = torch.ops.aten, (query, key, value)
    chosen = -1
    if query.is_cuda:
        is_grouped = _is_grouped(query, key)
        chosen = torch._fused_sdp_choice(*operands, None, 0.0, is_causal, scale=scale, enable_gqa=is_grouped)
    if chosen == _CUDNN:
        forward = aten._scaled_dot_product_cudnn_attention.default
        out, lse, *sizes, seed, offset, _ = forward(*operands, None, True, 0.0, is_causal, scale=scale)
        backward = aten._scaled_dot_product_cudnn_attention_backward.default
        return backward(grad, *operands, out, lse, seed, offset, None, *sizes, 0.0, is_causal, scale=scale)
    if chosen == _FLASH:
        forward = aten._scaled_dot_product_flash_attention.default
        out, lse, *sizes, seed, offset, _ = forward(*operands, 0.0, is_causal, scale=scale)
        backward = aten._scaled_dot_product_flash_attention_backward.default
        return backward(grad, *operands, out, lse, *sizes, 0.0, is_causal, seed, offset, scale=scale)
    if chosen == _EFFICIENT:
        forward = aten._scaled_dot_product_efficient_attention.default
        kept = forward(*operands, None, True, 0.0, is_causal, scale=scale)
        backward = aten._scaled_dot_product_efficient_attention_backward.default
        wanted = [True, True, True, False]  # and no mask's
        return backward(grad, *operands, None, *kept, 0.0, wanted, is_causal, scale=scale)[:3]
    return _by_products(query, key, value, grad, is_causal, scale)


def _is_grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[-3] != key.shape[-3]


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    n_groups = query.shape[-3] // key.shape[-3]
    q, k, v, g = (tensor.float() for tensor in (query, key, value, grad))
    k, v = (tensor.repeat_interleave(n_groups, -3) for tensor in (k, v))
    scores = q @ k.mT * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1)
    grad_weights = g @ v.mT
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True)) * scale
    of_heads = (grad_scores.mT @ q, weights.mT @ g)
    grad_key, grad_value = (found.unflatten(-3, (-1, n_groups)).sum(-3) for found in of_heads)
    return (grad_scores @ k).to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)
