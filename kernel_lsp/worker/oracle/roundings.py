"""How far PyTorch itself is off: what the budget of a kernel's error is made of."""

from __future__ import annotations

from typing import Any

import torch


def rounding(expected: torch.Tensor, native: torch.Tensor, perturbed: torch.Tensor | None) -> dict[str, Any]:
    """Distances of PyTorch's result, and of the reference on moved inputs, from the fp64 reference. Only elements that
    are finite in both results count, and for the size of the reference those that PyTorch has NaN for; the fields are
    those of `kernel_lsp.process.worker_client.Rounding`."""
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
    """Whether the rounding says all there is to know of PyTorch's result: floating, and finite throughout."""
    if not native.is_floating_point():
        return False
    return is_finite(expected) and is_finite(native)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are. A sum, which is finite for almost all that are, reads them once."""
    if not tensor.is_floating_point():
        return True
    return bool(torch.isfinite(tensor.sum(dtype=torch.float64))) or bool(torch.isfinite(tensor).all())


def _distance(values: torch.Tensor, reference: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """|values - reference| where both are finite, 0 elsewhere."""
    return torch.where(finite & torch.isfinite(values), (values - reference).abs(), 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
