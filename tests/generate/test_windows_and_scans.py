"""Pooling, upsampling, running sums, and reads and writes at indices."""

from __future__ import annotations

import pytest

from kernel_lsp.errors import TargetError
from tests.generate.harness import check, plan_text, tensor


@pytest.mark.parametrize(
    "call",
    [
        "F.max_pool2d(x, 2)",
        "F.max_pool2d(x, 3, stride=2, padding=1)",
        "F.max_pool2d(x, 3, stride=1, dilation=2)",
        "F.max_pool2d(x, 3, stride=2, ceil_mode=True)",
        "F.avg_pool2d(x, 2)",
        "F.avg_pool2d(x, 3, stride=2, padding=1)",
        "F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)",
        "F.adaptive_avg_pool2d(x, 1)",
        "F.adaptive_avg_pool2d(x, (3, 4))",
        "F.avg_pool2d(x, x.shape[2:])",
        "F.interpolate(x, scale_factor=2, mode='nearest')",
        "F.interpolate(x, size=(5, 17), mode='nearest')",
        "F.interpolate(x, scale_factor=1.5, mode='nearest')",
        "F.interpolate(x, scale_factor=1.5, mode='nearest-exact')",
        "F.interpolate(x, scale_factor=1.5, mode='bicubic')",
        "F.interpolate(x, size=(4, 20), mode='bilinear', antialias=True)",
        "F.interpolate(x, size=(1, 20), mode='bilinear', antialias=True, align_corners=True)",
        "F.interpolate(x, scale_factor=0.4, mode='bicubic', antialias=True)",
    ],
)
def test_pooling_forward_and_backward(call: str) -> None:
    check(f"def f(x): return {call}", inputs=[tensor("x", 2, 3, 9, 12)], backward=True)


@pytest.mark.parametrize("call", ["F.interpolate(x, scale_factor=3.1)", "F.interpolate(x, scale_factor=41)"])
def test_whole_factors_for_which_the_nearest_element_is_rounded(call: str) -> None:
    """ATen divides by 3.1 where 3 elements become 9, and 41 * (1 / 41) is less than 1 in f32."""
    check(f"def f(x): return {call}", inputs=[tensor("x", 1, 2, 3)], backward=True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("scale_factor=(2.0, 1.1), mode='bilinear'", "scale 1.1 gives 1 times the size"),
        ("scale_factor=(1.1, 2.0), mode='nearest'", "scale 1.1 gives 1 times the size"),
        ("scale_factor=(2.1, 2.0), mode='nearest'", "scale 2.1 gives 2 times the size"),
    ],
)
def test_a_scale_that_pytorch_uses_on_one_device_alone_is_refused(settings: str, problem: str) -> None:
    with pytest.raises(TargetError, match=f"{problem}: PyTorch's CPU and GPU differ there"):
        plan_text(f"def f(x): return F.interpolate(x, {settings})", inputs=[tensor("x", 2, 3, 5, 7)])


def test_pooling_in_one_and_three_dims() -> None:
    text = "def f(x, y): return F.max_pool1d(x, 3, 2), F.avg_pool1d(x, 4), F.max_pool3d(y, 2), F.avg_pool3d(y, 2)"
    check(text, inputs=[tensor("x", 2, 3, 20), tensor("y", 2, 3, 4, 6, 8)])


def test_max_pool_returns_the_first_of_equal_positions() -> None:
    text = "def f(x): return F.max_pool2d(x, 3, 2, 1, return_indices=True)"
    check(text, inputs=[tensor("x", 2, 3, 9, 12)], families=("normal", "small_integers", "constant_rows"))


@pytest.mark.parametrize("call", ["F.max_pool2d(x, 3, 2, 1)", "F.max_pool2d(x, 2)", "F.max_pool2d(x.relu(), 2)"])
def test_the_last_nan_of_a_window_gets_the_gradient(call: str) -> None:
    check(f"def f(x): return {call}", inputs=[tensor("x", 2, 3, 9, 12)], backward=True, families=("special_nan",))


def test_indices_of_windows_with_several_nans_are_those_of_the_last() -> None:
    text = "def f(x): return F.max_pool2d(x.log(), 3, 2, 1, return_indices=True)[1]"
    check(text, inputs=[tensor("x", 2, 3, 9, 12)])


def test_an_argmax_of_a_row_is_its_first_nan() -> None:
    check("def f(x): return x.log().argmax(-1)", inputs=[tensor("x", 7, 40)])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_sums_along_any_dim(dim: int) -> None:
    check(f"def f(x): return x.cumsum({dim}), x.flip({dim}).cumsum({dim}).flip({dim})", inputs=[tensor("x", 5, 33, 70)])


def test_running_products_and_integer_sums() -> None:
    inputs = [tensor("x", 5, 20), tensor("n", 5, 300, dtype="i64", within=(-9, 9))]
    check("def f(x, n): return x.cumprod(-1), n.cumsum(-1), (x > 0).cumsum(-1)", inputs=inputs)


def test_rows_of_any_length_are_scanned_in_packs_or_single_elements() -> None:
    sizes = ({}, {"B": 1, "D": 1}, {"B": 3, "D": 37}, {"B": 2, "D": 9000})
    checked = check("def f(x): return x.cumsum(1)", inputs=[tensor("x", 5, 300)], sizes=sizes)
    assert "launch[D % 4 == 0]" in checked.text


@pytest.mark.parametrize("call", ["cumsum", "cumprod", "cummax"])
def test_tiles_of_a_row_are_chained_over_blocks(call: str) -> None:
    sizes = ({}, {"B": 1, "D": 1}, {"B": 2, "D": 5003})
    schedule = {"f.chained": 1, "f.threads": 64, "f.items": 1}
    check(f"def f(x): return x.{call}(1)", inputs=[tensor("x", 5, 300)], schedule=schedule, sizes=sizes)


def test_tiles_of_columns_are_chained_over_blocks() -> None:
    schedule = {"f.chained": 1, "f.threads": 8, "f.rows": 8, "f.items": 2}
    sizes = ({}, {"B": 700, "D": 40})
    check("def f(x): return x.cumsum(0)", inputs=[tensor("x", 260, 7)], schedule=schedule, sizes=sizes)


@pytest.mark.parametrize("call", ["cummax", "cummin"])
def test_running_extremes_return_the_last_of_equal_positions(call: str) -> None:
    families = ("normal", "small_integers", "constant_rows", "special_nan")
    check(f"def f(x): return x.{call}(1)", inputs=[tensor("x", 3, 90)], families=families)


def test_running_log_sum_exp() -> None:
    check("def f(x): return x.logcumsumexp(1)", inputs=[tensor("x", 3, 90)], families=("normal", "large"))


def test_reversed_running_sums_are_one_kernel_in_packs() -> None:
    checked = check("def f(x): return x.flip(1).cumsum(1).flip(1)", inputs=[tensor("x", 3, 128)])
    assert "item[3 - v]" in checked.text
    assert "scratch:" not in checked.text


@pytest.mark.parametrize(
    "call",
    [
        "torch.cat((torch.zeros_like(x[:, :1]), x), 1).cumsum(1)[:, :-1]",
        "torch.cat((torch.zeros_like(x[:, :1]), x), 1)[:-1].cumsum(1)",
        "torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)), 1)",
        "torch.cat((torch.ones_like(x[:, :1]), x[:, :-1].cumprod(1)), 1)",
        "torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1].cumprod(1)), 1)",
    ],
)
def test_exclusive_running_sums_are_one_kernel(call: str) -> None:
    assert "scratch:" not in check(f"def f(x): return {call}", inputs=[tensor("x", 3, 130)]).text


def test_pointwise_readers_of_a_scan_are_written_where_it_is_made() -> None:
    text = "def f(x, m): return (x * m).cumsum(1).relu() + 1"
    checked = check(text, inputs=[tensor("x", 3, 130), tensor("m", 3, 130, dtype="bool")])
    assert "scratch:" not in checked.text


def test_running_sum_backward() -> None:
    check("def f(x): return (x.cumsum(1) * 2).exp()", inputs=[tensor("x", 5, 9)], backward=True)


def test_embedding_forward_and_backward() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 8)
        def forward(self, tokens): return self.table(tokens) * 2
    """
    inputs = [tensor("tokens", 3, 7, dtype="i64", within=(0, 11))]
    check(text, symbol="M", inputs=inputs, backward=True)


def test_gather_and_index_forward_and_backward() -> None:
    inputs = [
        tensor("x", 6, 9),
        tensor("i", 6, 4, dtype="i64", within=(0, 9)),
        tensor("j", 5, dtype="i64", within=(0, 6)),
    ]
    check("def f(x, i, j): return x.gather(1, i) * 2, x[j], x.index_select(0, j)", inputs=inputs, backward=True)


def test_scatter() -> None:
    inputs = [
        tensor("x", 6, 9),
        tensor("i", 6, 1, dtype="i64", within=(0, 9)),
        tensor("y", 6, 4),
        tensor("j", 6, 4, dtype="i64", within=(0, 9)),
    ]
    check("def f(x, i, y, j): return x.scatter(1, i, 2.5), x.scatter_add(1, j, y)", inputs=inputs)


def test_several_windows_of_a_thread_are_computed_without_a_branch() -> None:
    text = "def f(x): return F.avg_pool1d(x, 8, 1, 4), (x > 0).transpose(0, 1).contiguous()"
    schedule = {"f_out_0.unroll": 8, "f_out_1.unroll": 4, "f_out_1.vector": 1, "f.launches": "each"}
    checked = check(text, inputs=[tensor("x", 3, 4, 515)], schedule=schedule, sizes=({}, {"D": 7}))
    assert "return;" not in checked.text
    large = plan_text("def f(x): return F.avg_pool1d(x, 8, 1, 4)", inputs=[tensor("x", 64, 128, 8192)]).render({})
    assert "float out_values[8];" in large


def test_positions_of_an_interpolation_have_32_bits() -> None:
    text = "def f(x): return F.interpolate(x.view(-1, 3, 11, 13), size=(5, 6), mode='bilinear')"
    checked = check(text, inputs=[tensor("x", 2, 429)])
    assert "long long" not in checked.text


def test_interpolated_elements_that_gather_their_reads_come_in_pairs() -> None:
    text = "def f(x): return F.interpolate(x, size=(224, 224), mode='bilinear')"
    large = plan_text(text, inputs=[tensor("x", 32, 3, 512, 512)]).render({})
    assert "One thread per pack of 2 neighbouring elements." in large


def test_bilinear_upsampling() -> None:
    text = "def f(x): return F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)"
    check(text, inputs=[tensor("x", 2, 3, 5, 7)])


@pytest.mark.parametrize(
    "settings",
    ["size=(5, 9)", "size=(3, 1), align_corners=True", "size=(4, 15), align_corners=True", "scale_factor=1.7"],
)
def test_gradient_of_bilinear_upsampling(settings: str) -> None:
    text = f"def f(x): return F.interpolate(x, {settings}, mode='bilinear')"
    check(text, inputs=[tensor("x", 2, 3, 11, 4)], backward=True, sizes=({}, {"H": 2, "W": 30}))


def test_packed_weights_of_four_bits_are_expanded() -> None:
    text = """
    def f(packed, scale):
        halves = torch.stack((packed & 15, packed >> 4), -1).to(scale.dtype) - 8
        return (halves.view(6, 2, 8) * scale[:, :, None]).view(6, 16)
    """
    check(text, inputs=[tensor("packed", 6, 8, dtype="u8", within=(0, 256)), tensor("scale", 6, 2)])
