"""At which sizes an operator computes."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import GraphNode, Task, TensorType
from kernel_lsp.errors import PlanError
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from tests.verify.copies import TASK


def prepared(launch: str, where: str = "", task: Task = TASK) -> Prepared:
    plan = f"// kernel-lsp: 1\n// op: copy(x: f32[B, D]) -> (out: f32[B, D])\n{where}// launch: {launch}\n"
    found = prepare(f"{plan}\n__global__ void k(const float* x, float* out, int n) {{}}\n", task)
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


def test_scratch_may_be_several_times_the_largest_tensor_that_pytorch_computes() -> None:
    """The backward of an attention of 2,600 positions stores five matrices of all pairs: 1.4 GB beside 9 MB."""
    pairs = GraphNode(
        name="n", op="aten.bmm.default", arguments=(), types=(TensorType(dtype=DType.F32, shape=("B", "D", "D")),)
    )
    forward = TASK.forward.model_copy(update={"nodes": (pairs,)})
    sizes = {"B": 10, "D": 2_600}
    few, many = ("// scratch: s: f32[5, B, D, D]\n", "// scratch: s: f32[17, B, D, D]\n")
    launch = "k<<<B, 32>>>(x, out, B)"
    with_pairs = TASK.model_copy(update={"forward": forward})
    assert prepared(launch, few, with_pairs).bind("forward", sizes).scratch
    for where, task in ((few, TASK), (many, with_pairs)):
        with pytest.raises(PlanError, match=r"bytes of scratch beside tensors of 208,000 bytes, and .* are allowed"):
            prepared(launch, where, task).bind("forward", sizes)
