"""Rows that several blocks share, and pairs of dependent reductions in one pass."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernel_lsp.generate.codegen.helpers import HELPERS, HelperUse, render_helpers
from kernel_lsp.generate.schedule import row_fit, row_traits
from tests.generate.harness import check, plan_text, run, tensor

SPECIAL = ("normal", "special_nan", "special_inf", "large")
LAYER_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((4, 40, 64))
    def forward(self, x): return self.norm(x)
"""
GROUP_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
    def forward(self, x): return self.norm(x)
"""
WAYS = {
    "a cluster, in registers": {"blocks": 4, "threads": 64, "vector": 4, "cached": 1},
    "a cluster, parts of unequal length": {"blocks": 8, "threads": 128, "vector": 4, "cached": 1},
    "a cluster, read twice": {"blocks": 4, "threads": 64, "vector": 4, "cached": 0, "streaming": 1},
    "a grid, in registers": {"blocks": 64, "threads": 64, "vector": 2, "cached": 1, "staged": 0},
    "a grid, the next row in shared memory": {"blocks": 64, "threads": 64, "vector": 4, "staged": 1, "streaming": 1},
    "a grid, read twice": {"blocks": 64, "threads": 64, "vector": 4, "cached": 0},
    "one block, read once": {"blocks": 1, "threads": 128, "vector": 4, "cached": 0, "online": 1, "streaming": 1},
}


def schedule_of(kernel: str, way: str) -> dict[str, int | str]:
    return {f"{kernel}.{what}": value for what, value in {"cached": 1, **WAYS[way]}.items()}


@pytest.mark.parametrize("way", WAYS)
def test_layer_norm_of_long_rows_is_one_launch(way: str) -> None:
    checked = check(
        LAYER_NORM,
        symbol="M",
        inputs=[tensor("x", 3, 4, 40, 64)],
        schedule=schedule_of("m", way),
        families=("normal", "constant_rows"),
    )
    assert checked.n_kernels == 1


@pytest.mark.parametrize("blocks", [8, 32, 64])
def test_one_exchange_serves_both_sums_of_a_variance(blocks: int) -> None:
    checked = check(
        LAYER_NORM.replace("(4, 40, 64)", "(8, 16, 64)"),
        symbol="M",
        inputs=[tensor("x", 3, 8, 16, 64)],
        schedule={"m.cached": 1, "m.blocks": blocks, "m.threads": 64, "m.vector": 2},
        families=("normal", "constant_rows", "offset", "special_nan"),
    )
    assert "block_moments<64>(shifted_sum, squares, " in checked.text
    assert f"parts_moments<{blocks}>(" in checked.text


@pytest.mark.parametrize("way", WAYS)
def test_group_norm_of_any_image(way: str) -> None:
    sizes = ({}, {"H": 3, "W": 7}, {"H": 2, "W": 2})
    check(GROUP_NORM, symbol="M", inputs=[tensor("x", 3, 8, 40, 60)], schedule=schedule_of("m", way), sizes=sizes)


@pytest.mark.parametrize("way", WAYS)
def test_softmax_of_long_rows_keeps_nan_and_infinities(way: str) -> None:
    text = "def f(x): return x.softmax(-1)"
    check(text, inputs=[tensor("x", 3, 8200)], schedule=schedule_of("f", way), families=SPECIAL)


def test_the_next_row_is_copied_while_this_one_is_computed() -> None:
    way = "a grid, the next row in shared memory"
    checked = check(LAYER_NORM, symbol="M", inputs=[tensor("x", 5, 4, 40, 64)], schedule=schedule_of("m", way))
    assert "copy_past_l1(" in checked.text
    copies = [line for line in checked.text.splitlines() if "cp.async" in line]
    assert copies
    assert not any("cache_hint" in line for line in copies)  # an H100 stops there: "illegal instruction"


def test_a_variance_that_is_small_beside_the_mean_keeps_its_digits() -> None:
    text = "def f(x): return (x * 0.001 + 1000).var(-1)"
    check(text, inputs=[tensor("x", 2, 9000)], schedule={"f.online": 1, "f.threads": 64, "f.blocks": 1})


@pytest.mark.parametrize(
    "text",
    [
        "def f(x): return F.instance_norm(x)",
        "def f(x): return F.batch_norm(x, None, None, training=True)",
        "def f(x): return x / x.norm(p=2)",
        "def f(x): return x / x.abs().mean((2, 3), keepdim=True)",
        "def f(x): return x / x.amax((1, 2, 3), keepdim=True)",
    ],
)
def test_few_long_rows_are_one_launch_by_default(text: str) -> None:
    assert check(text, inputs=[tensor("x", 3, 2, 96, 96)], families=("normal", "constant_rows")).n_kernels == 1


def test_moments_of_numbers_whose_squares_overflow_are_no_nans() -> None:
    """PyTorch's variance is infinite there, too, so that each element becomes the bias."""
    text = "def f(x): return F.batch_norm(x, None, None, training=True)"
    schedule = {"f.online": 1, "f.threads": 64, "f.blocks": 1, "f.cached": 0}
    checked = check(text, inputs=[tensor("x", 3, 2, 96, 96)], schedule=schedule)
    assert "add_moments(" in checked.text
    x = np.random.default_rng(0).standard_normal((3, 2, 96, 96), dtype="f4")
    x[0, :, 0, 1:] = -8e31
    assert not run(checked, {"x": x})["out"].any()


@pytest.mark.parametrize(
    ("shape", "launch"),
    [
        ((512, 65536), "<<<B * 4, 512>>>(x, out, D) cluster=4"),
        ((512, 393216), "<<<B * 16, 512>>>(x, out, D) cluster=16"),
        ((512, 2**21), "<<<128, 1024, 131072>>>"),
        ((512, 2**23), "<<<B, 1024>>>"),
    ],
)
def test_many_rows_that_one_block_cannot_keep_are_shared_by_default(shape: tuple[int, int], launch: str) -> None:
    assert launch in plan_text("def f(x): return x / x.norm(dim=1, keepdim=True)", inputs=[tensor("x", *shape)]).render(
        {}
    )


@pytest.mark.parametrize(
    ("dtype", "launches"), [("f32", ("<<<B, 1024>>>", "<<<B * 8, 256>>>")), ("bf16", ("<<<B, 512>>>", "<<<B, 512>>>"))]
)
def test_exponentials_of_long_rows_are_taken_again_by_one_block(dtype: str, launches: tuple[str, str]) -> None:
    """They take longer than the reads that a cluster saves, but in f32 for gradients with kept peaks; the divergence
    itself is read once, with one logarithm of the quotient of its sums. One serves a row of probabilities."""
    text = "def f(x, y): return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='batchmean')"
    inputs = [tensor(name, 4096, 32000, dtype=dtype) for name in "xy"]
    program = plan_text(text, inputs=inputs, backward=True)
    for keeps, launch in enumerate(launches):
        found = program.realize({"f.keeps": keeps}).text
        assert "in one pass over the row" in found
        assert f"f_backward{launch}" in found
        assert found.count("cluster=") == launch.count("* 8")
    found = program.realize({"f.keeps": 0}).text.replace("quick_quotient(sum_exp, sum_exp_2)", "sum_exp / sum_exp_2")
    assert sorted(re.findall(r"logf?\(([\w /]+)\)", found)) == ["sum_exp", "sum_exp / sum_exp_2", "sum_exp_2"]


def test_blocks_combine_the_peaks_and_sums_of_two_rows_at_once() -> None:
    text = "def f(x, y): return (x.softmax(-1) * y.log_softmax(-1)).sum(-1)"
    schedule = {"f.sum.split": 1, "f.blocks": 4, "f.threads": 128, "f.vector": 4, "f.cached": 1}
    inputs = [tensor(name, 3, 8200) for name in "xy"]
    found = check(text, inputs=inputs, schedule=schedule, families=SPECIAL).text
    assert found.count("block_maxima<128>(peak, peak_2)") == 1
    assert found.count("block_sums<128>(sum_exp, sum_exp_2, sum_to_peak)") == 1


def test_the_first_staged_row_has_the_type_of_a_row() -> None:
    program = plan_text("def f(x): return x.softmax(-1)", inputs=[tensor("x", 1024, 2**21)])
    text = program.render({"f.blocks": 64, "f.threads": 1024, "f.cached": 1, "f.vector": 4, "f.staged": 1})
    assert "min((long long)blockIdx.x / 64, B - 1)" in text  # of two types, min is ambiguous


def test_cross_entropy_of_few_short_rows_is_one_launch() -> None:
    text = "def f(x, t): return F.cross_entropy(x, t)"
    inputs = [tensor("x", 64, 10), tensor("t", 64, dtype="i64", within=(0, 9))]
    schedule = {"f.peak.inlined": 1, "f.sum_exp.inlined": 1}
    assert check(text, inputs=inputs, schedule=schedule, sizes=({}, {"B": 3, "D": 7})).n_kernels == 1


def test_cross_entropy_of_long_rows_stores_one_loss_per_row() -> None:
    text = "def f(x, t): return F.cross_entropy(x, t)"
    inputs = [tensor("x", 300, 1500), tensor("t", 300, dtype="i64", within=(0, 1499))]
    checked = check(text, inputs=inputs, schedule={"f_chosen.threads": 64, "f_chosen.vector": 4, "f_chosen.online": 1})
    assert [str(scratch.dims[0]) for scratch in checked.plan.forward.scratch] == ["B"]


CLIPPED = """
def f(x, y):
    scale = torch.clamp(1 / (x.pow(2).sum() + y.pow(2).sum()).sqrt(), max=1.0)
    return x * scale, y * scale
"""


def test_a_norm_of_several_tensors_is_split_by_default() -> None:
    checked = check(CLIPPED, inputs=[tensor("x", 128, 128), tensor("y", 96, 128)])
    assert {knob.default for knob in checked.program.knobs if knob.name.endswith(".split")} == {8, 4}
    inputs = [tensor("x", 4096, 2048), tensor("y", 4096, 1536)]
    assert plan_text(CLIPPED, inputs=inputs).realize({}).is_valid


def test_several_exchanges_of_a_grid_have_a_scratch_each() -> None:
    checked = check(
        "def f(x, w): return F.layer_norm(x, w.shape, w)",
        inputs=[tensor("x", 1, 8192), tensor("w", 8192)],
        backward=True,
        schedule={"f_backward.blocks": 32, "f_backward.threads": 64},
    )
    assert checked.plan.backward is not None
    names = [tensor.name for tensor in checked.plan.backward.scratch]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_sums_over_rows_stage_the_next_row(dtype: str) -> None:
    """The gradients of a norm behind a residual addition: a block copies its next row meanwhile."""
    text = "def f(x, r, w, b): return torch.nn.functional.layer_norm(x + r, w.shape, w, b), x + r"
    inputs = [tensor("x", 300, 96, dtype=dtype), tensor("r", 300, 96, dtype=dtype), tensor("w", 96, dtype=dtype)]
    inputs.append(tensor("b", 96, dtype=dtype))
    checked = check(text, inputs=inputs, backward=True, sizes=({}, {"B": 3}, {"B": 133, "D": 68}))
    assert "copy_pack(&next_" in checked.text
    assert "block_sums<" in checked.text
    assert checked.text.split("f_backward_grad_r(")[1].count("packs<4>(w)") == 1  # before the first row


def test_weights_of_many_columns_are_loaded_for_every_row() -> None:
    """Registers hold a row and its sums, then no weights beside them."""
    text = "def f(x, r, w, b): return torch.nn.functional.layer_norm(x + r, w.shape, w, b), x + r"
    for n_columns, n_loads in ((4096, 1), (8192, 2)):
        shapes = {"x": (8192, n_columns), "r": (8192, n_columns), "w": (n_columns,), "b": (n_columns,)}
        inputs = [tensor(name, *shape) for name, shape in shapes.items()]
        kernel = plan_text(text, inputs=inputs, backward=True).render({}).split("f_backward_grad_r(")[1]
        assert kernel.split("__global__")[0].count("packs<4>(w)") == n_loads, n_columns


def test_rows_whose_results_read_another_tensor_have_more_threads() -> None:
    inputs = [tensor("x", 8192, 8192, dtype="bf16")]
    for operator, threads in (("log_softmax", 512), ("softmax", 256)):
        found = plan_text(f"def f(x): return F.{operator}(x, -1)", inputs=inputs, backward=True).render({})
        assert f"f_backward<<<B, {threads}>>>(" in found


def test_sums_of_channels_join_the_kernel_of_their_group() -> None:
    """The gradient of a group norm adds up weighted sums of channels: one kernel reads a group, in a cluster."""
    schedule = {f"m_backward_grad_x.{knob}": value for knob, value in (("blocks", 2), ("threads", 512), ("cached", 1))}
    schedule |= {"m_backward.sum.of_lines": 0, "m_backward.sum_2.of_lines": 0}
    inputs = [tensor("x", 3, 8, 40, 60)]
    checked = check(GROUP_NORM, symbol="M", inputs=inputs, backward=True, schedule=schedule, sizes=({}, {"H": 7}))
    not_flat = {"m_backward.sum_3.flat": 0, "m_backward.sum_4.flat": 0}
    apart = checked.program.render({**schedule, **not_flat})
    assert checked.text.count("// launch:") < apart.count("// launch:")


def test_helpers_of_two_types_are_overloads() -> None:
    """One text may have both: the loss of smoothed labels counts in integers and adds floats."""
    names = [name for name, text in HELPERS.items() if "{T}" in text and ":" not in name]
    text = render_helpers(HelperUse(name, type_) for name in names for type_ in ("float", "int"))
    signatures = re.findall(r"^((?:template <[^\n]*>\n)?__device__ inline [^{]*\)) \{", text, re.MULTILINE)
    typed = [each for each in signatures if re.search(rf"\b({'|'.join(names)})\(", each)]
    assert len(typed) == len(set(typed)) > len(names)


def test_a_depthwise_convolution_between_norms_has_a_kernel_of_its_own() -> None:
    text = """
        def f(x, w, filters):
            x = F.batch_norm(x, None, None, w, w, training=True).relu()
            x = F.conv2d(x, filters, padding=1, groups=8)
            return F.batch_norm(x, None, None, w, w, training=True)
    """
    inputs = [tensor("x", 2, 8, 16, 16), tensor("w", 8), tensor("filters", 8, 1, 3, 3)]
    checked = check(text, inputs=inputs)
    assert checked.n_kernels == 3, checked.text


def test_gradients_of_rows_without_sums_take_small_blocks() -> None:
    text = "def f(x, y): return F.cross_entropy(x, y)"
    inputs = [tensor("x", 4096, 32000), tensor("y", 4096, dtype="i64", within=(0, 32000))]
    found = plan_text(text, inputs=inputs, backward=True).render({})
    assert "f_backward<<<B, 256>>>" in found
    assert "One block of 256 threads per row: difference in one pass over the row." in found


HELD_WAYS = {
    "a cluster, in registers": {"blocks": 8, "threads": 64, "vector": 4, "cached": 2},
    "a cluster, and in shared memory": {"blocks": 2, "threads": 64, "vector": 4, "cached": 2},
    "a cluster, single elements in shared memory": {"blocks": 2, "threads": 64, "vector": 1, "cached": 2},
    "a grid, in registers": {"blocks": 32, "threads": 64, "vector": 2, "cached": 2},
}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("def f(x, w): return F.layer_norm(x, w.shape, w)", (1, 5000)),
        ("def f(x): return F.layer_norm(x, x.shape[1:])", (3, 5000)),
        ("def f(x, w): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w", (1, 5000)),
    ],
)
@pytest.mark.parametrize("way", HELD_WAYS)
def test_blocks_hold_what_a_second_pass_needs(way: str, text: str, shape: tuple[int, int]) -> None:
    """The gradients of a norm read each tensor once; the last blocks have fewer packs than the others."""
    inputs = [tensor("x", *shape), *([tensor("w", shape[1])] if "w" in text else [])]
    schedule = {f"f_backward.{knob}": value for knob, value in HELD_WAYS[way].items()}
    checked = check(text, inputs=inputs, backward=True, schedule=schedule)
    kernel = checked.text[checked.text.index(" f_backward(\n") :]
    assert ("extern __shared__ uint4 held[];" in kernel) == ("shared memory" in way)
    second_pass = kernel[kernel.index("parts_sum<") :]
    assert "kept_" in second_pass
    assert not re.search(r"(?<!\.)\b(grad_out|x|w)\b", second_pass)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("held", {"blocks": 2, "threads": 64, "vector": 4, "cached": 2}),
        ("next_row", WAYS["a grid, the next row in shared memory"]),
    ],
)
def test_a_tensor_may_have_the_name_of_shared_memory(name: str, way: dict[str, int]) -> None:
    schedule = {f"f_backward.{knob}": value for knob, value in {"cached": 1, **way}.items()}
    text = f"def f({name}): return F.layer_norm({name}, {name}.shape[1:])"
    checked = check(text, inputs=[tensor(name, 3, 5000)], backward=True, schedule=schedule)
    assert f"extern __shared__ uint4 {name}_2[];" in checked.text


def test_gradients_of_one_long_norm_are_held_by_default() -> None:
    inputs = [tensor(name, *shape) for name, shape in (("x", (1, 64, 256, 256)), ("w", (64, 256, 256)))]
    found = plan_text("def f(x, w): return F.layer_norm(x, w.shape, w, w)", inputs=inputs, backward=True).render({})
    assert "f_backward<<<128, 1024, 131072>>>" in found
    assert not re.search(r"(?<!\.)\b(grad_out|x)\b", found[found.rindex("parts_sum<") :])


def test_rows_whose_results_read_weights_have_more_threads() -> None:
    for n_columns, weight, threads in ((4096, "w", 512), (4096, "None", 256), (2048, "w", 256)):
        inputs = [tensor("x", 16384, n_columns), tensor("w", n_columns)]
        found = plan_text(f"def f(x, w): return F.layer_norm(x, w.shape, {weight})", inputs=inputs).render({})
        assert f"f<<<B, {threads}>>>(" in found


@pytest.mark.parametrize("blocks", [4, 64])
def test_rows_of_the_captured_length_have_a_kernel_without_bounds_checks(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_fit, "MIN_WHOLE_ELEMENTS", 1)
    schedule = {"f.cached": 1, "f.blocks": blocks, "f.threads": 64, "f.vector": 2}
    length = 16384
    checked = check(
        "def f(x, weight, bias): return F.layer_norm(x, weight.shape, weight, bias)",
        inputs=[tensor("x", 3, length), tensor("weight", length), tensor("bias", length)],
        schedule=schedule,
        families=("normal", "constant_rows", "special_nan"),
        sizes=({}, {"D": length - 2}, {"D": 6}, {"B": 1}),
    )
    whole, rest = checked.plan.forward.steps
    assert f"== {length}" in str(whole.condition)
    assert f"not D == {length}" in str(rest.condition)
    before, _, after = checked.text.partition(" f_any_size(")
    assert "if (pack < " not in before.split("__global__")[1]
    assert "if (pack < " in after


def test_rows_of_f32_in_registers_leave_the_l2_cache_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_traits.RowTraits.is_large, "__defaults__", (1 << 12,))
    inputs = [tensor("x", 3, 1024)]
    checked = check(
        "def f(x): return x.softmax(-1)", inputs=inputs, families=SPECIAL, sizes=({}, {"D": 1020}, {"D": 4})
    )
    assert "x_row[item] = load_kept(&packs<4>(x)[" in checked.text
    early = check("def f(x): return x.softmax(-1)", inputs=inputs, schedule={"f.streaming": 1})
    assert "load_kept(" not in early.text


def test_rows_of_16_bits_leave_the_l2_cache_last_where_they_have_one_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_traits.RowTraits.is_large, "__defaults__", (1 << 12,))
    monkeypatch.setattr(row_fit, "MIN_WHOLE_ELEMENTS", 1)
    inputs = [
        tensor(name, *shape, dtype="bf16") for name, shape in {"x": (3, 2048), "w": (2048,), "b": (2048,)}.items()
    ]
    rms = (
        "def f(x, w): return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w"
    )
    checked = check(rms, inputs=inputs[:2], sizes=({}, {"D": 2040}, {"D": 8}))
    assert "f_any_size" in checked.text
    assert "x_row[item] = load_kept(&packs<8>(x)[" in checked.text
    layer = check("def f(x, w, b): return F.layer_norm(x, w.shape, w, b)", inputs=inputs)
    assert "x_row[item] = packs<8>(x)[" in layer.text
    assert "load_kept(" not in layer.text
