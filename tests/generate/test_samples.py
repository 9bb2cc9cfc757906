"""Operators that a capture writes with others: samples of images, histograms, bags of embeddings."""

from __future__ import annotations

import pytest

from tests.generate.harness import check, plan_text, tensor

FAMILIES = ("normal", "special_nan")
IMAGE, GRID = tensor("x", 2, 3, 7, 9), tensor("grid", 2, 5, 6, 2)
WEIGHT, IDS = tensor("weight", 20, 8), tensor("ids", 5, 7, dtype="i64", within=(0, 20))


@pytest.mark.parametrize(
    "settings",
    [
        "align_corners=False",
        "mode='nearest', padding_mode='border', align_corners=True",
        "padding_mode='reflection', align_corners=False",
        "padding_mode='reflection', align_corners=True",
        "mode='bicubic', align_corners=False",
    ],
)
def test_samples_of_an_image(settings: str) -> None:
    """Coordinates up to about 3 are outside of the image."""
    text = f"def f(x, grid): return F.grid_sample(x, grid * 2, {settings})"
    check(text, inputs=[IMAGE, GRID], backward=True, families=FAMILIES, sizes=({}, {"H2": 1}))


def test_samples_at_places_that_are_no_numbers() -> None:
    """PyTorch takes the first element there. Its gradients for infinite coordinates end the process."""
    text = "def f(x, grid): return F.grid_sample(x, grid, padding_mode='reflection', align_corners=False)"
    check(text, inputs=[IMAGE, GRID], families=("special_inf", "special_nan"))


def test_samples_of_16_bits_and_of_a_volume() -> None:
    text = "def f(x, grid): return F.grid_sample(x, grid, align_corners=True)"
    halves = [tensor("x", 2, 3, 7, 9, dtype="f16"), tensor("grid", 2, 5, 6, 2, dtype="f16")]
    check(text, inputs=halves, backward=True, families=FAMILIES)
    check(text, inputs=[tensor("x", 1, 3, 7, 9, 4), tensor("grid", 1, 5, 6, 2, 3)], backward=True)


def test_counts_of_bins() -> None:
    text = "def f(x): return torch.histc(x, 16, -2, 2), torch.histc(x, 7)"
    check(text, inputs=[tensor("x", 20, 30)], families=("normal", "small_integers", "constant_rows"))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    """Bags of equal lengths are rows: one kernel adds them up."""
    text = f"def f(weight, ids): return F.embedding_bag(ids, weight, mode='{mode}', padding_idx=3)"
    checked = check(text, inputs=[WEIGHT, IDS], backward=True, families=FAMILIES, sizes=({}, {"B2": 1}))
    assert checked.n_kernels == 1


def test_the_padding_of_bags_counts_from_the_last_row() -> None:
    settings = "False, 0, False, None, False, -1"
    text = f"def f(weight, ids, offsets): return torch.embedding_bag(weight, ids, offsets, {settings})[0]"
    ids = tensor("ids", 12, dtype="i64", within=(17, 20))
    check(text, inputs=[WEIGHT, ids, tensor("offsets", 1, dtype="i64", within=(0, 1))])


def test_weighted_bags_between_offsets() -> None:
    text = """
    def f(weight, ids, factors):
        offsets = torch.tensor([0, 4, 4, 9, 14])
        whole = F.embedding_bag(ids, weight, offsets, mode="sum", per_sample_weights=factors)
        ends = F.embedding_bag(ids, weight, offsets, mode="max", include_last_offset=True, padding_idx=3)
        return whole, ends
    """
    inputs = [WEIGHT, tensor("ids", 14, dtype="i64", within=(0, 20)), tensor("factors", 14)]
    check(text, inputs=inputs, backward=True)


@pytest.mark.parametrize(
    "place",
    [
        "torch.where((g >= 0) & (g < 4), g, 0).long()",
        "g.clamp(0, 3).long()",
        "g.floor().clamp(min=0).clamp(max=3).to(torch.int64)",
    ],
)
def test_places_that_are_not_negative_are_ints(place: str) -> None:
    """64 bits are converted at a quarter of the rate, and what is clamped needs no count from the end."""
    checked = check(f"def f(x, g): return x[{place}]", inputs=[tensor("x", 4, 8), tensor("g", 3)])
    assert "(int)" in checked.text
    assert "(long long)" not in checked.text
    assert "< 0 ?" not in checked.text


def test_places_that_may_be_negative_count_from_the_end() -> None:
    checked = check("def f(x, g): return x[g.clamp(-3, 3).long()]", inputs=[tensor("x", 4, 8), tensor("g", 3)])
    assert "< 0 ?" in checked.text


def test_places_that_narrower_integers_make_negative_count_from_the_end() -> None:
    text = "def f(x, g): return x[g.clamp(min=0).to(torch.int8).long()]"
    checked = check(text, inputs=[tensor("x", 4, 8), tensor("g", 3, dtype="i64", within=(254, 256))])
    assert "< 0 ?" in checked.text


def test_samples_of_many_places_have_large_blocks() -> None:
    """Four reads per element share what lies in L1."""
    given = [tensor("x", 16, 32, 128, 128), tensor("grid", 16, 128, 128, 2)]
    program = plan_text("def f(x, grid): return F.grid_sample(x, grid, align_corners=False)", inputs=given)
    (threads,) = [knob.default for knob in program.knobs if knob.name == "f_out.threads"]
    assert threads == 256
