"""Compute PyTorch's fused attention and its gradients: the library steps ``sdpa::forward``, ``sdpa::backward``
and their pair that keeps what both need.

The part below the imports is carried by the shared runtime of operator files, word for word.
"""

from __future__ import annotations

import torch
from torch import Tensor

# --- Fused attention --------------------------------------------------------------------------------------

_FLASH, _EFFICIENT, _CUDNN = 1, 2, 3  # of SDPBackend
_EFFICIENT_ROWS = 32  # of which that backend's logarithms are a multiple


def sdpa_forward(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> Tensor:
    """Return the attention of (B, H, M, D) queries over (B, H / groups, N, D) keys and values."""
    fused = torch.nn.functional.scaled_dot_product_attention
    return fused(query, key, value, is_causal=is_causal, scale=scale, enable_gqa=_is_grouped(query, key))


def sdpa_forward_kept(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the attention, and the logarithm of each query's sum of exponentials (B, H, M), which gradients need,
    by PyTorch's choice of backend. Where it chooses none of the fused ones, as on a CPU, by products."""
    aten, operands, chosen = torch.ops.aten, (query, key, value), _backend(query, key, value, is_causal, scale)
    if chosen == _CUDNN:
        forward = aten._scaled_dot_product_cudnn_attention.default
        out, log_sums, *_ = forward(*operands, None, True, 0.0, is_causal, scale=scale)
    elif chosen == _FLASH:
        forward = aten._scaled_dot_product_flash_attention.default
        out, log_sums, *_ = forward(*operands, 0.0, is_causal, scale=scale)
    elif chosen == _EFFICIENT:
        forward = aten._scaled_dot_product_efficient_attention.default
        out, log_sums, *_ = forward(*operands, None, True, 0.0, is_causal, scale=scale)
        log_sums = log_sums[..., : query.shape[-2]]
    else:
        out = sdpa_forward(query, key, value, is_causal, scale)
        log_sums = _scores(query, key, is_causal, scale).logsumexp(-1)
    return out, log_sums.reshape(query.shape[:-1])


def sdpa_backward_kept(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad: Tensor,
    out: Tensor,
    log_sums: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values from what `sdpa_forward_kept` returned."""
    aten, operands, chosen = torch.ops.aten, (query, key, value), _backend(query, key, value, is_causal, scale)
    sizes = (None, None, query.shape[-2], key.shape[-2])
    seed = torch.zeros(2, dtype=torch.int64, device=query.device)  # of a dropout that there is not
    if chosen == _CUDNN:
        backward, kept = aten._scaled_dot_product_cudnn_attention_backward.default, log_sums.unsqueeze(-1)
        return backward(grad, *operands, out, kept, seed, seed, None, *sizes, 0.0, is_causal, scale=scale)
    if chosen == _FLASH:
        backward = aten._scaled_dot_product_flash_attention_backward.default
        return backward(grad, *operands, out, log_sums, *sizes, 0.0, is_causal, seed, seed, scale=scale)
    if chosen == _EFFICIENT:
        backward = aten._scaled_dot_product_efficient_attention_backward.default
        rest = -log_sums.shape[-1] % _EFFICIENT_ROWS
        kept = torch.nn.functional.pad(log_sums, (0, rest), value=float("inf"))
        wanted = [True, True, True, False]  # and no mask's
        return backward(grad, *operands, None, out, kept, seed[0], seed[1], 0.0, wanted, is_causal, scale=scale)[:3]
    return _by_products(query, key, value, grad, is_causal, scale)


def sdpa_backward(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, after another forward pass."""
    kept = sdpa_forward_kept(query, key, value, is_causal, scale)
    return sdpa_backward_kept(query, key, value, grad, *kept, is_causal, scale)


def _backend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> int:
    """Return PyTorch's choice; -1 on a CPU."""
    if not query.is_cuda:
        return -1
    is_grouped = _is_grouped(query, key)
    return torch._fused_sdp_choice(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=is_grouped)


def _is_grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[-3] != key.shape[-3]


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float) -> Tensor:
    keys = key.float().repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query.float() @ keys.mT * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    n_groups = query.shape[-3] // key.shape[-3]
    q, k, v, g = (tensor.float() for tensor in (query, key, value, grad))
    k, v = (tensor.repeat_interleave(n_groups, -3) for tensor in (k, v))
    weights = _scores(query, key, is_causal, scale).softmax(-1)
    grad_weights = g @ v.mT
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True)) * scale
    of_heads = (grad_scores.mT @ q, weights.mT @ g)
    grad_key, grad_value = (found.unflatten(-3, (-1, n_groups)).sum(-3) for found in of_heads)
    return (grad_scores @ k).to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype)
