"""A wait may sleep longer, the longer it has waited; nothing else may come of a clock."""

from __future__ import annotations

import pytest

from kernel_lsp.toolchain.integrity.device_state import functions_that_only_pace_waits
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx

WAIT = """.version 9.0
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    mov.u64 %rd1, %globaltimer;
    mov.u32 %r5, 0;
$AGAIN:
    {
    .reg .pred p;
    mbarrier.try_wait.shared.b64 p, [%r8], %rd8;
    selp.b32 %r1, 1, 0, p;
    }
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra $DONE;
    mov.u64 %rd2, %globaltimer;
    sub.s64 %rd3, %rd2, %rd1;
    setp.lt.s64 %p2, %rd3, 4000;
    @%p2 bra $SHORT;
    mov.u32 %r2, 1000000;
    nanosleep.u32 %r2;
    bra.uni $AGAIN;
$SHORT:
    shr.u64 %rd4, %rd3, 2;
    cvt.u32.u64 %r3, %rd4;
    nanosleep.u32 %r3;
    bra.uni $AGAIN;
$DONE:
    st.global.u32 [%rd7], %r5;
    ret;
}
"""


def paces(ptx: str) -> bool:
    return functions_that_only_pace_waits(read_ptx(ptx)) == {"k"}


def test_a_wait_that_sleeps_longer_the_longer_it_waits_is_one() -> None:
    assert paces(WAIT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[%rd7], %r5", "[%rd7], %rd3"),
        ("[%rd7], %r5", "[%rd7+%rd3], %r5"),
        ("st.global.u32 [%rd7], %r5;", "@%p2 st.global.u32 [%rd7], %r5;"),
        ("st.global.u32 [%rd7], %r5;", "selp.u32 %r5, 1, 0, %p2; st.global.u32 [%rd7], %r5;"),
        ("st.global.u32 [%rd7], %r5;", "@%p2 mov.u32 %r5, 1; st.global.u32 [%rd7], %r5;"),
        ("nanosleep.u32 %r2;", "add.u32 %r5, %r5, 1;"),
        ("mov.u32 %r2, 1000000;", "mov.u32 %r5, 1000000; mov.u32 %r2, %r5;"),
        ("nanosleep.u32 %r3;\n    bra.uni $AGAIN;", "nanosleep.u32 %r3;\n    bra.uni $DONE;"),
        ("shr.u64 %rd4, %rd3, 2;", "st.shared.u64 [%r8], %rd3;"),
        ("shr.u64 %rd4, %rd3, 2;", "st.param.b64 [param0], %rd3;"),
        ("shr.u64 %rd4, %rd3, 2;", "@%p2 ret;"),
        ("shr.u64 %rd4, %rd3, 2;", "bar.sync 0;"),
        ("shr.u64 %rd4, %rd3, 2;", "ld.global.u64 %rd4, [%rd3];"),
        ("@%p2 bra $SHORT;", "@%p2 bra $ELSEWHERE;"),
        ("@%p2 bra $SHORT;", "brx.idx %rd3, table;"),
        ("setp.ne.s32 %p1, %r1, 0;", "setp.ne.s64 %p1, %rd3, 0;\n    mov.u32 %r5, 7;"),
    ],
)
def test_what_lets_time_into_anything_else_is_none(old: str, new: str) -> None:
    assert old in WAIT
    assert not paces(WAIT.replace(old, new))


def test_a_function_without_a_clock_paces_nothing() -> None:
    assert not paces(WAIT.replace("%globaltimer", "%rd8"))


def test_a_wait_that_counts_its_turns_by_the_clock_is_none() -> None:
    """Loop as often as the clock says."""
    turning = WAIT.replace("@%p1 bra $DONE;", "add.u32 %r5, %r5, 1;").replace("@%p2 bra $SHORT;", "@!%p2 bra $DONE;")
    assert not paces(turning)
