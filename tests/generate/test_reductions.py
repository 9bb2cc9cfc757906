"""Reductions over any dims, and rows of dependent ones in one kernel."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernel_lsp.generate.structure import row_splits
from tests.generate.harness import check, plan_text, run, tensor

SPECIAL = ("normal", "special_nan", "special_inf", "large")


@pytest.mark.parametrize("dim", ["-1", "0", "1", "(0, 2)", "(1, 2)", "(0, 1, 2)"])
def test_sums_over_any_dims(dim: str) -> None:
    check(f"def f(x): return x.sum({dim}), x.mean({dim}, keepdim=True)", inputs=[tensor("x", 5, 33, 7)])


@pytest.mark.parametrize("order", ["2.0", "1.0", "0.0", "3.0", "float('inf')"])
def test_distances_of_all_pairs_of_rows(order: str) -> None:
    text = f"def f(x): return torch.pdist(x, {order})"
    check(text, inputs=[tensor("x", 33, 16)], sizes=({}, {"B": 2}, {"B": 70, "D": 5}))


def test_a_row_has_no_distance_from_itself() -> None:
    """By products it had 0.01, and PyTorch another rounding: no kernel of `cdist` of one tensor was verified."""
    checked = check("def f(x): return torch.cdist(x, x)", inputs=[tensor("x", 30, 300)], families=("normal", "uniform"))
    x = np.random.default_rng(0).random((30, 300), np.float32)
    assert (np.diagonal(run(checked, {"x": x})["out"]) == 0).all()


@pytest.mark.parametrize("length", [2, 17])
def test_distances_by_products_have_the_rounding_of_their_terms(length: int) -> None:
    """On the diagonal all terms cancel: a root of 1e-7 is 3e-4, and 0 in PyTorch by chance."""
    text = """
        def f(x):
            n = (x * x).sum(1)
            return (n[:, None] + n[None, :] - 2 * x @ x.t()).clamp_min(0).sqrt()
    """
    check(text, inputs=[tensor("x", 6, length)], families=("normal", "uniform", "constant_rows"))


@pytest.mark.parametrize("dims", ["-1, True", ""])
def test_the_gradient_of_a_normalization_by_extremes(dims: str) -> None:
    """It divides by the number of equal extremes, an integer that no memory holds."""
    text = f"def f(x): return (x - x.amin({dims})) / (x.amax({dims}) - x.amin({dims}))"
    check(text, inputs=[tensor("x", 12, 80)], backward=True, families=("normal", "zeros"))


@pytest.mark.parametrize("dim", [-1, 0])
def test_extremes_keep_nan_and_take_the_first_of_equals(dim: int) -> None:
    calls = f"x.amax({dim}), x.amin({dim}), *x.max({dim}), *x.min({dim}), x.argmax({dim}), x.argmin({dim})"
    check(f"def f(x): return {calls}", inputs=[tensor("x", 9, 37)], families=(*SPECIAL, "small_integers"))


def test_variances_and_norms() -> None:
    calls = (
        "x.var(-1), x.std(0, unbiased=False), x.norm(dim=-1), x.norm(p=1, dim=0), x.abs().amax(), *torch.var_mean(x, 1)"
    )
    check(f"def f(x): return {calls}", inputs=[tensor("x", 9, 130)], families=("normal", "constant_rows"))


def test_products_any_and_all() -> None:
    calls = "x.prod(-1), (x > 0).any(-1), (x > -3).all(0), (x > 0).sum(1), x.logsumexp(-1)"
    check(f"def f(x): return {calls}", inputs=[tensor("x", 9, 16)])


@pytest.mark.parametrize("shape", [(4, 10), (4, 100), (3, 1000), (2, 5000)])
def test_softmax_of_rows_of_any_length_is_one_kernel(shape: tuple[int, int]) -> None:
    assert check("def f(x): return x.softmax(-1)", inputs=[tensor("x", *shape)], families=SPECIAL).n_kernels == 1


def test_softmax_over_a_middle_dim_reads_neighbouring_columns() -> None:
    text = "def f(x): return x.softmax(1), x.log_softmax(1)"
    assert check(text, inputs=[tensor("x", 2, 40, 33)]).n_kernels == 1


@pytest.mark.parametrize(("rows", "threads", "cached"), [(64, 8, 1), (128, 1, 1), (256, 4, 0)])
def test_rows_side_by_side_in_wide_blocks(rows: int, threads: int, cached: int) -> None:
    text = "def f(x): return x.softmax(1)"
    schedule = {"f.rows": rows, "f.threads": threads, "f.cached": cached}
    checked = check(text, inputs=[tensor("x", 2, 40, 133)], schedule=schedule, families=SPECIAL)
    assert f"ceil_div(B * D, {rows}), {rows * threads}" in checked.text
    assert ("x_row[item]" in checked.text) == bool(cached)


@pytest.mark.parametrize(("vector", "threads", "dtype"), [(8, 16, "bf16"), (4, 8, "f32"), (2, 1, "f16"), (4, 2, "f32")])
def test_threads_take_packs_of_rows_side_by_side(vector: int, threads: int, dtype: str) -> None:
    checked = check(
        "def f(x): return x.sum(1)",
        inputs=[tensor("x", 3, 40, 96, dtype=dtype)],
        schedule={"f.vector": vector, "f.threads": threads, "f.rows": 32},
        families=SPECIAL,
        sizes=({}, {"B": 1, "T": 7, "N": 8}),
    )
    assert f"packs of {vector} neighbouring rows" in checked.text
    assert ("column_sums<" in checked.text) == (threads > 1)


@pytest.mark.parametrize(
    ("shape", "dim", "is_packed"),
    [((128, 4096, 4096), 1, False), ((128, 4096, 4095), 1, False), ((4096, 64, 4095), 0, True)],
)
def test_rows_side_by_side_are_packs_by_default_where_a_load_takes_one(
    shape: tuple[int, ...], dim: int, is_packed: bool
) -> None:
    """Expect none where the number of columns is open: a pack may span two lines, which no load takes."""
    text = plan_text(f"def f(x): return x.sum({dim})", inputs=[tensor("x", *shape)]).render({})
    assert ("packs of 4 neighbouring rows" in text) == is_packed


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_quotients_and_roots_of_rows_of_16_bits_need_not_be_exact(dtype: str) -> None:
    """A mean has one: its sum may be exact, and its rounding to 16 bits then is the only one."""
    text = "def f(x): return F.normalize(x, dim=1), x.mean(1)"
    families = ("normal", "special_nan", "special_inf")
    checked = check(text, inputs=[tensor("x", 9, 48, dtype=dtype)], backward=True, families=families)
    forward, _, backward = checked.text.partition(" f_backward(\n")
    assert "quick_quotient(" in backward
    assert "quick_root(" in forward
    assert "sum / (float)D" in forward


ROTATION = """
def f(q, cos, sin):
    first, second = q.chunk(2, -1)
    return q * cos + torch.cat((-second, first), -1) * sin
"""


def rotated(dtype: str, *shape: int) -> list[object]:
    return [tensor("q", *shape, dtype=dtype), *(tensor(name, *shape[-2:], dtype=dtype) for name in ("cos", "sin"))]


@pytest.mark.parametrize(
    ("vector", "threads", "dtype"), [(8, 16, "bf16"), (4, 8, "f32"), (2, 1, "f16"), (1, 4, "bf16")]
)
def test_results_join_the_sums_of_the_rows_that_they_read(
    vector: int, threads: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_splits, "MIN_JOINED_ROWS", 0)
    checked = check(
        ROTATION,
        inputs=rotated(dtype, 3, 4, 8, 32),
        backward=True,
        schedule={"f_backward.vector": vector, "f_backward.threads": threads, "f_backward.rows": 32},
        sizes=({}, {"B": 1, "H": 3, "W": 48}),
    )
    assert checked.plan.backward is not None
    assert len(checked.plan.backward.steps) == 1


@pytest.mark.parametrize("n_heads", [8, 32])
def test_gradients_of_a_large_rotation_read_memory_once_by_packs(n_heads: int) -> None:
    program = plan_text(ROTATION, inputs=rotated("bf16", 4, n_heads, 2048, 128), backward=True)
    backward = program.render({}).partition("// op: f_backward")[2]
    assert "// launch: f_backward<<<ceil_div(H * W, 256), 256>>>" in backward
    apart = {f"f_backward.{name}.joined": 0 for name in ("sum", "sum_2")}
    assert "f_backward_grad_q(block" in program.render(apart)  # a part of the launch


def test_large_rows_side_by_side_stay_in_registers() -> None:
    program = plan_text("def f(x): return x / x.norm(dim=1, keepdim=True)", inputs=[tensor("x", 64, 64, 256, 256)])
    assert "where: C <= 64" in program.render({})


def test_a_position_over_a_middle_dim_is_the_first_of_equals_in_any_lane() -> None:
    text = "def f(x): return x.argmax(1), x.argmin(1)"
    for rows, threads in ((32, 16), (64, 2)):
        schedule = {"f.rows": rows, "f.threads": threads}
        check(text, inputs=[tensor("x", 2, 37, 70)], families=(*SPECIAL, "small_integers"), schedule=schedule)


def test_a_position_in_a_large_tensor_leaves_registers_for_loads() -> None:
    program = plan_text("def f(x): return x.argmax(1)", inputs=[tensor("x", 128, 4096, 4095)])
    assert "__launch_bounds__(512, 3)" in program.render({})


def test_masked_softmax_with_temperature() -> None:
    text = "def f(x, mask): return (x / 0.7).masked_fill(mask, float('-inf')).softmax(-1)"
    check(text, inputs=[tensor("x", 4, 6, 40), tensor("mask", 6, 40, dtype="bool")], families=("normal",))


RMS_NORM = """
class RMSNorm(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return (x * torch.rsqrt(variance + 1e-6)).to(x.dtype) * self.weight.to(x.dtype)
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rms_norm_forward_and_backward(dtype: str) -> None:
    inputs = [tensor("x", 4, 5, 64, dtype=dtype)]
    checked = check(RMS_NORM, symbol="RMSNorm", inputs=inputs, backward=True, sizes=({}, {"B": 3, "T": 7}))
    assert checked.n_kernels == 1
    assert "in 3 passes" not in checked.text


def test_the_gradient_of_a_fused_rms_norm_adds_epsilon_in_place() -> None:
    text = "def f(x, w): return F.rms_norm(x, (64,), w, 1e-6)"
    check(text, inputs=[tensor("x", 6, 64), tensor("w", 64)], backward=True, families=("normal", "scaled_down"))


def test_a_long_row_is_shared_by_blocks_or_split_over_launches() -> None:
    text = "def f(x): return F.layer_norm(x, x.shape[1:])"
    inputs = [tensor("x", 1, 16, 40, 64)]
    assert check(text, inputs=inputs).n_kernels == 1
    assert check(text, inputs=inputs, schedule={"f.shifted_sum.split": 8, "f.squares.split": 8}).n_kernels > 1


def test_parts_of_a_sum_to_one_value_are_rows() -> None:
    text = "def f(x, w): return (x * w).sum(), x.amax()"
    inputs = [tensor("x", 3, 200, 2, 1024), tensor("w", 1024)]
    schedule = {"f.sum.by_rows": 1, "f.amax.by_rows": 1, "f.launches": "each"}
    checked = check(text, inputs=inputs, schedule=schedule, families=("normal", "special_nan"))
    assert "<<<B * C, " in checked.text
    assert "is_below" not in checked.text
    large = plan_text(text, inputs=[tensor("x", 64, 64, 64, 128), tensor("w", 128)]).render({})
    assert "<<<B * C, 512>>>" in large
    assert "packs<4>(w)" in large


def test_layer_norm_forward_and_backward() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(48)
        def forward(self, x): return F.silu(self.norm(x))
    """
    check(text, symbol="M", inputs=[tensor("x", 6, 5, 48)], backward=True, families=("normal", "constant_rows"))


def test_group_norm_with_silu_forward_and_backward() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(2, 8)
        def forward(self, x): return F.silu(self.norm(x))
    """
    check(text, symbol="M", inputs=[tensor("x", 3, 8, 5, 6)], backward=True, sizes=({}, {"B": 2, "H": 3, "W": 7}))


def test_batch_norm_of_a_batch_and_in_inference() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(5).eval()
        def forward(self, x):
            return self.norm(x), F.batch_norm(x, None, None, training=True)
    """
    check(text, symbol="M", inputs=[tensor("x", 3, 5, 6, 7)])


def test_instance_norm() -> None:
    check("def f(x): return F.instance_norm(x)", inputs=[tensor("x", 3, 5, 6, 7)], backward=True)


def test_a_row_cached_in_registers_is_read_once() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(256))
        def forward(self, x): return x.softmax(-1) * self.w
    """
    checked = check(
        text, symbol="M", inputs=[tensor("x", 5, 256)], schedule={"m.cached": 1, "m.threads": 32, "m.vector": 4}
    )
    assert checked.text.count("packs<4>(x)") == 1
    assert checked.text.count("const int pack = ") == 2  # the pass over registers alone names no place


def test_gradients_of_a_norm_are_summed_over_rows_in_registers() -> None:
    checked = check(
        "def f(x, w): return F.rms_norm(x, w.shape, w, 1e-6)",
        inputs=[tensor("x", 600, 520), tensor("w", 520)],
        backward=True,
        sizes=({}, {"B": 3, "D": 64}),
    )
    assert "takes the rows of a part" in checked.text


def test_a_few_threads_of_a_block_share_its_one_row() -> None:
    checked = check(
        "def f(x): return x.softmax(-1)", inputs=[tensor("x", 5, 600)], schedule={"f.threads": 8, "f.rows": 1}
    )
    assert "<<<B, 8>>>" in checked.text


def test_long_rows_of_large_tensors_stay_in_registers_up_to_a_length() -> None:
    program = plan_text("def f(x): return x.softmax(-1)", inputs=[tensor("x", 4096, 4096)])
    assert "where: D <= 4096" in program.render({})


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_exponentials_that_several_passes_need_are_computed_once(dtype: str) -> None:
    cached = {"f.keeps": 0, "f_backward.cached": 1, "f_backward.threads": 64, "f_backward.vector": 4}
    checked = check(
        "def f(x): return x.softmax(-1)", inputs=[tensor("x", 5, 512, dtype=dtype)], backward=True, schedule=cached
    )
    backward = checked.text.rpartition("__global__")[2]
    assert backward.count("expf(") == 1
    assert len(re.findall(r"1.0f(?:, | / )sum_exp", backward)) == 1


@pytest.mark.parametrize(
    ("text", "sizes", "vector"),
    [
        ("def f(x): return x.amin(2).softmax(1)", (2, 24, 5, 33), 1),
        ("def f(x): return x.amin(1).softmax(-1)", (2, 5, 512), 4),
    ],
)
def test_reads_of_a_loop_within_a_cached_row_stay_in_the_loop(text: str, sizes: tuple[int, ...], vector: int) -> None:
    schedule = {"f.amin.inlined": 1, "f.cached": 1, "f.vector": vector}
    checked = check(text, inputs=[tensor("x", *sizes)], schedule=schedule, families=SPECIAL)
    assert checked.n_kernels == 1
    assert "stays in registers" in checked.text
