"""Numbers that a kernel compares data with are read from PTX."""

from __future__ import annotations

import struct

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.task import Graph, GraphNode
from kernel_lsp.core.verdict import Built
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.probes.mined_constants import BESIDE, compared_constants, sizes_with_room
from kernel_lsp.verify.probes.table import flushes


def values(*lines: str) -> tuple[float, ...]:
    body = "\n".join(f"    {line};" for line in lines)
    return compared_constants(_built(body), Graph(inputs=(), input_types=(), nodes=(), outputs=()))


def _built(body: str) -> Built:
    return Built(architecture="sm_90", ptx=f".visible .entry k()\n{{\n{body}\n}}\n", symbols={"k": "k"})


@pytest.mark.parametrize(
    ("op", "number", "is_asked"),
    [
        ("aten.eq.Scalar", -999.25, True),
        ("aten.clamp.default", 7, True),
        ("aten.mul.Tensor", 7.0, False),
        ("aten.gt.Scalar", 0, False),
        ("aten.lt.Scalar", True, False),
    ],
)
def test_a_target_s_own_numbers_are_asked_for_whatever_the_kernel_does(op: str, number: float, is_asked: bool) -> None:
    node = GraphNode(name="y", op=op, arguments=({"node": "x"}, number), keywords={}, types=(None,))
    target = Graph(inputs=(), input_types=(), nodes=(node,), outputs=())
    found = compared_constants(_built("mov.u32 %r1, %tid.x;"), target)
    assert found == ((number, -number, number * BESIDE, -number * BESIDE) if is_asked else ())


@pytest.mark.parametrize(
    "line",
    [
        "setp.eq.f32 %p1, %f1, 0f42280000",
        "setp.gt.f64 %p1, %fd1, 0d4045000000000000",
        "min.f32 %f2, %f1, 0f42280000",
    ],
)
def test_a_number_comes_with_its_negative_and_what_is_beyond_it(line: str) -> None:
    assert values(line) == (42.0, -42.0, 42.328125, -42.328125)


@pytest.mark.parametrize(
    "line",
    [
        "setp.gt.f32 %p1, %f1, 0f00000000",
        "setp.lt.f32 %p1, %f1, 0fBF800000",
        "setp.eq.f32 %p1, %f1, 0f7F800000",
        "setp.eq.f32 %p1, %f1, 0f7149F2CA",
        "fma.rn.f32 %f2, %f1, 0f42280000, %f3",
        "setp.eq.s32 %p1, %r1, 777",
        "setp.lt.s32 %p1, %r1, 800167",
    ],
    ids=["zero", "one", "infinity", "huge", "no comparison", "a length", "an order of integers"],
)
def test_most_comparisons_say_nothing_of_values(line: str) -> None:
    assert values(line) == ()


def test_bits_that_data_is_compared_with_are_numbers_with_these_bits() -> None:
    found = values("setp.ne.s32 %p1, %r2, 800167")
    assert 800167 in {int.from_bytes(struct.pack(">f", value), "big") & 0xFFFFF for value in found}
    assert 42.0 in values("setp.eq.s32 %p1, %r2, 1109917696")


def test_a_table_of_numbers_is_looked_at_in_part() -> None:
    assert len(values(*(f"setp.eq.f32 %p1, %f1, 0f42{n:02X}0000" for n in range(64)))) <= 32


def test_the_smallest_sizes_with_room_are_taken() -> None:
    def entry(n: int) -> tuple[Case, BoundOperation]:
        tensor = BoundTensor(name="x", dtype=DType.F32, shape=(n,), role="input")
        operation = BoundOperation(name="f", dims={"N": n}, tensors=(tensor,), steps=())
        return Case("forward", (("N", n),), "normal", 0, "forward"), operation

    assert sizes_with_room([entry(4096), entry(5), entry(70)], 32) == {"N": 70}
    assert sizes_with_room([entry(5), entry(7)], 32) == {"N": 7}


@pytest.mark.parametrize(
    ("opcode", "is_flushed"),
    [
        ("atom.global.add.f32", True),
        ("red.add.f32", True),
        ("red.relaxed.gpu.global.add.f32", True),
        ("red.global.add.v4.f32", True),
        ("atom.shared.add.f32", False),
        ("atom.global.add.u32", False),
        ("red.global.add.f64", False),
    ],
)
def test_only_sums_of_f32_in_global_memory_lose_subnormal_numbers(opcode: str, is_flushed: bool) -> None:
    ptx = f".visible .entry k()\n{{\n    {opcode} [%rd1], %f1;\n}}\n"
    assert flushes(Built(architecture="sm_90", ptx=ptx, symbols={"k": "k"})) is is_flushed
