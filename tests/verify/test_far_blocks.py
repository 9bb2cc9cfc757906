"""Sizes of millions of elements: which far blocks are sampled, which dims are vast, and what is gross there."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kernel_lsp.core.plan import BoundLaunch
from kernel_lsp.core.verdict import CaseResult, Mismatch, TensorError
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.probes.far_sizes import (
    FIRST_BIT,
    LONG_ROW,
    MANY_ROWS,
    far_apart,
    is_gross,
    numbers_its_threads,
    spread,
    vast_sizes_of_one,
)
from kernel_lsp.verify.probes.finder import FARTHEST, finder_of
from kernel_lsp.verify.probes.sizes import farthest_operations
from tests.verify.copies import KNOWN, prepared

LAUNCH = "launch: k<<<ceil_div(B * D, 256), 256>>>(x, out, D)"


def farthest(*directives: str) -> list[dict[str, int]]:
    found = farthest_operations(finder_of(prepared(*directives), "forward"), KNOWN)
    return [bound.dims for bound in (next(ladder, None) for ladder in found) if bound is not None]


def test_each_dim_and_both_go_as_far_as_there_is_room() -> None:
    for dims in farthest(LAUNCH):
        assert FARTHEST.elements // 8 < 2 * dims["B"] * dims["D"] <= FARTHEST.elements
    assert [(dims["B"] > 1e6, dims["D"] > 1e6) for dims in farthest(LAUNCH)] == [(1, 0), (0, 1), (0, 0)]


def test_a_ladder_comes_nearer_and_ends_where_everything_is_computed() -> None:
    ladder = [
        bound.dims["B"] for bound in next(iter(farthest_operations(finder_of(prepared(LAUNCH), "forward"), KNOWN)))
    ]
    assert len(ladder) > 1
    assert all(near == far // 16 for far, near in pairwise(ladder))


def test_the_contract_and_a_grid_s_limits_bound_it() -> None:
    assert max(dims["B"] for dims in farthest(LAUNCH, "where: B <= 5000")) <= 5000
    assert max(dims["B"] for dims in farthest("launch: k<<<dim3(1, B), 256>>>(x, out, D)")) <= 65_535


def test_nothing_is_far_in_a_small_contract() -> None:
    assert farthest(LAUNCH, "where: B < 12 and D < 2000") == []


@pytest.mark.parametrize("n_blocks", [1, 11, 12, 13, 1000, 1 << 28])
def test_blocks_are_spread_over_the_grid(n_blocks: int) -> None:
    blocks = spread(n_blocks, 12, seed=3)
    assert blocks == sorted(set(blocks))
    assert (blocks[0], blocks[-1], len(blocks)) == (0, n_blocks - 1, min(12, n_blocks))


def test_blocks_a_power_of_two_apart_are_paired_with_others_along_each_dim() -> None:
    launch = BoundLaunch(kernel="k", grid=(70_000, 40_000, 3), block=(32, 1, 1), shared_bytes=0, arguments=())
    (x, others), (y, _) = far_apart(launch)
    assert x == [1, 1 + (1 << FIRST_BIT), 1 + (1 << 16)]
    assert y == [70_000, 70_000 * (1 + (1 << FIRST_BIT))]
    assert not {(b - others[0]) % (1 << FIRST_BIT) for b in others[1:]} & {0}


def test_a_small_grid_has_no_blocks_far_apart() -> None:
    launch = BoundLaunch(kernel="k", grid=(30_000, 1, 1), block=(32, 1, 1), shared_bytes=0, arguments=())
    assert list(far_apart(launch)) == []


VAST_LAUNCH = "launch: k<<<B, 256>>>(x, out, D)"


def vast(*directives: str, known: list[dict[str, int]] = KNOWN) -> list[dict[str, int]]:
    return list(vast_sizes_of_one(finder_of(prepared(VAST_LAUNCH, *directives), "forward"), known))


def mismatch(relative: float, found: float | None = 1.0) -> Mismatch:
    error = TensorError(
        output="out",
        relative_l2=relative,
        relative_l2_budget=1e-6,
        max_error=1.0,
        max_error_budget=1e-6,
        n_wrong=1,
        n_elements=4,
        found=found,
    )
    failed = CaseResult(
        operation="copy", family="late_extremes", shapes={}, n_blocks=1, n_blocks_run=1, errors=(error,)
    )
    return Mismatch(message="", failed=failed)


def test_rows_are_many_and_then_long() -> None:
    assert vast() == [{"B": MANY_ROWS, "D": 3}, {"B": 1, "D": LONG_ROW}]


def test_the_contract_is_kept() -> None:
    assert vast("where: D % 4 == 0 and B <= 100") == [{"B": 2, "D": LONG_ROW + 1}]
    assert vast("where: B <= 100 and D <= 100000") == []


def test_what_is_large_anyway_is_not_made_so_again() -> None:
    assert vast(known=[{"B": 100_000, "D": 7}]) == [{"B": 1, "D": LONG_ROW}]


@pytest.mark.parametrize(
    ("wrong", "is_one"),
    [(mismatch(1e-3), False), (mismatch(0.2), True), (mismatch(float("nan")), True), (mismatch(0.0, None), True)],
    ids=["roundings", "a fifth", "not a number", "never written"],
)
def test_what_is_left_out_is_more_than_roundings(wrong: Mismatch, is_one: bool) -> None:
    assert is_gross(wrong) is is_one


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
