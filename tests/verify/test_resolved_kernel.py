"""At which sizes an operator computes."""

from __future__ import annotations

import pytest

from kernel_lsp.errors import PlanError
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from tests.verify.copies import TASK


def prepared(launch: str, where: str = "") -> Prepared:
    plan = f"// kernel-lsp: 1\n// op: copy(x: f32[B, D]) -> (out: f32[B, D])\n{where}// launch: {launch}\n"
    found = prepare(f"{plan}\n__global__ void k(const float* x, float* out, int n) {{}}\n", TASK)
    assert isinstance(found, Prepared), found
    return found


@pytest.mark.parametrize(
    ("sizes", "holds"),
    [((4, 8), True), ((65_535, 1), True), ((65_536, 1), False), ((300, 300), False), ((3, 8), False)],
)
def test_sizes_hold_inside_the_contract_as_far_as_grids_do(sizes: tuple[int, int], holds: bool) -> None:
    """Operators leave larger grids to PyTorch, and no plan needs to say so."""
    plan = prepared("k<<<dim3(1, B * D), 32>>>(x, out, B)", "// where: B > 3\n")
    assert plan.holds("forward", dict(zip(("B", "D"), sizes, strict=True))) is holds


def test_where_a_grid_cannot_be_told_the_plan_is_at_fault() -> None:
    plan = prepared("k<<<B // (D - 8), 32>>>(x, out, B)")
    assert plan.holds("forward", {"B": 4, "D": 8})
    for _ in range(2):
        with pytest.raises(PlanError, match="division by zero"):
            plan.bind("forward", {"B": 4, "D": 8})
