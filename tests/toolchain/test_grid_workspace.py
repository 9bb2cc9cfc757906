"""The barrier of a grid may use the driver's memory; nothing else may, and nothing of it may be learnt."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity.device_state import functions_with_only_a_grid_barrier
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx

ADDRESS = """
mov.u32 %r64, %envreg2;
cvt.u64.u32 %rd19, %r64;
mov.u32 %r65, %envreg1;
cvt.u64.u32 %rd20, %r65;
bfi.b64 %rd9, %rd20, %rd19, 32, 32;
setp.ne.s64 %p21, %rd9, 0;
@%p21 bra $L__BB0_18;
trap;
$L__BB0_18:
add.s64 %rd21, %rd9, 4;
"""
ARRIVE = "atom.add.release.gpu.u32 %r70,[%rd21],%r71;\n"
LOOK = "ld.acquire.gpu.u32 %r83,[%rd21];\n"
WAIT = "xor.b32 %r84, %r83, %r70;\nsetp.gt.s32 %p24, %r84, -1;\n@%p24 bra $L__BB0_18;\n"


def check(body: str, *, is_allowed: bool) -> None:
    ptx = f".visible .entry k(.param .u64 k_param_0)\n{{\n{body}ret;\n}}\n"
    assert ("k" in functions_with_only_a_grid_barrier(read_ptx(ptx))) is is_allowed


def test_the_barrier_of_cooperative_groups_is_allowed() -> None:
    check(ADDRESS + ARRIVE + LOOK + WAIT, is_allowed=True)


def test_the_barrier_with_its_offset_in_the_operand_is_allowed() -> None:
    check(ADDRESS + ARRIVE.replace("%rd21", "%rd9+4") + LOOK.replace("%rd21", "%rd9+4") + WAIT, is_allowed=True)


@pytest.mark.parametrize(
    "more",
    [
        "st.global.u32 [%rd1], %r65;",
        "st.global.u64 [%rd1], %rd9;",
        "st.u32 [%rd9+8], %r1;",
        "st.u32 [%rd21], %r1;",
        "red.add.u32 [%rd21], %r1;",
        "st.global.u32 [%rd1], %r83;",
        "setp.eq.s32 %p3, %r83, 7;",
        "setp.eq.s32 %p3, %r83, 0;",
        "and.b32 %r90, %r83, 7;",
        "xor.b32 %r90, %r83, 7;",
        "xor.b32 %r90, %r83, %r83;",
        "mov.u32 %r83, 7;",
        "ld.acquire.gpu.u32 %r91,[%rd9];",
        "ld.acquire.gpu.u32 %r91,[%rd21+4];",
        "ld.u32 %r91,[%rd21];",
        "add.s64 %rd30, %rd9, 8;",
        "add.s64 %rd30, %rd21, 4;",
        "add.s64 %rd30, %rd9, %rd2;",
        "bfi.b64 %rd31, %rd20, %rd2, 32, 32;",
        "st.param.b64 [param0], %rd9;",
        "atom.exch.b32 %r92,[%rd21],%r1;",
        "ld.acquire.gpu.u8 %r91,[%rd21];",
        "ld.acquire.gpu.u64 %rd91,[%rd21];",
        "mov.b32 {%rs1, %rs2}, %r83;",
        "mov.b64 %rd40, {%r83, %r70};",
        "call.uni (retval0), f, (%rd9);",
    ],
)
def test_anything_else_that_comes_of_the_workspace_is_refused(more: str) -> None:
    check(ADDRESS + ARRIVE + LOOK + WAIT + more + "\n", is_allowed=False)
