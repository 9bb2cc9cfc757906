"""Where a plan's grid stops growing far away."""

from __future__ import annotations

import pytest

from kernel_lsp.evaluate.capped_grids import MAX_ELEMENTS, beyond_limits
from tests.evaluate.test_pointed_sizes import KNOWN, prepared


def sizes_beyond(grid: str, *directives: str) -> dict[str, int] | None:
    found = beyond_limits(prepared(f"launch: k<<<{grid}, 32>>>(x, out, D)", *directives), "forward", KNOWN)
    return None if found is None else found.dims


def test_twice_of_where_the_grid_is_at_its_limit_is_looked_at() -> None:
    found = sizes_beyond("min(ceil_div(B * D, 256), 65535)")
    assert found is not None
    assert 2 * 65_535 * 256 <= found["B"] * found["D"] <= MAX_ELEMENTS // 2


@pytest.mark.parametrize(
    ("grid", "directives"),
    [
        ("ceil_div(B * D, 256)", ()),
        ("min(B * D, 5999)", ()),
        ("min(ceil_div(B * D, 256), 65535)", ("where: B * D <= 16776960",)),
        ("min(ceil_div(B * D, 256), 65535)", ("scratch: s: f32[B]", "launch: k<<<1, 32>>>(x, s, D)")),
        ("min(ceil_div(B * D, 1024), 1073741824)", ()),
    ],
    ids=["no limit", "known sizes pass it", "excluded", "several launches", "out of reach"],
)
def test_nothing_is_looked_at(grid: str, directives: tuple[str, ...]) -> None:
    assert sizes_beyond(grid, *directives) is None
