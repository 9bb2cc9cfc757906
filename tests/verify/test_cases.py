"""Sizes are small, varied, inside the contract, and include what the task itself names."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Configuration, Task
from kernel_lsp.verify.cpu.cpu_device import WATCHED_ORDER
from kernel_lsp.verify.model.cases import (
    LATE_EXTREMES,
    Sizes,
    captured_sizes,
    configured_sizes,
)
from kernel_lsp.verify.probes.finder import REDUCED, Finder
from kernel_lsp.verify.probes.probed_kernel import families_of, proposed
from kernel_lsp.verify.probes.sizes import captured_rows, least_sizes, many_rows, reduced_sizes, vast_sizes, wide_sizes
from kernel_lsp.verify.probes.table import TABLE, equal_integers
from tests.verify.kernels import kernel_of, task_of


def check(task: Task, divisor: int = 1) -> list[Sizes]:
    def holds(sizes: Sizes) -> bool:
        return all(size % divisor == 0 for size in sizes.values())

    found = reduced_sizes(Finder(task, "forward", holds))
    assert all(holds(sizes) for sizes in found)
    assert len({tuple(sizes.items()) for sizes in found}) == len(found)
    return found


def test_small_sizes_have_primes_powers_and_neighbours_of_powers() -> None:
    found = check(task_of("B", "D"))
    assert {7, 9, 4} <= {sizes["B"] for sizes in found}


def test_sizes_stay_inside_a_contract_of_divisibility() -> None:
    assert len(check(task_of("B", "D"), divisor=4)) >= 2


def test_sizes_respect_the_minimum_of_a_symbol() -> None:
    assert all(size >= 40 for sizes in check(task_of("B", "D", minimum=40)) for size in sizes.values())


def test_a_task_without_symbols_has_the_captured_sizes_only() -> None:
    assert check(task_of("8", "16")) == []


def test_large_fixed_dims_leave_only_small_others() -> None:
    for sizes in check(task_of("B", "T", "65536")):
        assert sizes["B"] * sizes["T"] * 65536 * 2 <= max(REDUCED.elements, 512 * 512 * 65536 * 2)


def test_a_screen_is_one_small_case() -> None:
    task = task_of("B", "D")
    given, case = proposed(TABLE, kernel_of(task), "screen")
    assert (given.is_captured, case.is_captured) == (True, False)


def test_a_full_check_has_the_captured_sizes_the_small_ones_and_every_family() -> None:
    task = task_of("B", "D")
    cases = proposed(TABLE, kernel_of(task), "plan")
    assert cases[0].is_captured
    assert cases[0].family == "given"
    assert {"normal", "small_integers", "special_nan", "large", "one_hot"} <= {case.family for case in cases}
    assert {case.thread_order for case in cases} == {"forward", "reverse", "random"}


def test_families_that_break_gradients_are_left_to_the_forward() -> None:
    families = {kind: {family.name for family in families_of(kind)} for kind in ("forward", "backward")}
    of_the_forward = {"huge", "tiny", "offset", "minute", "minus_inf_rows", "lowest_rows"}
    of_the_forward |= {"far_negative", "subnormal", "low", "highest_rows"}
    assert of_the_forward == families["forward"] - families["backward"]
    assert families["backward"] - families["forward"] == {"sparse_gradients"}


def test_sizes_that_a_contract_holds_leave_the_others_free() -> None:
    """A table of 512 rows, beside a batch and a length that may be any."""
    task = task_of("B", "V", "T")

    def holds(sizes: Sizes) -> bool:
        return sizes["V"] == 512

    freedom = Finder(task, "forward", holds).freedom
    assert freedom.held == {"V": 512}
    assert max(sizes["T"] for sizes in wide_sizes(Finder(task, "forward", holds))) > 500
    assert {"B": 7, "V": 512, "T": 3} in reduced_sizes(Finder(task, "forward", holds))


def test_sizes_that_only_change_together_do() -> None:
    task = task_of("B", "T", "S")

    def holds(sizes: Sizes) -> bool:
        return sizes["T"] == sizes["S"]

    freedom = Finder(task, "forward", holds).freedom
    assert (freedom.held, freedom.tied) == ({}, {"T": "T", "S": "T"})
    assert max(sizes["T"] for sizes in wide_sizes(Finder(task, "forward", holds))) > 500


@pytest.mark.parametrize("dims", [("B", "D"), ("B", "T", "D")])
def test_a_few_rows_are_as_long_as_captured(dims: tuple[str, ...]) -> None:
    task = task_of(*dims)
    sizes = captured_rows(Finder(task, "forward", lambda sizes: True))
    assert sizes is not None
    assert sizes["D"] == captured_sizes(task)["D"]
    assert all(sizes[name] <= 3 for name in dims[:-1])


def test_there_are_many_rows_where_the_contract_allows_them() -> None:
    task = task_of("B", "D")
    reduced = reduced_sizes(Finder(task, "forward", lambda sizes: True))
    sizes = many_rows(Finder(task, "forward", lambda sizes: True), reduced)
    assert sizes is not None
    assert sizes["B"] == 63
    assert many_rows(Finder(task, "forward", lambda sizes: sizes["B"] < 20), reduced) is None


def test_rows_stay_inside_the_contract() -> None:
    assert captured_rows(Finder(task_of("B", "D"), "forward", lambda sizes: sizes["B"] == 2)) == {"B": 2, "D": 512}
    assert captured_rows(Finder(task_of("B", "D"), "forward", lambda sizes: sizes["B"] > 99)) is None


def test_variants_are_looked_at_where_they_are_cheapest() -> None:
    task = task_of("B", "D")
    sizes = [{"B": n, "D": 64} for n in (1 << 20, 9, 7, 5, 3, 1)]
    chosen = kernel_of(task).cheapest(sizes)
    assert [each["B"] for each in chosen] == [1, 3, 5, 7]
    cases = kernel_of(task).variants(chosen)
    assert {(dict(case.sizes)["B"], case.family) for case in cases} >= {(1, "large"), (7, "special_nan")}


def test_one_of_everything_is_asked_for() -> None:
    task = task_of("B", "D")
    assert least_sizes(Finder(task, "forward", lambda _: True)) == {"B": 1, "D": 1}
    assert least_sizes(Finder(task, "forward", lambda sizes: sizes["D"] % 4 == 0)) == {"B": 4, "D": 4}


@pytest.mark.parametrize("dims", [("N",), ("B", "D"), ("B", "T", "D")])
def test_each_dim_lacks_one_of_a_whole_number_of_tiles(dims: tuple[str, ...]) -> None:
    assert all(any(sizes[dim] % 256 == 255 for sizes in wide(dims)) for dim in dims)


def test_a_case_of_several_blocks_is_watched_for_races() -> None:
    for task in (task_of("N"), task_of("B", "D")):
        cases = proposed(TABLE, kernel_of(task), "plan")
        watched = [math.prod(dict(case.sizes).values()) for case in cases if case.thread_order == WATCHED_ORDER]
        assert max(watched) > 1024


def test_families_of_whole_rows_are_given_at_long_rows() -> None:
    task = task_of("B", "D")
    cases = proposed(TABLE, kernel_of(task), "plan")
    long = {case.family for case in cases if dict(case.sizes)["D"] > 1024}
    assert {"one_hot", "needles", "zeros", "special_nan"} <= long


def test_a_contract_of_odd_multiples_is_met_by_multiples_of_the_captured_sizes() -> None:
    task = task_of("B", "D")
    found = reduced_sizes(Finder(task, "forward", lambda sizes: sizes["B"] % 512 == 0 and sizes["D"] % 512 == 0))
    assert all(any(sizes[name] != 512 for sizes in found) for name in ("B", "D"))


def test_a_contract_of_one_product_is_met_by_other_shares_of_it() -> None:
    found = reduced_sizes(Finder(task_of("B", "D"), "forward", lambda sizes: sizes["B"] * sizes["D"] == 1 << 18))
    assert {"B": 1024, "D": 256} in found


def test_configurations_of_the_task_are_checked_at_their_own_sizes() -> None:
    configuration = Configuration(name="multi", shapes={"x": (3, 96)})
    task = task_of("B", "D", configurations=(configuration,))
    assert configured_sizes(task) == [{"B": 3, "D": 96}]
    cases = proposed(TABLE, kernel_of(task), "plan")
    assert (("B", 3), ("D", 96)) in [case.sizes for case in cases]


@pytest.mark.parametrize(("dims", "n_least"), [(("N",), 70_000), (("B", "D"), 300_000), (("B", "T", "8"), 28_000)])
def test_wide_sizes_have_more_elements_than_16_bits_count(dims: tuple[str, ...], n_least: int) -> None:
    assert max(math.prod(sizes.values()) for sizes in wide(dims)) >= n_least


def wide(dims: tuple[str, ...]) -> list[Sizes]:
    return wide_sizes(Finder(task_of(*dims), "forward", lambda _: True))


@pytest.mark.parametrize("dims", [("N",), ("B", "D"), ("B", "T", "D")])
def test_some_rows_are_a_whole_number_of_thousands(dims: tuple[str, ...]) -> None:
    assert any(size % 1024 == 0 for sizes in wide(dims) for size in sizes.values())


def test_long_sums_are_of_positive_numbers() -> None:
    sizes = wide(("B", "D"))
    families = {case.sizes: case.family for case in kernel_of(task_of("B", "D")).large_cases(sizes)}
    assert {dict(found)["D"] >= 20_000: family for found, family in families.items()} == {
        True: LATE_EXTREMES,
        False: "normal",
    }


@pytest.mark.parametrize(
    ("dtype", "families"), [(DType.I64, ["equal_integers"]), (DType.BOOL, ["greatest_integers"]), (DType.F32, [])]
)
def test_many_equal_integers_are_for_tasks_with_integers(dtype: DType, families: list[str]) -> None:
    task = task_of("B", "D", dtype=dtype)
    assert [case.family for case in equal_integers(kernel_of(task))] == families


def test_wide_sizes_have_long_rows_and_many_rows() -> None:
    found = wide_sizes(Finder(task_of("B", "D"), "forward", lambda _: True))
    assert max(sizes["D"] for sizes in found) > 20_000
    assert max(sizes["B"] for sizes in found) > 16384


def test_wide_sizes_stay_inside_the_contract_and_below_the_limit_of_a_grid() -> None:
    found = wide_sizes(Finder(task_of("B", "D"), "forward", lambda sizes: sizes["D"] % 4 == 0 and sizes["D"] <= 2100))
    assert found
    assert all(sizes["D"] % 4 == 0 and sizes["D"] <= 2100 and sizes["B"] < 65536 for sizes in found)


def test_a_task_with_large_fixed_dims_has_no_wide_sizes() -> None:
    assert wide_sizes(Finder(task_of("B", "65536"), "forward", lambda _: True)) == []


@pytest.mark.parametrize(("dims", "n_least"), [(("N",), 1 << 20), (("B", "D"), 1 << 16), (("B", "T", "D"), 1 << 16)])
def test_there_is_a_size_with_more_rows_than_16_bits_count(dims: tuple[str, ...], n_least: int) -> None:
    sizes = vast(dims, lambda _: True)
    assert sizes is not None
    assert math.prod([*sizes.values()][: max(1, len(dims) - 1)]) > n_least


def test_a_grid_that_takes_no_more_rows_gets_as_many_as_it_takes() -> None:
    sizes = vast(("B", "D"), lambda sizes: sizes["B"] < 65_536)
    assert sizes is not None
    assert sizes["B"] == 65_521
    assert vast(("B", "D"), lambda _: False) is None


def vast(dims: tuple[str, ...], can_run: Callable[[Sizes], bool]) -> Sizes | None:
    return vast_sizes(Finder(task_of(*dims), "forward", lambda _: True), can_run)
