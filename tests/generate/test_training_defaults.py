"""Default texts of operations of training code: what a thread loads, computes and converts once."""

from __future__ import annotations

import numpy as np
import pytest

from .harness import check, plan_text, run, tensor

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


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("call", "box"),
    [
        ("F.max_pool2d(x, 3, 1, 1)", "1x1x4x2"),
        ("F.max_pool2d(x, 3, 2, 1)", "1x1x1x4"),
        ("F.max_pool2d(x, 3, 2, 1)", "1x1x2x4"),
        ("F.max_pool2d(x, 5, 1, 2)", "1x1x2x4"),
    ],
)
def test_rows_of_a_tile_are_packs_and_single_elements(call: str, box: str, dtype: str) -> None:
    schedule, inputs = {"f.box": box, "f.packs": 1}, [tensor("x", 2, 3, 8, 16, dtype=dtype)]
    text, sizes = f"def f(x): return {call}", ({}, {"H": 5, "W": 32})
    checked = check(text, inputs=inputs, backward=True, schedule=schedule, families=FAMILIES, sizes=sizes)
    forward = checked.text[: checked.text.rindex("__global__")]
    assert "x_pack = *packs<" in forward
    assert ("float x_tile_rows[" in forward) == (box[4] != "1")


@pytest.mark.parametrize(
    ("call", "dtype", "box"),
    [
        ("F.max_pool2d(x, 3, 2, 1)", "f32", "1 x 1 x 1 x 2"),
        ("F.max_pool2d(x, 3, 2, 1)", "bf16", "1 x 1 x 1 x 4"),
        ("F.max_pool2d(x, 3, 1, 1)", "bf16", "1 x 1 x 2 x 4"),
        ("F.max_pool2d(x, 5, 1, 2)", "bf16", "1 x 1 x 4 x 2"),
    ],
)
def test_places_of_maxima_are_found_by_boxes_whose_rows_are_packs(call: str, dtype: str, box: str) -> None:
    inputs = [tensor("x", 32, 64, 112, 112, dtype=dtype)]
    text = plan_text(f"def f(x): return {call}", inputs=inputs, backward=True).render({})
    assert f"One thread per box of {box} elements. Writes out, chosen" in text


@pytest.mark.parametrize(("n_heads", "lines"), [(16, 1), (128, 2)])
def test_a_rotation_has_several_lines_per_thread_where_that_leaves_several_blocks(n_heads: int, lines: int) -> None:
    text = """
    def f(q, c, s):
        half = q.shape[-1] // 2
        return q * c + torch.cat((-q[..., half:], q[..., :half]), -1) * s
    """
    shapes = {"q": (4, n_heads, 2048, 64), "c": (2048, 64), "s": (2048, 64)}
    found = plan_text(text, inputs=[tensor(name, *shape, dtype="bf16") for name, shape in shapes.items()]).render({})
    assert ("of 2 lines." in found) == (lines == 2)


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


def test_gradients_of_differences_in_16_bits_are_packs_from_as_many_elements_as_in_f32() -> None:
    inputs = [tensor("x", 16, 3, 512, 512, dtype="bf16")]
    text = plan_text(TOTAL_VARIATION, inputs=inputs, backward=True).render({})
    assert "v + 1 < 8 ? float(x_pack[u].item[v + 1]) : " in text
    assert text.count("*packs<8>(&x_run") == 2


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


def test_positions_in_rows_of_many_packs_take_inverses_of_sizes() -> None:
    text = "def f(x): return F.silu(F.batch_norm(x, None, None, training=True))"
    schedule = {"f.cached": 1, "f.threads": 32, "f.vector": 4, "f.blocks": 1}
    sizes = ({}, {"B": 2, "H": 1, "W": 4}, {"H": 5, "W": 28})
    checked = check(text, inputs=[tensor("x", 3, 5, 6, 40)], schedule=schedule, sizes=sizes)
    assert "size_quotient(pack, H * W / 4, inverse) * " in checked.text
    assert "% (H * W / 4)" not in checked.text


def test_a_sigmoid_of_f32_is_within_3_ulp_everywhere() -> None:
    checked = check("def f(x): return torch.sigmoid(x)", inputs=[tensor("x", 7)])
    values = np.array([-np.inf, -1e30, -104.0, -88.0, -1e-8, 30.0, np.inf], dtype=np.float32)
    found = run(checked, {"x": values})["out"]
    expected = 1.0 / (1.0 + np.exp(np.minimum(-values.astype(np.longdouble), 1e4)))
    assert np.all(np.abs(found - expected) <= 3 * np.spacing(expected.astype(np.float32)))
    assert np.isnan(run(checked, {"x": np.full(7, np.nan, dtype=np.float32)})["out"]).all()
