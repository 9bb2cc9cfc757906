"""Compute attention as kernels do that skip masked elements: the documented formula of
`torch.nn.functional.scaled_dot_product_attention`, with masked scores left out instead of lowered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..capture.program import Program

ATTENTION = "aten.scaled_dot_product_attention."
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def has_attention(program: Program) -> bool:
    """Check whether the code calls PyTorch's attention."""
    return any(str(node.target).startswith(ATTENTION) for node in program.functional.graph_module.graph.nodes)


@contextmanager
def attention_by_its_formula() -> Iterator[None]:
    """Have PyTorch compute attention by matrix products and a softmax. On a CPU its fused backward skips what a causal
    mask hides; on a GPU there is none in fp64."""
    is_fused = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(is_fused)


def attention_of_seen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    product: Product = torch.matmul,
) -> torch.Tensor:
    """Return [..., L, V] for query [..., L, E], key [..., S, E] and value [..., S, V]; NaN in every row that sees a
    non-finite value. Dropout is ignored: it has no reference. `product` multiplies queries and keys."""
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = product(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if is_causal:
        hidden = torch.ones_like(hidden).triu(1)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = hidden | ~attn_mask
    elif attn_mask is not None:
        scores, hidden = scores + attn_mask, hidden | (attn_mask == -math.inf)
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
    is_special = ~torch.isfinite(value)
    sees_special = (~hidden).to(value.dtype) @ is_special.to(value.dtype) > 0
    return (weights @ value.masked_fill(is_special, 0.0)).masked_fill(sees_special, math.nan)
