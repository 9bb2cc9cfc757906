"""Sizes on both sides of what a plan, or the code of its kernels, decides by."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import GraphNode, TensorType
from kernel_lsp.core.verdict import Built
from kernel_lsp.plan.binding import UnwrittenError
from kernel_lsp.verify.model.cases import Sizes
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.probes.code_guided_sizes import (
    compared_sizes,
    deciding_sizes,
    large_literals,
    sizes_beyond_literals,
)
from kernel_lsp.verify.probes.finder import Budget, Finder, finder_of
from tests.verify.copies import KNOWN, SQUARE, TASK, prepared
from tests.verify.kernels import task_of


def deciding(*directives: str) -> list[Sizes]:
    return deciding_sizes(finder_of(prepared(*directives), "forward"), KNOWN)


def beyond(code: str, *directives: str) -> list[Sizes]:
    plan = prepared(*directives, "launch: k<<<1, 32>>>(x, out, D)", code=code)
    return sizes_beyond_literals(finder_of(plan, "forward"), KNOWN)


def test_the_variant_that_no_size_takes_is_found() -> None:
    found = deciding("launch[D <= 60000]: k<<<1, 32>>>(x, out, D)", "launch[D > 60000]: k<true><<<1, 32>>>(x, out, D)")
    assert [sizes["D"] for sizes in found] == [60_001, 60_000]


def test_the_instance_of_a_template_that_no_size_takes_is_found() -> None:
    assert [sizes["B"] for sizes in deciding("launch: k<B == 77><<<1, 32>>>(x, out, D)")] == [77, 76, 78]


def test_both_sides_of_where_a_variant_ends_are_run_even_where_both_variants_are_known() -> None:
    launches = ("launch[D <= 513]: k<<<1, 32>>>(x, out, D)", "launch[D > 513]: k<true><<<1, 32>>>(x, out, D)")
    assert [sizes["D"] for sizes in deciding(*launches)] == [513, 514]


def test_neighbours_are_as_far_apart_as_the_contract_says() -> None:
    launches = ("launch[D <= 500]: k<<<1, 32>>>(x, out, D)", "launch[D > 500]: k<true><<<1, 32>>>(x, out, D)")
    assert [sizes["D"] for sizes in deciding("where: D % 8 == 0 or D == 5", *launches)] == [496, 504]


def test_a_grid_that_stops_growing_is_passed() -> None:
    assert [sizes["D"] for sizes in deciding("launch: k<<<min(D, 5000), 32>>>(x, out, D)")] == [5001, 5000]


def test_a_gap_between_variants_is_refused_however_far_away() -> None:
    with pytest.raises(UnwrittenError, match=r"no step writes 'out' for .*D = 20000000"):
        deciding("launch[D < 20000000]: k<<<1, 32>>>(x, out, D)")
    assert deciding("where: D < 20000000", "launch[D < 20000000]: k<<<1, 32>>>(x, out, D)") == []


def test_a_plan_that_decides_nothing_gets_no_sizes() -> None:
    assert deciding("launch: k<<<1, 32>>>(x, out, D)") == []


def test_variants_outside_the_contract_are_not_asked_for() -> None:
    launches = ("launch[D <= 60000]: k<<<1, 32>>>(x, out, D)", "launch[D > 60000]: k<true><<<1, 32>>>(x, out, D)")
    assert [sizes["D"] for sizes in deciding("where: D <= 4096", *launches)] == [4096]


def test_a_contract_is_run_to_its_end() -> None:
    assert [sizes["D"] for sizes in deciding("where: D <= 1000", "launch: k<<<1, 32>>>(x, out, D)")] == [1000]
    aligned = deciding("where: D < 1030 and D % 4 == 0 or D == 5", "launch: k<<<1, 32>>>(x, out, D)")
    assert 1028 in [sizes["D"] for sizes in aligned]


def test_large_numbers_in_the_code_are_passed_by_every_size() -> None:
    found = beyond("if (D > 1'000'000) return;")
    assert [max(sizes.values()) for sizes in found] == [1_031_252, 1_031_252]


def test_a_large_grid_of_a_fixed_size_is_passed() -> None:
    """A fill may write what its blocks leave out, so the share that is written shows nothing."""
    plan = prepared("launch: k<<<200000, 32>>>(x, out, D)")
    assert max(max(sizes.values()) for sizes in sizes_beyond_literals(finder_of(plan, "forward"), KNOWN)) > 200_000


def test_dims_that_were_captured_alike_go_together_where_neither_goes_alone() -> None:
    known = [{**sizes, "E": sizes["D"]} for sizes in KNOWN]
    ready = prepared("where: D == E", "launch: k<<<1, 32>>>(x, out, D)", code="D > 1200", task=SQUARE)
    assert {"B": 2, "D": 1239, "E": 1239} in sizes_beyond_literals(finder_of(ready, "forward"), known)


def test_what_lies_in_between_is_not_larger_than_pytorch_takes() -> None:
    """All pairs of 12,000 elements are."""
    type_ = TensorType(dtype=DType.F32, shape=("D", "D"))
    pairs = (GraphNode(name="n", op="aten.mm.default", arguments=(), types=(type_,)),)
    task = TASK.model_copy(update={"forward": TASK.forward.model_copy(update={"nodes": pairs})})
    ready = prepared("launch: k<<<1, 32>>>(x, out, D)", code="D > 12000", task=task)
    (found,) = sizes_beyond_literals(finder_of(ready, "forward"), KNOWN)
    assert found["B"] > 12_000


def test_a_contract_may_end_right_behind_a_number() -> None:
    (found,) = beyond("if (D > 9000) return;", "where: D <= 9001 and B < 100")
    assert found["D"] == 9001


def test_sizes_beyond_stay_inside_the_contract() -> None:
    found = beyond("if (D > 9000) return;", "where: D % 4 == 0 and B < 100")
    assert [(sizes["B"] < 100, sizes["D"]) for sizes in found] == [(True, 9284)]


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        ("n > 1000000", {1_000_000}),
        ("n > 1u << 20", {1 << 20}),
        ("n > 0x10000u", {65_536}),
        ("v > 10000.0f || v > 10000e3", set()),
        ("// 10000", set()),
        ("n & 0x7fffffff | n % 256 | x10000", set()),
    ],
)
def test_numbers_that_a_size_may_be_compared_with(code: str, numbers: set[int]) -> None:
    assert large_literals(code) == numbers


def test_a_table_of_thousands_of_numbers_is_looked_at_here_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def admits(finder: Finder, sizes: Sizes, budget: Budget) -> bool:
        asked.append(sizes["D"])
        return False

    monkeypatch.setattr(Finder, "admits", admits)
    assert beyond(", ".join(map(str, range(5000, 25_000)))) == []
    assert len(asked) < 1500
    assert {5001, 5158, 25_000, 25_782} <= set(asked)


def compared(condition: str, *directives: str) -> list[Sizes]:
    """Sizes of a kernel with this condition of `D`, in `%r1`, as PTX."""
    ready = prepared(*directives, "launch: k<<<B, 32>>>(x, out, D)")
    ptx = f".visible .entry k(\n)\n{{\n    ld.param.b32 %r1, [k_param_2];\n    {condition};\n    ret;\n}}\n"
    built = Built(architecture="sm_90", ptx=ptx, symbols={"k<>": "k"})
    return compared_sizes(finder_of(ready, "forward"), built, KNOWN)


@pytest.mark.parametrize("condition", ["setp.eq.s32 %p1, %r1, 777", "setp.ne.s32 %p1, %r1, 777"])
def test_the_one_size_that_a_kernel_compares_with_is_found(condition: str) -> None:
    assert compared(condition) == [{"B": 6, "D": 777}]


def test_each_interval_between_thresholds_is_found() -> None:
    found = compared("setp.ge.s32 %p1, %r1, 300;\n    setp.lt.s32 %p2, %r1, 400")
    assert 300 <= found[0]["D"] < 400
    assert {sizes["D"] for sizes in found} >= {299, 300, 399, 400}


def test_a_quotient_of_two_numbers_is_tried() -> None:
    assert [s["D"] for s in compared("mul.lo.s32 %r2, %r1, 3;\n    setp.eq.s32 %p1, %r2, 2331")] == [777]


def test_a_threshold_with_both_sides_known_is_passed_by_one() -> None:
    assert [sizes["D"] for sizes in compared("setp.gt.s32 %p1, %r1, 500")] == [500, 501]


def test_what_a_compiler_unrolls_is_no_threshold() -> None:
    assert compared("setp.gt.s32 %p1, %r1, 15") == []


def test_a_size_outside_the_contract_is_not_asked_for() -> None:
    assert compared("setp.eq.s32 %p1, %r1, 777", "where: D % 2 == 0 or D < 6") == []


KNOWN_PAIRS: list[Sizes] = [
    {"B": 64, "D": 256},
    {"B": 7, "D": 5},
    {"B": 37, "D": 4_099},
    {"B": 1, "D": 70_001},
]
PRODUCT = "mul.lo.s32 %r3, %r1, %r2"


def found(*lines: str, where: str = "") -> list[Sizes]:
    """For a kernel that takes B in `%r1` and D in `%r2`."""
    task = task_of("B", "D", captured={"B": 64, "D": 256})
    text = (
        f"// kernel-lsp: 1\n// op: f(x: f32[B, D]) -> (out: f32[B, D])\n{where}// launch: k<<<B, 32>>>(x, out, B, D)\n"
    )
    prepared = prepare(f"{text}__global__ void k(const float* x, float* out, int B, int D) {{}}", task)
    assert isinstance(prepared, Prepared), prepared
    loads = ("ld.param.b32 %r1, [k_param_2]", "ld.param.b32 %r2, [k_param_3]")
    body = "\n".join(f"    {line};" for line in (*loads, *lines, "ret"))
    built = Built(architecture="sm_90", ptx=f".visible .entry k()\n{{\n{body}\n}}\n", symbols={"k": "k"})
    return compared_sizes(finder_of(prepared, "forward"), built, KNOWN_PAIRS)


def test_a_product_of_two_dims_is_made_of_its_factors() -> None:
    sizes = found(PRODUCT, "setp.eq.s32 %p1, %r3, 12345")
    assert any(s["B"] * s["D"] == 12_345 and min(s.values()) > 1 for s in sizes)


def test_a_contract_is_kept() -> None:
    sizes = found(PRODUCT, "setp.eq.s32 %p1, %r3, 12345", where="// where: B % 5 == 0\n")
    assert any(s["B"] * s["D"] == 12_345 and s["B"] % 5 == 0 for s in sizes)


@pytest.mark.parametrize("second", ["eq.s32 %p2, %r2, 2469", "gt.s32 %p2, %r2, 2468"])
def test_two_comparisons_are_tried_together(second: str) -> None:
    sizes = found("setp.eq.s32 %p1, %r1, 5", f"setp.{second}")
    assert {"B": 5, "D": 2469} in sizes


@pytest.mark.parametrize(
    ("lines", "holds"),
    [
        (("setp.eq.s32 %p1, %r1, %r2", "setp.gt.s32 %p2, %r1, 70"), lambda b, d: b == d > 70),
        (("mul.lo.s32 %r3, %r1, 100", "setp.eq.s32 %p1, %r2, %r3"), lambda b, d: d == 100 * b),
        (("add.s32 %r3, %r1, %r2", "setp.eq.s32 %p1, %r3, 7777"), lambda b, d: b + d == 7_777),
        (
            ("mul.lo.s32 %r3, %r1, 31", "add.s32 %r4, %r3, %r2", "rem.s32 %r5, %r4, 1009", "setp.ne.s32 %p1, %r5, 500"),
            lambda b, d: (31 * b + d) % 1_009 == 500,
        ),
    ],
)
def test_sizes_are_found_at_which_two_sides_are_equal(lines: tuple[str, ...], holds: object) -> None:
    assert callable(holds)
    assert any(holds(sizes["B"], sizes["D"]) for sizes in found(*lines))


def test_an_unrolled_loop_asks_for_no_pairs() -> None:
    sizes = found(PRODUCT, "and.b32 %r4, %r3, 3", "setp.eq.s32 %p1, %r4, 0", "setp.lt.s32 %p2, %r1, 4")
    assert len(sizes) <= 2
