"""The plain attributes of a module that are constants in its captured graph."""

from __future__ import annotations

import math
from typing import Any

import torch

TOLD_BY_SHAPES = frozenset(
    "in_features out_features in_channels out_channels num_features num_channels num_embeddings embedding_dim "
    "normalized_shape affine elementwise_affine output_padding transposed training call_super_init "
    "dump_patches num_batches_tracked".split()
)
"""Attributes that the parameters' shapes determine, or that do not affect values."""


def module_settings(owner: Any, *, is_eval: bool = False) -> dict[str, Any]:
    """Return the settings by qualified name, e.g. ``{"norm.eps": 1e-06, "conv.stride": [2, 2]}``; empty for a function.
    With `is_eval` the rate of a dropout is left out: it affects nothing in eval mode."""
    if not isinstance(owner, torch.nn.Module):
        return {}
    settings: dict[str, Any] = {}
    for path, module in owner.named_modules():
        if is_eval and isinstance(module, torch.nn.modules.dropout._DropoutNd):
            continue
        for name, value in vars(module).items():
            if name.startswith("_") or name in TOLD_BY_SHAPES or not _is_plain(value):
                continue
            settings[f"{path}.{name}" if path else name] = list(value) if isinstance(value, tuple) else value
    return settings


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(type(entry) is int for entry in value)
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (int, bool, str)
