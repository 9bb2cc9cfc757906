"""Check that what a kernel decides by its arguments alone is read from PTX and computed without running it."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import BoundLaunch, ScalarArgument
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.probes.launch_uniform import GridConditions


def conditions(*lines: str) -> GridConditions:
    """Return the conditions of a kernel that takes one int, in `%r1`."""
    body = "\n".join(f"    {line};" for line in ("ld.param.b32 %r1, [k_param_0]", *lines, "ret"))
    ptx = f".visible .entry k(\n    .param .u32 k_param_0\n)\n{{\n{body}\n}}\n"
    return GridConditions(read_ptx(ptx).functions["k"])


def outcome(found: GridConditions, number: float, grid: int = 1, cuda_type: str = "int") -> list[bool]:
    launch = BoundLaunch(
        kernel="k",
        grid=(grid, 1, 1),
        block=(128, 1, 1),
        shared_bytes=0,
        arguments=(ScalarArgument(cuda_type=cuda_type, value=number),),
    )
    return [side for _, sides in found.outcomes(launch) for side in sides]


def test_a_comparison_with_a_number_comes_out_by_the_argument() -> None:
    found = conditions("setp.eq.s32 %p1, %r1, 777")
    assert [outcome(found, n) for n in (776, 777)] == [[False], [True]]
    assert 777 in found.numbers


@pytest.mark.parametrize(
    ("lines", "true_at", "false_at"),
    [
        (("shl.b32 %r2, %r1, 1", "setp.eq.s32 %p1, %r2, 1554"), 777, 1554),
        (("xor.b32 %r2, %r1, 777", "setp.eq.s32 %p1, %r2, 0"), 777, 0),
        (("and.b32 %r2, %r1, 1023", "setp.eq.s32 %p1, %r2, 0"), 2048, 2047),
        (("and.b32 %r2, %r1, 017", "setp.eq.s32 %p1, %r2, 0"), 16, 15),
        (("rem.s32 %r2, %r1, 768", "setp.eq.s32 %p1, %r2, 0"), 1536, 1537),
        (("add.s32 %r2, %r1, -1500", "setp.lt.u32 %p1, %r2, 100"), 1599, 1499),
        (("cvt.s64.s32 %rd1, %r1", "setp.gt.s64 %p1, %rd1, -1"), 0, -1),
        (("mul.wide.s32 %rd1, %r1, 65536", "setp.gt.s64 %p1, %rd1, 4294967295"), 65536, 65535),
        (("mul.hi.u32 %r2, %r1, -1431655765", "shr.u32 %r3, %r2, 9", "setp.eq.s32 %p1, %r3, 1"), 768, 767),
        (("min.s32 %r2, %r1, 512",), 511, 513),
        (("mov.u32 %r2, %nctaid.x", "setp.lt.s32 %p1, %r1, %r2"), 39, 41),
    ],
)
def test_arithmetic_in_front_of_it_is_followed(lines: tuple[str, ...], true_at: int, false_at: int) -> None:
    found = conditions(*lines)
    assert outcome(found, true_at, grid=40) == [True]
    assert outcome(found, false_at, grid=40) == [False]


def test_two_thresholds_of_one_value_are_one_outcome() -> None:
    found = conditions("setp.ge.s32 %p1, %r1, 100", "setp.lt.s32 %p2, %r1, 200")
    assert len({tuple(outcome(found, n)) for n in (50, 150, 250)}) == 3


@pytest.mark.parametrize(
    "lines",
    [
        ("mov.u32 %r2, %tid.x", "setp.lt.s32 %p1, %r2, %r1"),
        ("setp.eq.f32 %p1, %f1, 0f42280000",),
        ("ld.global.b32 %r2, [%rd1]", "setp.eq.s32 %p1, %r2, 7"),
        ("mov.b32 %r2, 0", "add.s32 %r2, %r2, 1", "setp.lt.s32 %p1, %r2, %r1"),
        ("setp.eq.s32 %p1, %r1, 7", "@%p1 mov.b32 %r2, 1", "setp.eq.s32 %p2, %r2, 1"),
    ],
    ids=["thread", "float", "data", "loop", "guarded"],
)
def test_what_threads_or_data_decide_is_none(lines: tuple[str, ...]) -> None:
    assert len(outcome(conditions(*lines), 7)) == sum("%r1, 7" in line for line in lines)


def test_a_float_is_no_size() -> None:
    assert outcome(conditions("setp.eq.s32 %p1, %r1, 2"), 2.0, cuda_type="float") == []


@pytest.mark.parametrize(
    ("lines", "is_one"),
    [
        (("mov.u32 %r2, %ctaid.x", "setp.eq.s32 %p1, %r2, 11"), True),
        (("mov.u32 %r2, %ctaid.x", "add.s32 %r3, %r1, 4", "setp.ne.s32 %p1, %r3, %r2"), True),
        (("mov.u32 %r2, %ctaid.x", "setp.eq.s32 %p1, %r2, 0"), False),
        (
            ("mov.u32 %r2, %ctaid.x", "mov.u32 %r3, %nctaid.x", "add.s32 %r4, %r3, -1", "setp.eq.s32 %p1, %r2, %r4"),
            False,
        ),
        (("mov.u32 %r2, %ctaid.x", "setp.eq.s32 %p1, %r2, 99"), False),
        (("mov.u32 %r2, %ctaid.x", "setp.lt.s32 %p1, %r2, 11"), False),
    ],
    ids=["a number", "an argument", "first", "last", "beyond the grid", "an order"],
)
def test_a_block_in_the_middle_that_is_singled_out_is_told(lines: tuple[str, ...], is_one: bool) -> None:
    launch = BoundLaunch(
        kernel="k",
        grid=(40, 1, 1),
        block=(128, 1, 1),
        shared_bytes=0,
        arguments=(ScalarArgument(cuda_type="int", value=7),),
    )
    assert conditions(*lines).singles_out_a_block(launch) is is_one
