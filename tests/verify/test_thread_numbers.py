"""Kernels that number the threads of their grid are told by their PTX."""

from __future__ import annotations

import pytest

from kernel_lsp.core.plan import BoundLaunch
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.probes.far_sizes import numbers_its_threads

BEGIN = ("mov.u32 %r1, %ctaid.x", "mov.u32 %r2, %ntid.x", "mov.u32 %r3, %tid.x")


def numbers(*lines: str, symbol: str = "k") -> bool:
    body = "\n".join(f"    {line};" for line in (*BEGIN, *lines))
    launch = BoundLaunch(kernel="k", grid=(8, 1, 1), block=(256, 1, 1), shared_bytes=0, arguments=())
    return numbers_its_threads(read_ptx(f".visible .entry k()\n{{\n{body}\n}}\n"), symbol, launch)


@pytest.mark.parametrize(
    "line",
    [
        "mad.lo.s32 %r4, %r1, %r2, %r3",
        "mul.lo.s32 %r4, %r2, %r1",
        "mad.lo.s32 %r4, %r1, 256, %r3",
        "shl.b32 %r4, %r1, 8",
    ],
)
def test_a_block_s_number_times_its_size_is_one(line: str) -> None:
    assert numbers(line)


@pytest.mark.parametrize(
    "line",
    [
        "mul.wide.u32 %rd1, %r1, %r2",
        "mul.lo.s32 %r4, %r1, %r9",
        "shl.b32 %r4, %r1, 3",
        "mul.lo.s32 %r4, %r3, %r2",
        "add.s32 %r4, %r1, %r3",
    ],
)
def test_a_row_s_number_or_one_of_64_bits_is_none(line: str) -> None:
    assert not numbers(line)


def test_only_the_kernel_itself_is_read() -> None:
    assert not numbers("mul.lo.s32 %r4, %r1, %r2", symbol="other")
