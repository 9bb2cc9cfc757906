"""Every launch has several blocks in a case that is watched for races, however much one of them takes."""

from __future__ import annotations

from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.probes.finder import finder_of
from kernel_lsp.verify.probes.sizes import several_blocks_sizes
from tests.verify.copies import prepared

WATCHED: list[Sizes] = [{"B": 7, "D": 5}, {"B": 3, "D": 1031}]
KNOWN: list[Sizes] = [*WATCHED, {"B": 6, "D": 1000}, {"B": 2, "D": 2001}]


def several(*directives: str) -> list[Sizes]:
    return several_blocks_sizes(finder_of(prepared(*directives), "forward"), WATCHED, KNOWN)


def test_a_block_of_thousands_of_elements_gets_neighbours() -> None:
    assert several("launch: k<<<ceil_div(D, 4096), 32>>>(x, out, D)") == [{"B": 7, "D": 8193}]


def test_so_it_does_where_rows_make_blocks_too() -> None:
    assert several("launch: k<<<B * ceil_div(D, 4096), 32>>>(x, out, D)") == [{"B": 7, "D": 8193}]


def test_nothing_is_missing_where_long_rows_take_several_blocks() -> None:
    assert several("launch: k<<<dim3(ceil_div(D, 256), B), 32>>>(x, out, D)") == []


def test_nothing_is_missing_where_the_grid_is_fixed() -> None:
    assert several("launch: k<<<64, 32>>>(x, out, D)") == []


def test_the_contract_is_kept() -> None:
    found = several("where: D % 250 == 0 or D < 2000", "launch: k<<<ceil_div(D, 4096), 32>>>(x, out, D)")
    assert [sizes["D"] for sizes in found] == [8500]


def test_two_dims_grow_together() -> None:
    found = several("launch: k<<<dim3(ceil_div(D, 1100), ceil_div(B, 8)), 32>>>(x, out, D)")
    assert found == [{"B": 17, "D": 2201}]


def test_two_dims_grow_one_by_one_where_together_is_too_much() -> None:
    found = several("launch: k<<<dim3(ceil_div(D, 2048), ceil_div(B, 16)), 32>>>(x, out, D)")
    assert found == [{"B": 33, "D": 5}, {"B": 7, "D": 4097}]


def test_a_variant_that_is_never_watched_is() -> None:
    grids = ("launch[D < 2000]: k<<<B, 32>>>(x, out, D)", "launch[D >= 2000]: k<true><<<B, 32>>>(x, out, D)")
    assert several(*grids) == [{"B": 2, "D": 2001}]


def test_what_would_be_large_is_left_out() -> None:
    assert several("launch: k<<<ceil_div(D, 100000), 32>>>(x, out, D)") == []
