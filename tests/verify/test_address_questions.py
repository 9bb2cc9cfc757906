"""What a kernel asks of a tensor's address beyond where its elements are is seen in its PTX."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import BoundLaunch, ScalarArgument, TensorArgument
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.code_facts.address_dependence import asks_for_an_address

LAUNCH = BoundLaunch(
    kernel="k",
    grid=(1, 1, 1),
    block=(128, 1, 1),
    shared_bytes=0,
    arguments=(
        TensorArgument(tensor="x"),
        TensorArgument(tensor="out"),
        ScalarArgument(cuda_type="long long", value=5),
    ),
)
HEAD = (
    "ld.param.u64 %rd1, [k_param_0]",
    "ld.param.u64 %rd2, [k_param_1]",
    "ld.param.u64 %rd3, [k_param_2]",
    "mov.u32 %r1, %tid.x",
)


def asks(*lines: str) -> bool:
    """Of a kernel with the addresses of two tensors in `%rd1` and `%rd2`, and an integer in `%rd3`."""
    body = "\n".join(f"    {line};" for line in (*HEAD, *lines, "ret"))
    ptx = f".visible .entry k(\n    .param .u64 k_param_0\n)\n{{\n{body}\n}}\n"
    return asks_for_an_address(read_ptx(ptx, "").statements, "k", LAUNCH)


@pytest.mark.parametrize(
    "lines",
    [
        ("shr.u64 %rd4, %rd2, 21", "and.b64 %rd5, %rd4, 31", "setp.eq.s64 %p1, %rd5, 31"),
        ("cvta.to.global.u64 %rd4, %rd2", "and.b64 %rd5, %rd4, 65011712"),
        ("cvt.u32.u64 %r2, %rd2", "shr.u32 %r3, %r2, 12"),
        ("mul.wide.u32 %rd4, %r1, 4", "add.s64 %rd5, %rd2, %rd4", "bfe.u64 %rd6, %rd5, 21, 5"),
        ("setp.gt.u64 %p1, %rd2, 140737488355328",),
        ("setp.gt.u64 %p1, %rd2, %rd3",),
        ("mov.b64 {%r2, %r3}, %rd2", "xor.b32 %r4, %r3, 77"),
        ("cvt.rn.f32.u64 %f1, %rd2",),
        ("st.global.u64 [%rd1], %rd2",),
    ],
)
def test_bits_of_an_address_are_asked_for(lines: tuple[str, ...]) -> None:
    assert asks(*lines)


@pytest.mark.parametrize(
    "lines",
    [
        ("mul.wide.u32 %rd4, %r1, 4", "add.s64 %rd5, %rd2, %rd4", "st.global.f32 [%rd5+8], %f1"),
        ("cvta.to.global.u64 %rd4, %rd2", "mad.lo.s64 %rd5, %rd3, 4, %rd4", "ld.global.f32 %f1, [%rd5]"),
        ("and.b64 %rd4, %rd2, 15", "setp.eq.s64 %p1, %rd4, 0"),
        ("cvt.u32.u64 %r2, %rd2", "and.b32 %r3, %r2, 15", "shr.u32 %r4, %r3, 2"),
        ("or.b64 %rd4, %rd2, %rd1", "and.b64 %rd5, %rd4, 15", "setp.eq.s64 %p1, %rd5, 0"),
        ("setp.eq.s64 %p1, %rd2, 0",),
        ("add.s64 %rd4, %rd1, 64", "setp.ne.s64 %p1, %rd1, %rd4"),
        ("and.b64 %rd4, %rd2, -16", "or.b64 %rd5, %rd4, 4", "st.global.f32 [%rd5], %f1"),
        ("shr.u64 %rd4, %rd3, 21", "setp.eq.s64 %p1, %rd4, 31"),
    ],
)
def test_what_every_kernel_does_with_addresses_is_no_question(lines: tuple[str, ...]) -> None:
    assert not asks(*lines)
