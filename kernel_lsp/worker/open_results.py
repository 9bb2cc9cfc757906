"""Elements of results that several numbers are right for: where they are, and how they are marked in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def undecided(
    expected: Sequence[torch.Tensor], others: Iterable[Sequence[torch.Tensor]], *, among_floats: bool
) -> list[torch.Tensor]:
    """For each result where it is no NaN, and another one in one of the `others`; floating ones are decided, or looked
    at, too."""
    where = [torch.zeros_like(one, dtype=torch.bool) for one in expected]
    for results in others:
        where = [
            w | (~torch.isnan(e) & (e != r)) if among_floats or not e.is_floating_point() else w
            for w, e, r in zip(where, expected, results)
        ]
    return where


def left_open(results: Sequence[torch.Tensor], where: Sequence[torch.Tensor], infinity: float) -> list[torch.Tensor]:
    """The results with what any number stands for where they are undecided: NaN among integers, and among others this
    infinity, of which the reference and PyTorch's own result have different ones. Unchanged without a `where`."""
    if not where:
        return list(results)
    return [
        (r if r.is_floating_point() else r.double()).masked_fill(
            w.to(r.device), infinity if r.is_floating_point() else float("nan")
        )
        if bool(w.any())
        else r
        for r, w in zip(results, where)
    ]
