"""Find unspecified elements of results, for which more than one value is correct."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def undecided(
    expected: Sequence[torch.Tensor], others: Iterable[Sequence[torch.Tensor]], *, among_floats: bool
) -> list[torch.Tensor]:
    """Return for each result the mask of non-NaN elements that differ in one of the `others`. Floating results are
    included only with `among_floats`."""
    where = [torch.zeros_like(one, dtype=torch.bool) for one in expected]
    for results in others:
        where = [
            w | (~torch.isnan(e) & (e != r)) if among_floats or not e.is_floating_point() else w
            for w, e, r in zip(where, expected, results)
        ]
    return where
