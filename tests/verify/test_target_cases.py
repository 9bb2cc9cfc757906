"""Cases by what a task computes: numbers that it rounds, and indices that it takes or returns."""

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
    rounding_cases,
    rounds,
)

KNOWN: list[Sizes] = [{"N": 5}, {"N": 1031}, {"N": 300}]
BELOW_A_HALF = 0.5 - 2.0**-25
ODD = 2.0**24 - 1.0


def step(op: str, *more: Any, dtype: DType = DType.F32, **keywords: Any) -> tuple[str, tuple[Any, ...], DType, Any]:
    return f"aten.{op}", more, dtype, keywords


def to(dtype: DType) -> tuple[str, tuple[Any, ...], DType, Any]:
    return step("_to_copy.default", dtype=dtype, to={"dtype": dtype.value})


def task(*steps: tuple[str, tuple[Any, ...], DType, Any], dtype: DType = DType.F32) -> Task:
    """One step after the other, from `x`."""
    nodes = [
        GraphNode(
            name=f"n{nth}",
            op=op,
            arguments=({"node": f"n{nth - 1}" if nth else "x"}, *more),
            keywords=keywords,
            types=(TensorType(dtype=made, shape=("N",)),),
        )
        for nth, (op, more, made, keywords) in enumerate(steps)
    ]
    taken = TensorType(dtype=dtype, shape=("N",))
    return Task(
        name="f",
        target="model.py::f",
        kind="function",
        source_file="model.py",
        source_line=1,
        symbols=(Symbol(name="N", captured=300, minimum=1),),
        arguments=(TaskTensor(name="x", type=taken, role="input"),),
        forward=Graph(
            inputs=("x",),
            input_types=(taken,),
            nodes=tuple(nodes),
            outputs=(GraphOutput(name="out", node=nodes[-1].name, type=nodes[-1].types[0]),),
        ),
        reference_source="",
        configurations=(),
        torch_version="2",
    )


ROUND, LIMITED = step("round.default"), step("clamp.default", -128, 127)
I8, I32, I64 = to(DType.I8), to(DType.I32), to(DType.I64)


def values_of(*steps: tuple[str, tuple[Any, ...], DType, Any], dtype: DType = DType.F32) -> list[set[float]]:
    return [set(case.values) for case in rounding_cases(task(*steps, dtype=dtype), "forward", KNOWN)]


def test_a_code_that_rounds_nothing_has_no_such_case() -> None:
    assert values_of(step("relu.default")) == []
    assert not rounds(task(step("relu.default"), to(DType.F16)).forward)
    assert rounds(task(I32).forward)


def test_a_rounded_input_has_the_neighbours_of_halves_and_a_converted_one_odd_numbers_too() -> None:
    (near,) = values_of(ROUND)
    assert {BELOW_A_HALF, -BELOW_A_HALF, 0.5, 1.5, -2.5} <= near
    near, odd = values_of(step("clamp.default", -1e9, 1e9), step("view.default", [-1]), I32)
    assert BELOW_A_HALF in near
    assert {ODD, -ODD, 2.0**22 + 1.0, 2.0**22 + 0.5} <= odd


def test_the_cases_are_the_smallest_that_have_room() -> None:
    near, odd = rounding_cases(task(I32), "forward", KNOWN)
    assert (near.sizes, odd.sizes) == ((("N", 300),), (("N", 300),))
    assert rounding_cases(task(I32), "forward", KNOWN[:1])[0].sizes == (("N", 5),)
    assert rounding_cases(task(I32), "backward", KNOWN) == []


def test_a_step_that_is_a_power_of_two_moves_them_along() -> None:
    (near,) = values_of(step("div.Tensor", 0.0625), ROUND)
    assert BELOW_A_HALF / 16 in near
    near, odd = values_of(step("mul.Tensor", 4.0), I64)
    assert (BELOW_A_HALF / 4 in near, ODD / 4 in odd) == (True, True)


@pytest.mark.parametrize(
    "before",
    [step("mul.Tensor", 0.1), step("add.Tensor", 0.5), step("sin.default"), step("mul.Tensor", {"node": "x"})],
    ids=["many digits", "a sum", "a function", "another tensor"],
)
def test_what_is_moved_before_it_is_rounded_has_none(before: tuple[str, tuple[Any, ...], DType, Any]) -> None:
    assert values_of(before, ROUND) == []


def test_what_the_integers_do_not_hold_is_left_out_unless_the_code_limits_it() -> None:
    (near,) = values_of(I8)
    assert max(near) < 127
    _, odd = values_of(LIMITED, I8)
    assert ODD in odd
    assert len(values_of(ROUND, LIMITED, I8)) == 2
    (near,) = values_of(to(DType.U8))
    assert near


def test_a_narrow_type_has_odd_numbers_of_its_own() -> None:
    _, odd = values_of(I32, dtype=DType.BF16)
    assert max(odd) == 255.0
    assert all(float(number).is_integer() or abs(number) < 128 for number in odd)
    _, odd = values_of(I64, dtype=DType.F64)
    assert max(odd) == 2.0**53 - 1.0


X, PLACE = TensorType(dtype=DType.F32, shape=("N", "D")), TensorType(dtype=DType.I64, shape=("N",))
IN_F32, IN_U16 = "cvt.rzi.s64.f32 %rd1, %f1", "cvt.u16.u32 %rs1, %r1"


def indexing_task(op: str, *arguments: Any, n_results: int = 1) -> Task:
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
    assert check(indexing_task("aten.relu.default")) == []
    assert check(indexing_task("aten.max.default")) == []


def test_ties_are_along_the_dim_that_places_are_told_along() -> None:
    ((family, sizes), (late, far)) = check(indexing_task("aten.argmax.default", -1))
    assert (family, sizes, late, far) == (TIED_ROWS, {"D": 1031, "N": 19}, LATE_EXTREMES, {"D": 70_001, "N": 1})
    ((family, sizes), (_, far)) = check(indexing_task("aten.max.dim", 0, n_results=2))
    assert (family, sizes, far) == (TIED_COLUMNS, {"D": 19, "N": 1031}, {"D": 1, "N": 70_001})


def test_places_of_all_elements_are_along_all_dims() -> None:
    ((_, sizes), (_, far)) = check(indexing_task("aten.argmin.default"))
    assert (sizes, far) == ({"D": 33, "N": 33}, {"D": 265, "N": 265})


def test_what_wide_sizes_have_anyway_is_not_run_twice() -> None:
    assert len(check(indexing_task("aten.argmax.default", -1), wide=[{"N": 1, "D": 70_001}])) == 1


def test_a_table_is_longer_than_16_bits_count_and_inside_the_contract() -> None:
    assert check(indexing_task("aten.embedding.default", {"node": "ids"}), divisor=4) == [
        (LATE_EXTREMES, {"D": 12, "N": 70_004})
    ]
    assert check(indexing_task("aten.index.Tensor", [None, {"node": "ids"}])) == [
        (LATE_EXTREMES, {"D": 70_001, "N": 9})
    ]


@pytest.mark.parametrize(("line", "n_cases"), [(IN_F32, 1), (IN_U16, 0)])
def test_places_beyond_24_bits_are_for_kernels_that_make_integers_of_floats(line: str, n_cases: int) -> None:
    of = indexing_task("aten.argmax.default", -1)
    text = (
        "// kernel-lsp: 1\n// op: places(x: f32[N, D]) -> (out: i64[N])\n// launch: k<<<N, 32>>>(x, out, D)\n"
        "__global__ void k(const float* x, long long* out, int D) {}"
    )
    prepared = prepare(text, of)
    assert isinstance(prepared, Prepared), prepared
    built = Built(architecture="sm_90", ptx=f".visible .entry k()\n{{\n    {line};\n}}\n", symbols={"k": "k"})
    found = told(list(cases_beyond_exact_indices(finder_of(prepared, "forward"), built)))
    assert found == [(LATE_EXTREMES, {"D": (1 << 24) + (1 << 20) + 1, "N": 1})] * n_cases
