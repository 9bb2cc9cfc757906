"""Contractions of few results: the sums of a small tile in each thread's registers."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_lsp.generate.program import plan_program
from kernel_lsp.gpu.specs import find_gpu
from tests.generate.harness import check_program, plan_text, tensor

LINEAR = "def f(x, w, b): return torch.relu(F.linear(x, w, b))"


def check(text: str, inputs: list[Any], *, tile: str = "4x8", threads: int = 128, **how: Any) -> None:
    """Assert that the program computes its contractions in register tiles, and that it is right."""
    program = plan_text(text, inputs=inputs)
    ways = {knob.name: "register_tiles" for knob in program.knobs if "register_tiles" in knob.values}
    assert ways
    offered = [knob.name for knob in program.realize(ways).knobs]
    ways |= {name: tile for name in offered if name.endswith(".sums")}
    ways |= {name: threads for name in offered if name.endswith(".sharing")}
    assert program.is_valid(ways)
    assert "deal_sums" in check_program(program, schedule=ways, **how).text


@pytest.mark.parametrize("tile", ["4x8", "8x4", "8x8"])
def test_rows_and_columns_past_the_end_are_not_written(tile: str) -> None:
    inputs = [tensor("x", 9, 264), tensor("w", 13, 264), tensor("b", 13)]
    check(LINEAR, inputs, tile=tile, families=("normal", "special_inf"))


def test_terms_that_no_vector_load_divides_are_read_one_by_one() -> None:
    check(LINEAR, [tensor("x", 5, 131), tensor("w", 6, 131), tensor("b", 6)])


def test_a_factor_may_lie_the_other_way() -> None:
    check("def f(x, w): return x @ w", [tensor("x", 6, 136), tensor("w", 136, 12)])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_numbers_of_16_bits_are_added_up_in_f32(dtype: str) -> None:
    inputs = [tensor(name, *shape, dtype=dtype) for name, shape in (("x", (4, 256)), ("w", (8, 256)), ("b", (8,)))]
    check(LINEAR, inputs)


@pytest.mark.parametrize(("n_terms", "is_only"), [(96, True), (131, False), (516, False)])
def test_sums_of_threads_with_one_pack_begin_with_a_product(n_terms: int, is_only: bool) -> None:
    """No zeros take the registers of what is being loaded. 131 packs of one, and 129 of four, are more than threads."""
    inputs = [tensor("x", 9, n_terms), tensor("w", 13, n_terms), tensor("b", 13)]
    program = plan_text(LINEAR, inputs=inputs, variants=True)
    ways = {"f.addmm.contraction": "register_tiles", "f.sums": "4x8", "f.sharing": 128}
    text = check_program(program, schedule=ways, sizes=({}, {"B": 5})).text
    assert ("sums[i * TN + j] = left[i][0] * right[j][0];" in text) == is_only


def test_each_batch_has_its_own_tiles() -> None:
    check("def f(a, b): return torch.bmm(a, b.transpose(1, 2))", [tensor("a", 3, 5, 128), tensor("b", 3, 7, 128)])


def test_a_small_layer_takes_register_tiles_by_default() -> None:
    program = plan_text(LINEAR, inputs=[tensor("x", 64, 1600), tensor("w", 128, 1600), tensor("b", 128)])
    assert "deal_sums" in program.realize({}).text


def test_weight_gradients_of_few_channels_are_tiles_of_parts_of_the_batch() -> None:
    text = "def f(x, w): return F.conv2d(x, w)"
    inputs = [tensor("x", 32, 1, 18, 20), tensor("w", 8, 1, 3, 3)]
    program = plan_text(text, inputs=inputs, backward=True)
    ways = {knob.name: "register_tiles" for knob in program.knobs if knob.name.endswith("weight.contraction")}
    parts = {knob.name: 4 for knob in program.realize(ways).knobs if knob.name.endswith("weight.parts")}
    assert parts
    checked = check_program(program, schedule=ways | parts)
    assert "// where: B % 4 == 0" in checked.text
    assert "deal_sums" in checked.text


def test_weight_gradients_take_register_tiles_where_their_parts_fill_the_gpu() -> None:
    inputs = [tensor("x", 64, 1, 28, 28), tensor("w", 32, 1, 3, 3)]
    task = plan_text("def f(x, w): return F.conv2d(x, w)", inputs=inputs, backward=True).task
    text = plan_program(task, gpu=find_gpu("H200")).render({})
    assert "_parts: f32[16, 1, 32, 1, 3, 3]" in text
    assert "deal_sums" in text


@pytest.mark.parametrize(("n_rows", "n_terms", "tile"), [(64, 128, "4x8"), (64, 1600, "8x4"), (256, 1600, "8x8")])
def test_results_of_few_terms_or_few_results_have_small_tiles(n_rows: int, n_terms: int, tile: str) -> None:
    inputs = [tensor("x", n_rows, n_terms), tensor("w", 128, n_terms), tensor("b", 128)]
    program = plan_text(LINEAR, inputs=inputs)
    assert program.realize({"f.addmm.contraction": "register_tiles"}).schedule["f.sums"] == tile


@pytest.mark.parametrize(
    ("n_terms", "n_columns", "way"), [(128, 10, "rows"), (128, 128, "split_warps"), (1600, 128, "register_tiles")]
)
def test_sums_of_few_terms_are_shared_by_the_threads_of_a_tile_or_a_warp(
    n_terms: int, n_columns: int, way: str
) -> None:
    inputs = [tensor("x", 64, n_terms), tensor("w", n_columns, n_terms), tensor("b", n_columns)]
    assert plan_text(LINEAR, inputs=inputs).realize({}).schedule["f.addmm.contraction"] == way
