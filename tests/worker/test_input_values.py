"""Values that are put into inputs for what only they show: patterns of NaN, ties of the code's own roundings, integers
as large as they may be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernel_lsp.worker.cases.families import OCTAVES, SAME_WIDTH, draw, own_generator, place_special
from kernel_lsp.worker.cases.integers import limited, unlimited
from kernel_lsp.worker.oracle.roundings import rounding_ties
from tests.worker.capturing import capture_text, make_case, tensor

GREATEST = "greatest_integers"
ANY = own_generator(1, "x")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nans_have_several_patterns(dtype: torch.dtype) -> None:
    x = torch.ones(64, 8, dtype=dtype)
    place_special("special_nan", [x], ANY)
    bits = x[x.isnan()].view(SAME_WIDTH[dtype.itemsize])
    of_numpy = torch.tensor(float("nan"), dtype=dtype).view(bits.dtype)
    assert {int(of_numpy), torch.iinfo(bits.dtype).max} <= set(bits.tolist())
    assert bool((bits < 0).any())
    assert -1 not in bits.tolist(), "which is what memory holds that nobody wrote"


def node(op: str, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    return {"name": "n", "op": f"aten.{op}", "arguments": [{"node": "x"}, *arguments], "keywords": keywords}


def ties_of(*nodes: dict[str, Any]) -> set[float]:
    captured: Any = SimpleNamespace(forward_text=SimpleNamespace(nodes=nodes))
    return set(rounding_ties(captured))


ROUND = node("round.default")


@pytest.mark.parametrize(
    ("nodes", "ties"),
    [
        ((node("mul.Tensor", 64.0), ROUND), {1 / 128, 3 / 128, -5 / 128}),
        ((node("div.Tensor", 7), ROUND), {3.5, 10.5, -3.5}),
        ((node("mul.Tensor", 10.0), node("floor.default")), {0.25, 0.75, 0.5}),
        ((node("mul.Tensor", 0.1875), ROUND), {8.0, 24.0, -8.0}),
        ((node("round.decimals", decimals=3),), {1 / 16, 3 / 16}),
        ((node("remainder.Scalar", 12),), {12.0, -12.0, 6.0}),
        ((node("div.Tensor_mode", 96, rounding_mode="floor"),), {96.0, -96.0}),
    ],
)
def test_ties_are_of_what_the_code_multiplies_and_divides_by(
    nodes: tuple[dict[str, Any], ...], ties: set[float]
) -> None:
    assert ties <= ties_of(*nodes)


@pytest.mark.parametrize(
    "nodes",
    [(node("mul.Tensor", 64.0),), (node("mul.Tensor", 0.1), ROUND), (ROUND,), (node("mul.Tensor", True), ROUND)],
    ids=["no rounding", "a factor of many digits", "no factor", "a truth value"],
)
def test_code_without_ties_of_its_own_has_none(nodes: tuple[dict[str, Any], ...]) -> None:
    assert ties_of(*nodes) == set()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_rows_of_a_mask_have_one_few_and_no_true_value_in_turn(dtype: torch.dtype) -> None:
    mask = unlimited("uniform", (6, 1000), dtype, ANY) if dtype == torch.bool else None
    mask = limited("uniform", (6, 1000), dtype, (0, 2), ANY) if mask is None else mask
    counts = mask.sum(-1).tolist()
    assert (counts[0], counts[3]) == (1, 1)
    assert (counts[2], counts[5]) == (0, 0)
    assert all(20 < count < 120 for count in (counts[1], counts[4]))


def test_two_numbers_other_than_zero_and_one_are_a_mask_as_well() -> None:
    assert set(limited("zeros", (5, 3), torch.int64, (4, 6), ANY).view(-1).tolist()) == {4}
    assert limited("uniform", (), torch.int64, (4, 6), ANY).item() == 5


@pytest.mark.parametrize(("limits", "expected"), [((0, 1 << 32), (1 << 32) - 1), ((-10, 8), -9), ((6, 7), 6)])
def test_the_greatest_integers_are_odd_and_inside_their_range(limits: tuple[int, int], expected: int) -> None:
    assert set(limited(GREATEST, (5, 3), torch.int64, limits, ANY).view(-1).tolist()) == {expected}


@pytest.mark.parametrize(("dtype", "expected"), [(torch.uint8, 255), (torch.int8, 127), (torch.bool, True)])
def test_the_greatest_integers_go_as_far_as_their_dtype(dtype: torch.dtype, expected: int) -> None:
    assert set(unlimited(GREATEST, (5, 3), dtype, ANY).view(-1).tolist()) == {expected}


def test_ties_are_among_halves_and_integers_of_64_bits_keep_all_of_them(tmp_path: Path) -> None:
    inputs = [tensor("x", 64, 8), tensor("y", 64, 8, dtype="i64", within=(0, 1 << 62))]
    capture_text("def f(x, y):\n    return torch.round(x * 64) / 64, y + 1", "f", inputs=inputs)
    case = make_case("forward", {"x": (64, 8), "y": (64, 8)}, "halves", tmp_path)
    x = np.fromfile(case.inputs[0].path, dtype=np.float32)
    assert {1 / 128, 3 / 128, -5 / 128} <= set(x)
    y, more = (np.fromfile(found.path, dtype=np.int64) for found in (case.inputs[1], case.outputs[1].reference))
    np.testing.assert_array_equal(more, y + 1)


@pytest.mark.parametrize(("family", "has_digits"), [("normal", True), ("uniform", True), ("small_integers", False)])
def test_numbers_of_f64_have_all_of_their_digits(family: str, has_digits: bool) -> None:
    x = draw(family, (64, 64), torch.float64, 0, "x")
    assert bool((x != x.float().double()).any()) == has_digits
    torch.testing.assert_close(x.float(), draw(family, (64, 64), torch.float32, 0, "x"), rtol=2e-7, atol=0.0)


def test_rows_have_every_size() -> None:
    x = draw("octaves", (63, 64), torch.float32, 0, "x")
    exponents = torch.log2(x.square().mean(-1).sqrt()).round()
    assert set(exponents.int().tolist()) == set(OCTAVES)
