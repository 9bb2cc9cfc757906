"""Check which far blocks are sampled."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kernel_lsp.core.plan import BoundLaunch
from kernel_lsp.verify.probes.far_sizes import FIRST_BIT, far_apart, spread
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
