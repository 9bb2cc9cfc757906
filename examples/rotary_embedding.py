"""Rotary position embedding: turns queries and keys by an angle that grows with their position, in LLaMA, GPT-NeoX
and most models since. Shapes come from the annotations (jaxtyping's syntax, which need not be installed to run this).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float32
    from torch import Tensor


def apply_rotary_embedding(
    q: Float32[Tensor, "batch=2 heads=8 seq=256 head_dim=64"],
    cos: Float32[Tensor, "seq=256 head_dim=64"],
    sin: Float32[Tensor, "seq=256 head_dim=64"],
) -> Float32[Tensor, "batch=2 heads=8 seq=256 head_dim=64"]:
    return q * cos + rotate_half(q) * sin


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
