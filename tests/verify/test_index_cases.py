"""Tasks that tell places, or are given some, are asked beyond 16 bits, and with equal elements."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.core.verdict import Built
from kernel_lsp.verify.model.cases import LATE_EXTREMES, Case, Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.probes.finder import Finder, finder_of
from kernel_lsp.verify.probes.target_cases import (
    TIED_COLUMNS,
    TIED_ROWS,
    cases_beyond_exact_indices,
    index_cases,
)

X, PLACE = TensorType(dtype=DType.F32, shape=("N", "D")), TensorType(dtype=DType.I64, shape=("N",))
IN_F32, IN_U16 = "cvt.rzi.s64.f32 %rd1, %f1", "cvt.u16.u32 %rs1, %r1"


def task(op: str, *arguments: Any, n_results: int = 1) -> Task:
    types = (PLACE,) if n_results == 1 else (X, PLACE)
    node = GraphNode(name="found", op=op, arguments=({"node": "x"}, *arguments), types=types)
    return Task(
        name="places",
        target="model.py::places",
        kind="function",
        source_file="model.py",
        source_line=1,
        symbols=(Symbol(name="N", captured=6, minimum=1), Symbol(name="D", captured=1000, minimum=1)),
        arguments=(TaskTensor(name="x", type=X, role="input"),),
        forward=Graph(
            inputs=("x",),
            input_types=(X,),
            nodes=(node,),
            outputs=(GraphOutput(name="out", node="found", type=types[-1]),),
        ),
        reference_source="",
        configurations=(),
        torch_version="2",
    )


def told(cases: list[Case]) -> list[tuple[str, Sizes]]:
    return [(case.family, dict(case.sizes)) for case in cases]


def check(of: Task, wide: list[Sizes] | None = None, divisor: int = 1) -> list[tuple[str, Sizes]]:
    return told(index_cases(Finder(of, "forward", lambda sizes: sizes["D"] % divisor == 0), wide or []))


def test_a_task_that_tells_no_places_has_no_such_case() -> None:
    assert check(task("aten.relu.default")) == []
    assert check(task("aten.max.default")) == []


def test_ties_are_along_the_dim_that_places_are_told_along() -> None:
    ((family, sizes), (late, far)) = check(task("aten.argmax.default", -1))
    assert (family, sizes, late, far) == (TIED_ROWS, {"D": 1031, "N": 19}, LATE_EXTREMES, {"D": 70_001, "N": 1})
    ((family, sizes), (_, far)) = check(task("aten.max.dim", 0, n_results=2))
    assert (family, sizes, far) == (TIED_COLUMNS, {"D": 19, "N": 1031}, {"D": 1, "N": 70_001})


def test_places_of_all_elements_are_along_all_dims() -> None:
    ((_, sizes), (_, far)) = check(task("aten.argmin.default"))
    assert (sizes, far) == ({"D": 33, "N": 33}, {"D": 265, "N": 265})


def test_what_wide_sizes_have_anyway_is_not_run_twice() -> None:
    assert len(check(task("aten.argmax.default", -1), wide=[{"N": 1, "D": 70_001}])) == 1


def test_a_table_is_longer_than_16_bits_count_and_inside_the_contract() -> None:
    assert check(task("aten.embedding.default", {"node": "ids"}), divisor=4) == [
        (LATE_EXTREMES, {"D": 12, "N": 70_004})
    ]
    assert check(task("aten.index.Tensor", [None, {"node": "ids"}])) == [(LATE_EXTREMES, {"D": 70_001, "N": 9})]


@pytest.mark.parametrize(("line", "n_cases"), [(IN_F32, 1), (IN_U16, 0)])
def test_places_beyond_24_bits_are_for_kernels_that_make_integers_of_floats(line: str, n_cases: int) -> None:
    of = task("aten.argmax.default", -1)
    text = (
        "// kernel-lsp: 1\n// op: places(x: f32[N, D]) -> (out: i64[N])\n// launch: k<<<N, 32>>>(x, out, D)\n"
        "__global__ void k(const float* x, long long* out, int D) {}"
    )
    prepared = prepare(text, of)
    assert isinstance(prepared, Prepared), prepared
    built = Built(architecture="sm_90", ptx=f".visible .entry k()\n{{\n    {line};\n}}\n", symbols={"k": "k"})
    found = told(list(cases_beyond_exact_indices(finder_of(prepared, "forward"), built)))
    assert found == [(LATE_EXTREMES, {"D": (1 << 24) + (1 << 20) + 1, "N": 1})] * n_cases
