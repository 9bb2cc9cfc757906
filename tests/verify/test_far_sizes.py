"""Sizes of millions of elements are for candidates that give reason to."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from kernel_lsp.core.verdict import Built
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.probes.finder import finder_of
from kernel_lsp.verify.probes.sizes import far_sizes
from kernel_lsp.verify.probes.sums import sizes_beyond_narrow_places
from tests.verify.kernels import task_of

TASK = task_of("B", "D", captured={"B": 64, "D": 256})
KNOWN: list[Sizes] = [{"B": 64, "D": 256}, {"B": 1, "D": 70_001}]


def prepared(grid: str = "B", where: str = "") -> Prepared:
    lines = ("kernel-lsp: 1", "op: f(x: f32[B, D]) -> (out: f32[B, D])", *([f"where: {where}"] if where else []))
    plan = "".join(f"// {line}\n" for line in (*lines, f"launch: k<<<{grid}, 64>>>(x, out, D)"))
    found = prepare(f"{plan}__global__ void k(const float* x, float* out, int D) {{}}", TASK)
    assert isinstance(found, Prepared), found
    return found


def n_elements(found: list[Sizes]) -> list[int]:
    return [math.prod(sizes.values()) for sizes in found]


def nothing(_: Sizes) -> set[tuple[object, ...]]:
    return set()


def above(limit: int) -> Callable[[Sizes], set[tuple[object, ...]]]:
    return lambda sizes: {(math.prod(sizes.values()) > limit,)}


def test_without_a_reason_there_are_none() -> None:
    assert far_sizes(finder_of(prepared(), "forward"), frozenset(), nothing, KNOWN) == []
    assert far_sizes(finder_of(prepared(), "forward"), frozenset(), above(50_000), KNOWN) == []


def test_a_number_in_the_text_is_passed_by_its_elements() -> None:
    (found,) = n_elements(far_sizes(finder_of(prepared(), "forward"), frozenset((3_000_000, 1 << 31)), nothing, KNOWN))
    assert 3_000_000 < found < 3_200_000


def test_a_comparison_that_comes_out_far_away_is_found() -> None:
    (found,) = n_elements(far_sizes(finder_of(prepared(), "forward"), frozenset(), above(20_000_000), KNOWN))
    assert 20_000_000 < found < 40_000_000


def test_a_contract_is_kept() -> None:
    small = prepared(where="B * D <= 1000000")
    assert far_sizes(finder_of(small, "forward"), frozenset((3_000_000,)), above(20_000_000), KNOWN) == []


@pytest.mark.parametrize(
    ("line", "grid", "n_rows"),
    [
        ("cvt.u16.u32 %rs1, %r1", "B", [70_001]),
        ("and.b32 %r2, %r1, 65535", "B", [70_001]),
        ("and.b32 %r2, %r1, 1023", "B", []),
        ("cvt.u16.u32 %rs1, %r9", "B", []),
    ],
)
def test_more_blocks_than_16_bits_count_are_for_kernels_that_keep_them_in_so_many(
    line: str, grid: str, n_rows: list[int]
) -> None:
    lines = ("mov.u32 %r1, %ctaid.x", "mov.u32 %r9, %tid.x", line)
    body = "\n".join(f"    {one};" for one in lines)
    built = Built(architecture="sm_90", ptx=f".visible .entry k()\n{{\n{body}\n}}\n", symbols={"k": "k"})
    found = sizes_beyond_narrow_places(finder_of(prepared(grid), "forward"), built)
    assert [sizes["B"] for sizes in found] == n_rows
