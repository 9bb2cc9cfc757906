"""Default texts of operations of training code: what a thread loads, computes and converts once."""

from __future__ import annotations

import pytest

from .harness import check, plan_text, tensor

TOTAL_VARIATION = "def f(x): return (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()"
FAMILIES = ("normal", "tied_rows", "special_nan", "minus_inf_rows")


@pytest.mark.parametrize(
    ("call", "box"),
    [
        ("F.max_pool2d(x, 3, 1, 1)", "1x1x2x4"),
        ("F.max_pool2d(x, 5, 1, 2)", "1x1x1x2"),
        ("F.max_pool2d(x, 3, 2, 1)", "1x1x2x2"),
        ("F.max_pool2d(x, 3, 2, 1)", "1x1x1x4"),
    ],
)
def test_a_box_loads_what_its_windows_read_once(call: str, box: str) -> None:
    schedule, inputs = {"f.box": box, "f_backward.box": box}, [tensor("x", 2, 3, 8, 12)]
    sizes = ({}, {"H": 5, "W": 7})
    checked = check(
        f"def f(x): return {call}", inputs=inputs, backward=True, schedule=schedule, families=FAMILIES, sizes=sizes
    )
    forward, _, backward = checked.text.rpartition("__global__")
    assert "x_tile[kh * " in forward
    assert "chosen_tile[" in backward
    assert "grad_out_tile[" in backward
    assert "long long chosen" not in backward


def test_a_window_of_lowest_values_has_its_first_element_in_bounds() -> None:
    text = "def f(x): return F.max_pool2d(x, 3, 1, 1, return_indices=True)"
    check(text, inputs=[tensor("x", 2, 3, 6, 7)], families=("minus_inf_rows", "normal"))


@pytest.mark.parametrize("shape", [(2, 3, 64, 128), (300, 2, 8, 130)])
def test_differences_of_neighbours_along_two_dims_are_one_pass(shape: tuple[int, ...]) -> None:
    inputs, schedule = [tensor("x", *shape)], {"f.launches": "each"}
    checked = check(TOTAL_VARIATION, inputs=inputs, schedule=schedule, sizes=({}, {"H": 5}), families=FAMILIES[:2])
    assert checked.text.count("const float* __restrict__ x,") == 1


def test_lines_of_differences_are_packs_and_their_neighbours() -> None:
    large = plan_text(TOTAL_VARIATION, inputs=[tensor("x", 16, 3, 512, 512)], backward=True).render({})
    assert "One warp per row" in large
    assert "const float x_next = v + 1 < 4 ? x_pack.item[v + 1] : " in large
    assert "const int line = blockIdx.y;" in large
    assert large.count("grad_out[0]") == 1


@pytest.mark.parametrize("shape", [(2, 3, 16, 32), (1, 2, 3, 8)])
def test_gradients_of_differences_of_neighbours(shape: tuple[int, ...]) -> None:
    schedule = {"f_backward.vector": 4, "f_backward.unroll": 2}
    check(TOTAL_VARIATION, inputs=[tensor("x", *shape)], backward=True, schedule=schedule, families=FAMILIES[:2])


@pytest.mark.parametrize(
    "settings",
    [
        "scale_factor=2, mode='bilinear'",
        "scale_factor=(4, 0.5), mode='bilinear'",
        "size=(10, 28), mode='bilinear'",
        "scale_factor=0.25, mode='bilinear'",
    ],
)
def test_positions_of_an_interpolation_by_a_power_of_two_are_whole_numbers(settings: str) -> None:
    text = f"def f(x): return F.interpolate(x, {settings})"
    checked = check(text, inputs=[tensor("x", 2, 3, 5, 14)], backward=True, families=("normal", "special_inf"))
    assert "floorf(" not in checked.text
    assert "(float)h" not in checked.text
    assert "(float)w" not in checked.text


def test_a_row_whose_mask_is_bytes_has_no_bounds_checks_at_the_captured_length() -> None:
    text = "def f(x, m): return torch.softmax(x.masked_fill(m, float('-inf')), -1)"
    inputs = [tensor("x", 64, 512, 512), tensor("m", 512, 512, dtype="bool")]
    assert "// launch[D == 512]: f<<<" in plan_text(text, inputs=inputs).render({})


def test_a_sum_of_quotients_by_values_of_the_row_is_found_with_these() -> None:
    text = "def f(x, y): return F.cosine_similarity(x, y, dim=-1)"
    checked = check(text, inputs=[tensor("x", 40, 64), tensor("y", 40, 64)], families=("normal", "tiny", "special_nan"))
    assert "in one pass over the row" in checked.text


@pytest.mark.parametrize("halves", [0, 1])
def test_a_thread_has_both_halves_of_the_gradients_of_a_gate(halves: int) -> None:
    schedule = {"f_backward.halves": halves, "f_backward.vector": 4}
    text, inputs = "def f(x): return F.glu(x.view(-1, 2, 64), -1)", [tensor("x", 6, 128)]
    checked = check(text, inputs=inputs, backward=True, schedule=schedule, families=("normal", "special_inf"))
    backward = checked.text[checked.text.rindex("__global__") :]
    assert backward.count("packs<4>(grad_x)[") == 1 + halves
    assert ("? sigmoid(" in backward) == (not halves)


def test_a_thread_looks_up_two_packs_of_rows_to_which_others_are_added() -> None:
    text = "def f(i, e, p): return F.embedding(i, e) + p[None]"
    inputs = [tensor("i", 16, 1024, dtype="i64", within=(0, 50000)), tensor("e", 50000, 512), tensor("p", 1024, 512)]
    assert "for (int u = 0; u < 2; ++u)" in plan_text(text, inputs=inputs).render({})
