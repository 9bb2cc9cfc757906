"""Detect foreign kernels that are correct at their task's sizes alone, and state the contract that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.core.finding import Finding, Severity

NOT_GENERAL = "not-general"
"""The code of the finding that says so."""
MODULI = (4, 8, 16, 32, 2)
"""In the order in which they are tried: most kernels that need a multiple read vectors of four."""
Sizes = Mapping[str, int]


def contract_of(named: Sequence[Sizes], failed: Sequence[Sizes]) -> str:
    """Return a condition that all sizes of the task satisfy and none of the failed ones: ``D % 4 == 0``."""
    dims = [dim for dim in named[0] if any(sizes.get(dim) != named[0][dim] for sizes in failed)] if named else []
    for dim in reversed(dims):  # rows of a matrix seldom matter, its width does
        for modulus in MODULI:
            is_kept = all(sizes[dim] % modulus == 0 for sizes in named)
            if is_kept and all(sizes.get(dim, 0) % modulus for sizes in failed):
                return f"{dim} % {modulus} == 0"
    fixed = (f"{dim} == {named[0][dim]}" for dim in dims if len({sizes[dim] for sizes in named}) == 1)
    return " && ".join(fixed)


def not_general(named: Sequence[Sizes], failed: Sequence[Sizes], message: str) -> Finding:
    """Return the warning for a kernel that is correct at every size of its task and fails at another."""
    sizes = ", ".join(f"{dim}={size}" for dim, size in failed[0].items())
    contract = contract_of(named, failed)
    stated = f"; its contract should state `where: {contract}`" if contract else ""
    return Finding(
        code=NOT_GENERAL,
        severity=Severity.WARNING,
        source="verdict",
        message=f"correct for the task, not general: fails at {sizes}{stated} ({message})",
    )
