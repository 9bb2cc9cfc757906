"""Sizes of two dims at once are found by what a kernel's comparisons come to."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, GraphOutput, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.core.verdict import Built
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.probes.code_guided_sizes import compared_sizes
from kernel_lsp.verify.probes.finder import finder_of

KNOWN: list[Sizes] = [{"B": 64, "D": 256}, {"B": 7, "D": 5}, {"B": 37, "D": 4_099}, {"B": 1, "D": 70_001}]
PRODUCT = "mul.lo.s32 %r3, %r1, %r2"


def found(*lines: str, where: str = "") -> list[Sizes]:
    """For a kernel that takes B in `%r1` and D in `%r2`."""
    x = TensorType(dtype=DType.F32, shape=("B", "D"))
    task = Task(
        name="f",
        target="model.py::f",
        kind="function",
        source_file="model.py",
        source_line=1,
        symbols=(Symbol(name="B", captured=64, minimum=1), Symbol(name="D", captured=256, minimum=1)),
        arguments=(TaskTensor(name="x", type=x, role="input"),),
        forward=Graph(inputs=("x",), input_types=(x,), nodes=(), outputs=(GraphOutput(name="out", node="x", type=x),)),
        reference_source="",
        configurations=(),
        torch_version="2",
    )
    text = (
        f"// kernel-lsp: 1\n// op: f(x: f32[B, D]) -> (out: f32[B, D])\n{where}// launch: k<<<B, 32>>>(x, out, B, D)\n"
    )
    prepared = prepare(f"{text}__global__ void k(const float* x, float* out, int B, int D) {{}}", task)
    assert isinstance(prepared, Prepared), prepared
    loads = ("ld.param.b32 %r1, [k_param_2]", "ld.param.b32 %r2, [k_param_3]")
    body = "\n".join(f"    {line};" for line in (*loads, *lines, "ret"))
    built = Built(architecture="sm_90", ptx=f".visible .entry k()\n{{\n{body}\n}}\n", symbols={"k": "k"})
    return compared_sizes(finder_of(prepared, "forward"), built, KNOWN)


def test_a_product_of_two_dims_is_made_of_its_factors() -> None:
    sizes = found(PRODUCT, "setp.eq.s32 %p1, %r3, 12345")
    assert any(s["B"] * s["D"] == 12_345 and min(s.values()) > 1 for s in sizes)


def test_a_contract_is_kept() -> None:
    sizes = found(PRODUCT, "setp.eq.s32 %p1, %r3, 12345", where="// where: B % 5 == 0\n")
    assert any(s["B"] * s["D"] == 12_345 and s["B"] % 5 == 0 for s in sizes)


@pytest.mark.parametrize("second", ["eq.s32 %p2, %r2, 2469", "gt.s32 %p2, %r2, 2468"])
def test_two_comparisons_are_tried_together(second: str) -> None:
    sizes = found("setp.eq.s32 %p1, %r1, 5", f"setp.{second}")
    assert {"B": 5, "D": 2469} in sizes


@pytest.mark.parametrize(
    ("lines", "holds"),
    [
        (("setp.eq.s32 %p1, %r1, %r2", "setp.gt.s32 %p2, %r1, 70"), lambda b, d: b == d > 70),
        (("mul.lo.s32 %r3, %r1, 100", "setp.eq.s32 %p1, %r2, %r3"), lambda b, d: d == 100 * b),
        (("add.s32 %r3, %r1, %r2", "setp.eq.s32 %p1, %r3, 7777"), lambda b, d: b + d == 7_777),
        (
            ("mul.lo.s32 %r3, %r1, 31", "add.s32 %r4, %r3, %r2", "rem.s32 %r5, %r4, 1009", "setp.ne.s32 %p1, %r5, 500"),
            lambda b, d: (31 * b + d) % 1_009 == 500,
        ),
    ],
)
def test_sizes_are_found_at_which_two_sides_are_equal(lines: tuple[str, ...], holds: object) -> None:
    assert callable(holds)
    assert any(holds(sizes["B"], sizes["D"]) for sizes in found(*lines))


def test_an_unrolled_loop_asks_for_no_pairs() -> None:
    sizes = found(PRODUCT, "and.b32 %r4, %r3, 3", "setp.eq.s32 %p1, %r4, 0", "setp.lt.s32 %p2, %r1, 4")
    assert len(sizes) <= 2
