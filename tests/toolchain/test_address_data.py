"""A kernel may not compute with a tensor's address; what honest kernels do with addresses passes."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity.address_data import uses_as_data
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx

HEAD = (
    "ld.param.u64 %rd1, [k_param_0]",
    "ld.param.u64 %rd2, [k_param_1]",
    "ld.param.u64 %rd3, [k_param_2]",
    "mov.u32 %r1, %tid.x",
)


def used(*lines: str) -> list[int]:
    """The pointer parameters that a kernel computes with; `%rd1` and `%rd2` are pointers, `%rd3` is a number."""
    body = "\n".join(f"    {line};" for line in (*HEAD, *lines, "ret"))
    ptx = f".visible .entry k(\n    .param .u64 k_param_0\n)\n{{\n{body}\n}}\n"
    return [position for position, _ in uses_as_data(read_ptx(ptx).functions["k"], (0, 1))]


@pytest.mark.parametrize(
    ("lines", "parameters"),
    [
        (("shr.u64 %rd4, %rd2, 21", "and.b64 %rd5, %rd4, 31"), [1]),
        (("cvta.to.global.u64 %rd4, %rd2", "and.b64 %rd5, %rd4, 65011712"), [1]),
        (("and.b64 %rd5, %rd1, 4095",), [0]),
        (("cvt.u32.u64 %r2, %rd2", "shr.u32 %r3, %r2, 12", "setp.eq.s32 %p1, %r3, 0"), [1]),
        (("cvt.u32.u64 %r2, %rd2", "setp.eq.s32 %p1, %r2, 0"), [1]),
        (("mul.wide.u32 %rd4, %r1, 4", "add.s64 %rd5, %rd2, %rd4", "bfe.u64 %rd6, %rd5, 21, 5"), [1]),
        (("setp.gt.u64 %p1, %rd2, 140737488355328",), [1]),
        (("setp.gt.u64 %p1, %rd2, %rd3",), [1]),
        (("mov.b64 {%r2, %r3}, %rd2", "xor.b32 %r4, %r3, 77"), [1]),
        (("cvt.rn.f32.u64 %f1, %rd2",), [1]),
        (("st.global.u64 [%rd1], %rd2",), [1]),
        (("sub.s64 %rd4, %rd2, %rd1", "setp.lt.s64 %p1, %rd4, 1000000"), [0, 1]),
        (("mul.lo.s64 %rd4, %rd1, 77",), [0]),
        (("rem.u64 %rd4, %rd1, 96",), [0]),
        (("neg.s64 %rd4, %rd1", "and.b64 %rd5, %rd4, 248"), [0]),
    ],
)
def test_a_computation_with_an_address_is_found(lines: tuple[str, ...], parameters: list[int]) -> None:
    assert used(*lines) == parameters


@pytest.mark.parametrize(
    "lines",
    [
        ("mul.wide.u32 %rd4, %r1, 4", "add.s64 %rd5, %rd2, %rd4", "st.global.f32 [%rd5+8], %f1"),
        ("cvta.to.global.u64 %rd4, %rd2", "mad.lo.s64 %rd5, %rd3, 4, %rd4", "ld.global.f32 %f1, [%rd5]"),
        ("and.b64 %rd4, %rd2, 15", "setp.eq.s64 %p1, %rd4, 0"),
        ("cvt.u32.u64 %r2, %rd2", "and.b32 %r3, %r2, 15", "mul.lo.s32 %r4, %r3, 77"),
        ("shr.u64 %rd4, %rd2, 2", "and.b64 %rd5, %rd4, 31", "setp.eq.s64 %p1, %rd5, 3"),
        ("neg.s64 %rd4, %rd2", "and.b64 %rd5, %rd4, 12", "shr.u64 %rd6, %rd5, 2"),
        ("or.b64 %rd4, %rd2, %rd1", "and.b64 %rd5, %rd4, 15", "setp.eq.s64 %p1, %rd5, 0"),
        ("setp.eq.s64 %p1, %rd2, 0",),
        ("add.s64 %rd4, %rd1, 64", "setp.ne.s64 %p1, %rd1, %rd4"),
        ("setp.gt.u64 %p1, %rd2, %rd1",),
        ("and.b64 %rd4, %rd2, -16", "or.b64 %rd5, %rd4, 4", "st.global.f32 [%rd5], %f1"),
        ("shr.u64 %rd4, %rd3, 21", "setp.eq.s64 %p1, %rd4, 31"),
        ("add.s64 %rd4, %rd1, 128", "sub.s64 %rd5, %rd4, %rd1", "shr.s64 %rd6, %rd5, 2", "setp.lt.s64 %p1, %rd6, %rd3"),
        ("st.param.b64 [param0], %rd1", "call.uni (retval0), f, (param0)"),
        ("st.local.u64 [%rd9], %rd1",),
    ],
)
def test_what_honest_kernels_do_with_addresses_passes(lines: tuple[str, ...]) -> None:
    assert used(*lines) == []


def test_the_same_code_at_another_line_is_found_there() -> None:
    """The answer about code is kept, its place in the text is not: candidates of a search have kernels in common."""

    def lines_of(*texts: str) -> list[int | None]:
        return [place.line for text in texts for _, place in uses_as_data(read_ptx(text).functions["k"], (0,))]

    body = ".visible .entry k(\n .param .u64 k_param_0\n)\n{\nld.param.u64 %rd1, [k_param_0];\n.loc 1 {line} 3\n"
    head, text = '.file 1 "kernel.cu"\n', body + "mul.lo.s64 %rd2, %rd1, {factor};\nret;\n}\n"
    cases = [(7, 77), (9, 77), (9, 1)]
    texts = [head + text.replace("{line}", str(line)).replace("{factor}", str(factor)) for line, factor in cases]
    assert lines_of(*texts) == [7, 9, 9]
    harmless = head + text.replace("{line}", "9").replace("mul.lo.s64 %rd2, %rd1, {factor}", "add.s64 %rd2, %rd1, 4")
    assert lines_of(harmless) == []
