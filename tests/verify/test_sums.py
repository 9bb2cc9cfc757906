"""Sums that are exact in floating point only up to some size, the sizes beyond, and how much a long sum may be off."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.core.verdict import Built, CaseResult
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.oracle.judgement import _drift
from kernel_lsp.verify.probes.finder import finder_of
from kernel_lsp.verify.probes.sums import (
    _kept_bits,
    families_of_sums,
    has_inexact_places,
    has_one_long_sum,
    sizes_beyond_exact_sums,
)

IN_F32, IN_F64 = "cvt.rzi.s64.f32 %rd1, %f1", "cvt.rzi.s64.f64 %rd1, %fd1"


def ptx(*lines: str) -> str:
    body = "\n".join(f"    {line};" for line in lines)
    return f".visible .entry k()\n{{\n{body}\n}}\n"


def task(dtype: DType, within: tuple[int, int] | None, op: str = "aten.sum.dim_IntList") -> Task:
    x, out = TensorType(dtype=dtype, shape=("N", "D")), TensorType(dtype=DType.I64, shape=("N",))
    node = GraphNode(name="sum", op=op, arguments=({"node": "x"},), types=(out,))
    return Task(
        name="sums",
        target="model.py::sums",
        kind="function",
        source_file="model.py",
        source_line=1,
        symbols=(Symbol(name="N", captured=6, minimum=1), Symbol(name="D", captured=1000, minimum=1)),
        arguments=(TaskTensor(name="x", type=x, role="input", integer_range=within),),
        forward=Graph(
            inputs=("x",),
            input_types=(x,),
            nodes=(node,),
            outputs=(GraphOutput(name="out", node="sum", type=out),),
        ),
        reference_source="",
        configurations=(),
        torch_version="2",
    )


def sizes(of: Task, *lines: str, where: str = "") -> list[Sizes]:
    dtype = of.tensors[0].type.dtype
    text = (
        f"// kernel-lsp: 1\n// op: sums(x: {dtype}[N, D]) -> (out: i64[N])\n{where}// launch: k<<<N, 32>>>(x, out, D)\n"
    )
    kernel = f"__global__ void k(const {dtype.cuda_type}* x, long long* out, int D) {{}}"
    prepared = prepare(f"{text}\n{kernel}", of)
    assert isinstance(prepared, Prepared), prepared
    built = Built(architecture="sm_90", ptx=ptx(*lines), symbols={"k": "k"})
    return sizes_beyond_exact_sums(finder_of(prepared, "forward"), built)


WORDS = task(DType.I64, (0, 1 << 32))


def test_the_sum_is_just_too_long_for_the_type() -> None:
    (found,) = sizes(WORDS, IN_F64)
    total = found["D"] * ((1 << 32) - 1)
    assert found["N"] == 1
    assert 2**53 < total < 2**53 + 2**35
    assert int(float(total)) != total


def test_of_an_aligned_number_of_terms_the_sum_is_too_long_as_well() -> None:
    (found,) = sizes(WORDS, IN_F64, where="// where: D % 4 == 0\n")
    total = found["D"] * ((1 << 32) - 1)
    assert (found["D"] % 4, int(float(total)) != total) == (0, True)


def test_truth_values_are_counted_past_what_f32_holds() -> None:
    (found,) = sizes(task(DType.BOOL, None), IN_F32)
    assert found == {"N": 1, "D": 2**24 + 3}


@pytest.mark.parametrize(("op", "n_sizes"), [("aten.gt.Scalar", 1), ("aten.relu.default", 0)])
def test_floats_are_counted_past_what_f32_holds(op: str, n_sizes: int) -> None:
    of = task(DType.F32, None)
    dtype = DType.BOOL if op.startswith("aten.gt") else DType.F32
    made = GraphNode(
        name="made", op=op, arguments=({"node": "x"}, 0), types=(TensorType(dtype=dtype, shape=("N", "D")),)
    )
    total = of.forward.nodes[0].model_copy(update={"arguments": ({"node": "made"},)})
    counted = of.model_copy(update={"forward": of.forward.model_copy(update={"nodes": (made, total)})})
    assert sizes(counted, IN_F32) == [{"N": 1, "D": 2**24 + 3}] * n_sizes
    assert families_of_sums(counted.forward) == ("late_extremes", "negative")


@pytest.mark.parametrize(
    ("of", "lines", "where"),
    [
        (WORDS, (), ""),
        (WORDS, (IN_F64,), "// where: D <= 4096\n"),
        (task(DType.F32, None), (IN_F64,), ""),
        (task(DType.I64, (0, 9)), (IN_F64,), ""),
        (task(DType.I64, (0, 9), "aten.amax.default"), (IN_F32,), ""),
    ],
    ids=["no floats", "a contract", "floats that are added", "too many terms", "no sum"],
)
def test_no_long_sum_is_asked_for(of: Task, lines: tuple[str, ...], where: str) -> None:
    assert sizes(of, *lines, where=where) == []


@pytest.mark.parametrize(
    ("lines", "n_bits"),
    [
        ((IN_F64,), {53}),
        (("cvt.rni.s32.f32 %r1, %f1",), {24}),
        (("cvt.rzi.ftz.sat.u32.f32 %r1, %f1", IN_F64), {24, 53}),
        (("cvt.rn.f64.s64 %fd1, %rd1", "cvt.s64.s32 %rd1, %r1", "cvt.rni.f32.f32 %f1, %f2"), set()),
    ],
)
def test_integers_that_are_made_of_floats_have_so_many_bits(lines: tuple[str, ...], n_bits: set[int]) -> None:
    assert _kept_bits(read_ptx(ptx(*lines)).statements) == n_bits


PLACE = ("mov.u32 %r1, %ctaid.x", "mov.u32 %r2, %tid.x", "mad.lo.s32 %r3, %r1, 256, %r2", "cvt.rn.f32.s32 %f1, %r3")


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ((*PLACE, "div.rn.f32 %f2, %f1, %f9", "cvt.rzi.s32.f32 %r4, %f2"), True),
        ((*PLACE, "st.global.f32 [%rd1], %f1"), False),
        (("ld.global.f32 %f1, [%rd1]", "mul.f32 %f2, %f1, 0f42FE0000", "cvt.rni.s32.f32 %r4, %f2"), False),
        (("ld.global.b32 %r3, [%rd1]", "cvt.rn.f32.s32 %f1, %r3", "cvt.rzi.s32.f32 %r4, %f1"), False),
        ((*PLACE[:3], "rem.s32 %r4, %r3, %r9", "cvt.rn.f32.s32 %f1, %r4", "cvt.rmi.s32.f32 %r5, %f1"), False),
        ((*PLACE, "ld.param.b32 %r5, [k_param_2]", "mul.hi.u32 %r6, %r3, %r5"), True),
        ((*PLACE, "mul.hi.u32 %r6, %r3, -858993459"), False),
        (("ld.global.b32 %r3, [%rd1]", "ld.param.b32 %r5, [k_param_2]", "mul.hi.u32 %r6, %r3, %r5"), False),
    ],
    ids=[
        *("index", "a number of the place", "quantized data", "an integer of the data", "a coordinate"),
        *("half a product", "a division by a constant", "a product of data"),
    ],
)
def test_inexact_places_are_found(lines: tuple[str, ...], is_found: bool) -> None:
    body = "\n".join(f"    {line};" for line in lines)
    assert has_inexact_places(read_ptx(f".visible .entry k()\n{{\n{body}\n}}\n")) is is_found


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
