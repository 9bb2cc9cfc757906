"""Sums over the batch and over space beside reductions of rows: one kernel reads what both need."""

from __future__ import annotations

import pytest

from kernel_lsp.generate.schedule import column_knobs
from kernel_lsp.generate.structure import row_splits
from tests.generate.harness import check, plan_text, tensor

CHANNEL_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(40)); self.b = nn.Parameter(torch.rand(40))
    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        square = (x - mean).pow(2).mean(1, keepdim=True)
        return self.w[:, None, None] * ((x - mean) / torch.sqrt(square + 1e-6)) + self.b[:, None, None]
"""
RESPONSE_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.rand(1, 1, 1, 40)); self.b = nn.Parameter(torch.rand(1, 1, 1, 40))
    def forward(self, x):
        peak = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.g * (x * (peak / (peak.mean(dim=-1, keepdim=True) + 1e-6))) + self.b + x
"""
GATED_GROUP_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
    def forward(self, x): return F.silu(self.norm(x))
"""
EXCITED = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 16); self.b = nn.Linear(16, 64)
    def forward(self, x):
        s = torch.sigmoid(self.b(F.relu(self.a(x.mean((2, 3))))))
        return x * s[:, :, None, None]
"""
BATCH_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(CHANNELS)
    def forward(self, x, y): return F.relu(self.norm(x) + y)
"""
CASTS = {"bf16": "bfloat16", "f16": "half"}


@pytest.mark.parametrize("threads", [4, 8, 16])
def test_gradients_of_a_norm_over_channels_are_one_kernel_with_the_sums_of_its_weights(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_splits, "MIN_TILES_PER_PART", 0)
    checked = check(
        CHANNEL_NORM,
        symbol="M",
        inputs=[tensor("x", 3, 40, 6, 7)],
        backward=True,
        schedule={"m_backward_grad_x.threads": threads},
        families=("normal", "offset"),
        sizes=({}, {"B": 1, "H": 1}, {"B": 40, "H": 32, "W": 9}),
    )
    launches = [line for line in checked.text.splitlines() if line.startswith("// launch: m_backward")]
    assert len(launches) == 2
    assert "column_sums<" in checked.text  # two sums of a row are exchanged at once


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_gradients_of_a_norm_over_channels_of_16_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_splits, "MIN_TILES_PER_PART", 0)
    text = CHANNEL_NORM.replace("torch.rand(40)", f"torch.rand(48).{CASTS[dtype]}()")
    monkeypatch.setattr(column_knobs, "MAX_SIDE_ITEMS", 12)
    checked = check(text, symbol="M", inputs=[tensor("x", 2, 48, 6, 7, dtype=dtype)], backward=True)
    assert "hold_load" in checked.text


def test_few_rows_side_by_side_have_no_kernel_with_sums_over_rows() -> None:
    program = plan_text(CHANNEL_NORM, symbol="M", inputs=[tensor("x", 3, 40, 6, 7)], backward=True)
    assert "int tile = " not in program.render({})


def test_sums_of_weights_have_the_parts_of_other_sums_of_each_image() -> None:
    checked = check(
        RESPONSE_NORM,
        symbol="M",
        inputs=[tensor("x", 3, 7, 6, 40)],
        backward=True,
        sizes=({}, {"B": 1}, {"B": 5, "C": 9}),
    )
    kernels = [part for part in checked.text.split("__global__ ")[1:] if "grad_out[" in part or "grad_out)[" in part]
    assert len(kernels) == 2  # one reads it for all sums, one for grad_x
    assert "sum_parts" in kernels[0]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_sums_of_each_image_are_by_packs_of_less_than_16_bytes_in_16_bits(dtype: str) -> None:
    text = RESPONSE_NORM.replace("40", "384")
    if dtype != "f32":
        text = text.replace("    def forward", f"        self.{CASTS[dtype]}()\n    def forward")
    rendered = plan_text(text, symbol="M", inputs=[tensor("x", 32, 56, 56, 384, dtype=dtype)]).render({})
    kernel = rendered[rendered.index(" m_peak(") :].partition("\n}\n")[0]
    assert "packs<4>(x)" in kernel
    assert f"#pragma unroll {2 if dtype == 'f32' else 4}\n" in kernel


def test_sums_over_the_same_parts_share_a_kernel() -> None:
    text = "def f(x, y): return x.sum(0), (x * y).sum(0)"
    inputs = [tensor("x", 4100, 8), tensor("y", 4100, 8)]
    schedule = {"f.sum.split": 8, "f.sum_2.split": 8}
    checked = check(text, inputs=inputs, schedule=schedule, sizes=({}, {"B": 5}))
    assert checked.n_kernels == 2


def test_gradients_behind_a_group_norm_and_a_gate_keep_a_group_on_chip() -> None:
    checked = check(
        GATED_GROUP_NORM,
        symbol="M",
        inputs=[tensor("x", 3, 8, 16, 24)],
        backward=True,
        families=("normal", "offset"),
        sizes=({}, {"B": 1, "H": 8, "W": 8}),
    )
    assert "keeps: rstd" in checked.text
    assert checked.text.count("launch: m_backward") == 2
    assert "_of_line" in checked.text


def test_products_that_a_whole_plane_reads_are_computed_once_and_small_groups_share_launches() -> None:
    inputs = [tensor("x", 3, 64, 16, 24)]
    checked = check(EXCITED, symbol="M", inputs=inputs, backward=True, schedule={"m_backward.launches": "small"})
    kernel = next(part for part in checked.text.split("__global__ ")[1:] if "m_backward_grad_x(" in part[:80])
    assert "a_weight" not in kernel
    assert checked.text.count("keeps: ") == 2  # a view of what is kept is not


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_products_of_16_bits_that_a_whole_plane_reads_are_computed_once(dtype: str) -> None:
    """Roundings lie between a product and the gate that a plane reads, and between a product and its mean."""
    text = EXCITED.replace("nn.Linear(16, 64)", f"nn.Linear(16, 64); self.{CASTS[dtype]}()")
    checked = check(text, symbol="M", inputs=[tensor("x", 3, 64, 16, 24, dtype=dtype)], backward=True)
    for name in ("m_out", "m_backward_grad_x"):
        kernel = next(part for part in checked.text.split("__global__ ")[1:] if f" {name}(" in part[:80])
        assert "_weight" not in kernel.partition("\n}\n")[0]
    assert checked.text.count("keeps: ") == 2  # a product lies between the rounded mean and the gate


def test_small_groups_share_launches_beside_large_ones() -> None:
    inputs = [tensor("x", 32, 64, 56, 56)]
    assert "m_backward_together" in plan_text(EXCITED, symbol="M", inputs=inputs, backward=True).render({})


@pytest.mark.parametrize("n", [4096, 4100])
def test_moments_down_columns_are_those_of_parts_of_any_length(n: int) -> None:
    checked = check(
        "def f(x, w, b): return F.batch_norm(x, None, None, w, b, True)",
        inputs=[tensor("x", n, 64), tensor("w", 64), tensor("b", 64)],
        families=("normal", "offset", "constant_rows"),
        sizes=({}, {"B": 3}, {"B": 2049}),
    )
    assert "squares_parts" in checked.text
    assert checked.n_kernels == 3


def test_parts_down_columns_stay_in_registers_for_their_second_sum() -> None:
    text = "def f(x, w, b): return F.batch_norm(x, None, None, w, b, True)"
    rendered = plan_text(text, inputs=[tensor("x", 8192, 1024), tensor("w", 1024), tensor("b", 1024)]).render({})
    assert "x_row[32];" in rendered


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_gradients_of_moments_down_columns_read_what_all_rows_share_once(dtype: str) -> None:
    """In 16 bits by words of two columns: two loads per word, not six per element under the mask of a part's end."""
    text = BATCH_NORM.replace("BatchNorm2d(CHANNELS)", "BatchNorm1d(WIDTH)").replace(", y", "").replace(" + y", "")
    text = text.replace("relu", "silu")  # the sign of a value near 0 depends on its last bit
    if dtype != "f32":
        text = text.replace("    def forward", f"        self.{CASTS[dtype]}()\n    def forward")
    inputs = [tensor("x", 8192, 1024, dtype=dtype)]
    rendered = plan_text(text.replace("WIDTH", "1024"), symbol="M", inputs=inputs, backward=True).render({})
    kernel = next(part for part in rendered.split("__global__ ")[1:] if "m_backward_sum_parts_2(" in part[:80])
    loop = kernel[kernel.index("for (int col") : kernel.index("column_sums<")]
    assert ("packs<2>(x)" in loop) == (dtype != "f32")
    assert not any(
        f"{name}{bracket}" in loop for name in ("mean", "rstd", "norm_weight", "norm_bias") for bracket in "[)"
    )
    assert ("float mean_run[8];" in rendered) == (dtype != "f32")  # eight elements of 16 bits, in two loads
    wide = 4 if dtype == "f32" else 8
    schedule = {"m_out.vector": wide, "m_backward_grad_x.vector": wide, "m_backward_sum_parts_2.vector": wide // 4}
    narrow, sizes = text.replace("WIDTH", "64"), ({}, {"B": 3}, {"B": 2049})
    inputs = [tensor("x", 4100, 64, dtype=dtype)]
    check(narrow, symbol="M", inputs=inputs, backward=True, schedule=schedule, sizes=sizes)


def test_loads_of_rows_side_by_side_come_before_divisions() -> None:
    text = "def f(x): return F.normalize(x, dim=1)"
    checked = check(text, inputs=[tensor("x", 2, 32, 6, 7)], backward=True, schedule={"f_backward.cached": 1})
    assert "hold_load" not in checked.text  # a branch around each load of an open number of columns has the same effect
    rendered = plan_text(text, inputs=[tensor("x", 32, 128, 64, 64)], backward=True).render({})
    assert "launch[C == 128]: f_backward<<<" in rendered
    whole = rendered[rendered.index("void __launch_bounds__(512) f_backward(") :]
    assert "hold_load(x_row[item]);" in whole[: whole.index("column_sum<")]


@pytest.mark.parametrize(
    ("shape", "dtype", "has_residual", "blocks"),
    [
        ((32, 256, 28, 28), "f32", True, 4),
        ((64, 512, 28, 28), "f32", True, 8),
        ((64, 64, 56, 56), "f32", False, 16),
        ((32, 256, 28, 28), "bf16", True, 0),
        ((32, 256, 28, 28), "f16", True, 0),
    ],
    ids=["301 KB", "602 KB", "1.6 MB", "150 KB of bf16", "150 KB of f16"],
)
def test_gradients_of_a_batch_norm_run_as_clusters(
    shape: tuple[int, ...], dtype: str, blocks: int, *, has_residual: bool
) -> None:
    text = BATCH_NORM.replace("CHANNELS", str(shape[1])).replace(" + y", " + y" if has_residual else "")
    if dtype != "f32":
        text = text.replace("    def forward", f"        self.{CASTS[dtype]}()\n    def forward")
    inputs = [tensor("x", *shape, dtype=dtype), tensor("y", *shape, dtype=dtype)]
    program = plan_text(text, symbol="M", inputs=inputs, backward=True)
    backward = program.render({}).split("op: m_backward")[1]
    assert (f"cluster={blocks}\n" in backward) == (blocks > 0)  # rows of 16 bits are read again from L2
    assert blocks > 0 or ("<<<256, 1024>>>" in backward and "packs<8>(grad_out)" in backward)
