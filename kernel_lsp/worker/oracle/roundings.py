"""Measure PyTorch's own error, the basis of a kernel's tolerance."""

from __future__ import annotations

from typing import Any

import torch


def rounding(expected: torch.Tensor, native: torch.Tensor, perturbed: torch.Tensor | None) -> dict[str, Any]:
    """Return the distances of PyTorch's result, and of the reference on perturbed inputs, from the fp64 reference. Only
    elements that are finite in both results count; the reference's norm also includes those for which PyTorch has NaN.
    The fields are those of `kernel_lsp.process.worker_client.Rounding`."""
    reference, values = expected.double(), native.double()
    moved = reference if perturbed is None else perturbed.double()
    if all(map(is_finite, (reference, values, moved))):
        n_known, kept = reference.numel(), reference
        off, response = (values - reference).abs(), (moved - reference).abs()
    else:
        known = torch.isfinite(reference) & ~torch.isinf(values)
        finite, kept = known & torch.isfinite(values), torch.where(known, reference, 0.0)
        n_known, off, response = int(known.sum()), _distance(values, kept, finite), _distance(moved, kept, finite)
    return {
        "n_finite": n_known,
        "reference_l2": float(kept.norm()),
        "native_l2": float(off.norm()),
        "native_max": _largest(off),
        "response_l2": float(response.norm()),
        "response_max": _largest(response),
    }


def is_plain(expected: torch.Tensor, native: torch.Tensor) -> bool:
    """Check whether the rounding describes PyTorch's result completely: floating, and finite throughout."""
    if not native.is_floating_point():
        return False
    return is_finite(expected) and is_finite(native)


def is_finite(tensor: torch.Tensor) -> bool:
    """Check whether all elements are finite. The sum, which is finite for almost all such tensors, reads them once."""
    if not tensor.is_floating_point():
        return True
    return bool(torch.isfinite(tensor.sum(dtype=torch.float64))) or bool(torch.isfinite(tensor).all())


def _distance(values: torch.Tensor, reference: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Return |values - reference| where both are finite, 0 elsewhere."""
    return torch.where(finite & torch.isfinite(values), (values - reference).abs(), 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
