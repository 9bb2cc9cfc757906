"""Sums so long that how they are added up shows: where the task has one, and what it may be off."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, TensorType
from kernel_lsp.core.verdict import CaseResult
from kernel_lsp.verify.oracle.judgement import _drift
from kernel_lsp.verify.probes.sums import has_one_long_sum

MILLION = {"N": 1 << 20}


def graph(*steps: tuple[str, tuple[str, ...]]) -> Graph:
    """Each step of the one before; the first of `x`."""
    nodes = [
        GraphNode(
            name=f"n{i}",
            op=op,
            arguments=({"node": f"n{i - 1}" if i else "x"},),
            types=(TensorType(dtype=DType.F32, shape=shape),),
        )
        for i, (op, shape) in enumerate(steps)
    ]
    x = TensorType(dtype=DType.F32, shape=("N",))
    return Graph(
        inputs=("x",),
        input_types=(x,),
        nodes=tuple(nodes),
        outputs=(GraphOutput(name="out", node=nodes[-1].name, type=nodes[-1].types[0]),),
    )


@pytest.mark.parametrize(
    ("steps", "is_long"),
    [
        ((("aten.sum.default", ()),), True),
        ((("aten.sigmoid.default", ("N",)), ("aten.mean.default", ())), True),
        ((("aten.sum.dim_IntList", ("N // 1024",)),), False),
        ((("aten.amax.default", ()),), False),
        ((("aten.mean.default", ()), ("aten.sub.Tensor", ("N",)), ("aten.sum.default", ())), False),
        ((("aten.relu.default", ("N",)),), False),
    ],
    ids=["a sum", "of a function", "of rows", "a maximum", "of distances from the mean", "no sum"],
)
def test_one_long_sum_is_found(steps: tuple[tuple[str, tuple[str, ...]], ...], is_long: bool) -> None:
    assert has_one_long_sum(graph(*steps), MILLION) is is_long
    assert not has_one_long_sum(graph(*steps), {"N": 1 << 16})


def drift(n: int) -> float:
    case = CaseResult(
        operation="forward", family="constant_rows", shapes={"x": (n,)}, n_blocks=1, n_blocks_run=1, errors=()
    )
    return _drift("constant_rows", case, BoundTensor(name="out", dtype=DType.F32, shape=(), role="output"), False)


def test_a_sum_of_equal_terms_may_drift_as_far_as_a_lane_of_one_warp_does() -> None:
    assert drift(4096) == pytest.approx(4096 * 2.0**-25)
    assert drift(1 << 20) == drift(1 << 15) < 1e-3
