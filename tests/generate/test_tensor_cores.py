"""Contractions on tensor cores: every layout and type, ragged sizes, infinities, schedules, epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import TensorCoreSchedule, is_valid_schedule
from kernel_lsp.generate.program import plan_program
from kernel_lsp.gpu.specs import find_gpu
from tests.generate.harness import Checked, check_program, plan_text, run, tensor

LAYOUTS = {
    "rows by columns": ("a @ b.t()", (40, 72), (56, 72)),
    "rows by rows": ("a @ b", (40, 72), (72, 56)),
    "columns by rows": ("a.t() @ b", (72, 40), (72, 56)),
    "columns by columns": ("a.t() @ b.t()", (72, 40), (56, 72)),
}
RAGGED = {"rows by columns": ((37, 51), (19, 51)), "columns by rows": ((51, 37), (51, 19))}
GROUPS = {"warpgroups": 1, "tile_m": 64, "tile_n": 64, "tile_k": 32, "warps_m": 4, "warps_n": 1, "stages": 4}
STRIP = {"strip": 8, "tile_m": 64, "tile_n": 64, "tile_k": 32, "warps_m": 2, "warps_n": 2, "stages": 3, "chain": 0}
CONVOLUTION = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = {layer}
    def forward(self, x): return F.relu(self.conv(x))
"""


def check(
    text: str, inputs: Sequence[Any], *, symbol: str = "f", knobs: dict[str, Any] | None = None, **how: Any
) -> Checked:
    """Assert that every contraction of the text is right on tensor cores. `knobs` are set in all of its kernels."""
    program = plan_text(text, inputs=inputs, symbol=symbol, backward=how.pop("backward", False))
    ways = {knob.name: "tensor_cores" for knob in program.knobs if "tensor_cores" in knob.values}
    assert ways
    offered = [knob.name for knob in program.realize(ways).knobs]
    wanted = {name: value for name in offered for knob, value in (knobs or {}).items() if name.endswith(f".{knob}")}
    schedule = {**ways, **wanted}
    assert program.is_valid(schedule)
    checked = check_program(program, schedule=schedule, **how)
    assert "multiply_" in checked.text
    return checked


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_factors_lie_in_memory_either_way(layout: str, dtype: str) -> None:
    call, left, right = LAYOUTS[layout]
    inputs = [tensor("a", *left, dtype=dtype), tensor("b", *right, dtype=dtype)]
    check(f"def f(a, b): return {call}", inputs)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("layout", RAGGED)
def test_sizes_need_not_fit_tiles_or_copies(layout: str, dtype: str) -> None:
    left, right = RAGGED[layout]
    inputs = [tensor("a", *left, dtype=dtype), tensor("b", *right, dtype=dtype)]
    check(f"def f(a, b): return {LAYOUTS[layout][0]}", inputs, sizes=({}, {"B": 1}, {"D": 130}))


def test_wide_copies_put_their_condition_into_the_contract() -> None:
    checked = check("def f(a, b): return a @ b", [tensor("a", 8, 16), tensor("b", 16, 24)])
    assert "// where: D % 4 == 0" in checked.text
    assert "copy_async<16>" in checked.text


EXTREMES = {
    "an infinity": [np.inf, 1.0],
    "infinities of both signs": [np.inf, -np.inf],
    "NaN": [np.nan, 1.0],
    "a number that TF32 rounds up to an infinity": [3.4028235e38, 0.0],
    "numbers whose low parts underflow": [1.2345678e-36, -3.4567891e-37],
    "subnormal numbers": [1.2345678e-38, 3.4567891e-39],
}


@pytest.mark.parametrize(
    "knobs", [{}, {"cluster": 2, "tile_k": 8}, GROUPS, STRIP], ids=["warp", "cluster", "warpgroup", "strip"]
)
def test_extreme_numbers_give_what_f32_gives(knobs: dict[str, int]) -> None:
    checked = check("def f(a, b): return a @ b", [tensor("a", 20, 24), tensor("b", 24, 16)], knobs=knobs)
    left, right = np.ones((len(EXTREMES), 24), "f4"), np.full((24, 16), 0.75, "f4")
    for row, numbers in zip(left, EXTREMES.values(), strict=True):
        row[:] = 0.0 if max(map(abs, numbers)) > 1e38 or max(numbers) < 1e-30 else 1.0
        row[5], row[17] = numbers
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = left.astype("f8") @ right.astype("f8")
    found = run(checked, {"a": left, "b": right})["out"]
    for name, one, other in zip(EXTREMES, found, wanted.astype("f4"), strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-7, atol=3e-45, err_msg=name)


LINEAR = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, 20)
    def forward(self, x): return F.silu(self.fc(x)) * 0.5
"""


@pytest.mark.parametrize("family", ["special_inf", "subnormal", "minute", "tiny", "large"])
def test_a_linear_layer_keeps_the_digits_of_numbers_of_every_size(family: str) -> None:
    checked = check(LINEAR, [tensor("x", 12, 36)], symbol="M", families=(family,))
    assert checked.n_kernels == 1
    wide = LINEAR.replace("36, 20", "28, 200")
    check(wide, [tensor("x", 70, 28)], symbol="M", knobs=STRIP, families=(family,))


@pytest.mark.parametrize("knobs", [{}, GROUPS], ids=["warp", "warpgroup"])
def test_tiles_that_fit_exactly_read_nothing_behind_the_last_step(knobs: dict[str, int]) -> None:
    text = LINEAR.replace("36, 20", "64, 64")
    check(text, [tensor("x", 64, 64)], symbol="M", knobs=knobs, sizes=({}, {"B": 5}))


KNOBS = [
    {"cluster": 4, "tile_k": 8},
    {"chain": 1},
    {"chain": 0, "tile_k": 32},
    {"stages": 2},
    {"tile_m": 64, "tile_n": 16, "warps_m": 4, "warps_n": 1, "stages": 4},
]


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_every_schedule_gives_the_same_sums(knobs: dict[str, int]) -> None:
    inputs = [tensor("a", 33, 76), tensor("b", 20, 76), tensor("c", 33, 20)]
    check("def f(a, b, c): return torch.relu(a @ b.t()) + c", inputs, knobs=knobs, families=("normal", "special_nan"))


@pytest.mark.parametrize("is_transposed", [0, 1])
@pytest.mark.parametrize("layout", ["rows by columns", "rows by rows", "columns by rows"])
def test_four_warps_multiply_together_on_hopper(layout: str, is_transposed: int) -> None:
    call, left, right = LAYOUTS[layout]
    inputs = [tensor("a", *left), tensor("b", *right)]
    knobs = {**GROUPS, "transposed": is_transposed}
    checked = check(f"def f(a, b): return {call}", inputs, knobs=knobs, families=("normal", "special_inf"))
    assert "wgmma.mma_async" in checked.text
    assert "constexpr int TM = 64, TN = 64" in checked.text


@pytest.mark.parametrize("knobs", [{**GROUPS, "cluster": 2}, {}], ids=["cluster", "warps"])
def test_transposed_tiles_have_batches_ragged_sizes_and_an_epilogue(knobs: dict[str, int]) -> None:
    inputs = [tensor("a", 3, 37, 52), tensor("b", 3, 52, 19), tensor("c", 19), tensor("d", 3, 37, 19)]
    text = "def f(a, b, c, d): return torch.relu(torch.bmm(a, b) + c) * d"
    check(text, inputs, knobs={**knobs, "transposed": 1}, sizes=({}, {"C": 1}))


@pytest.mark.parametrize(
    ("call", "left", "right", "is_transposed"),
    [
        ("a @ b.t()", (4096, 2048), (32000, 2048), 0),
        ("a @ b.t()", (32000, 2048), (4096, 2048), 1),
        ("a @ b", (4096, 32000), (32000, 2048), 1),
        ("a.t() @ b", (4096, 32000), (4096, 2048), 1),
        ("a.t() @ b", (4096, 2048), (4096, 32000), 0),
        ("a.t() @ b.t()", (4096, 32000), (2048, 4096), 0),
    ],
)
def test_the_right_tile_runs_along_k_where_a_factor_does(
    call: str, left: tuple[int, int], right: tuple[int, int], is_transposed: int
) -> None:
    task = plan_text(f"def f(a, b): return {call}", inputs=[tensor("a", *left), tensor("b", *right)]).task
    assert plan_program(task, gpu=find_gpu("H200")).realize({}).schedule["f.transposed"] == is_transposed


@pytest.mark.parametrize(
    ("name", "offered"),
    [("H200", {"tensor_cores", "cluster", "warpgroups"}), ("A100 40GB", {"tensor_cores"}), ("V100", set())],
)
def test_a_gpu_is_offered_what_its_tensor_cores_can_do(name: str, offered: set[str]) -> None:
    task = plan_text("def f(a, b): return a @ b", inputs=[tensor("a", 64, 64), tensor("b", 64, 64)]).task
    knobs = plan_program(task, gpu=find_gpu(name)).knobs
    found = {"tensor_cores" for knob in knobs if "tensor_cores" in knob.values}
    found |= {knob.name.rsplit(".", 1)[1] for knob in knobs if len(knob.values) > 1} & {"cluster", "warpgroups"}
    assert found == offered


def test_batches_and_results_that_are_written_transposed() -> None:
    inputs = [tensor("a", 3, 20, 30), tensor("b", 3, 30, 10)]
    check("def f(a, b): return torch.bmm(a, b).transpose(1, 2).contiguous()", inputs)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_factors_are_computed_where_they_are_no_plain_read(dtype: str) -> None:
    inputs = [tensor("a", 20, 24, dtype=dtype), tensor("b", 24, 16, dtype=dtype)]
    check("def f(a, b): return (a * 2 + 1).relu() @ b", inputs)


@pytest.mark.parametrize("knobs", [{}, GROUPS], ids=["warp", "warpgroup"])
def test_numbers_that_factors_are_multiplied_by_scale_the_sum(knobs: dict[str, int]) -> None:
    """A sum beyond f32's range without them is within it with them."""
    inputs = [tensor("a", 20, 24), tensor("b", 24, 16)]
    checked = check("def f(a, b): return (a * 0.25) @ (b * 0.5)", inputs, knobs=knobs, families=("normal", "minute"))
    assert "sum *= 0.125f;" in checked.text
    assert checked.text.count("copy_async<16>(&") == 2
    large = run(checked, {"a": np.full((20, 24), 1e38, "f4"), "b": np.ones((24, 16), "f4")})["out"]
    np.testing.assert_allclose(large, 24 * 1.25e37, rtol=1e-6)


def test_what_a_factor_reads_per_row_is_not_read_outside() -> None:
    inputs = [tensor("a", 51, 37), tensor("s", 37), tensor("b", 51, 19)]
    check("def f(a, s, b): return (a * s).t() @ b", inputs, sizes=({}, {"B": 17}))


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Conv2d(4, 6, 3, padding=1)",
        "nn.Conv2d(4, 4, 3, stride=2, groups=4)",
        "nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)",
    ],
)
def test_convolutions_run_on_the_same_core(layer: str) -> None:
    text = CONVOLUTION.format(layer=layer)
    check(text, [tensor("x", 2, 4, 9, 11)], symbol="M", backward=True)


@pytest.mark.parametrize(
    "options",
    [
        "(3, 2), stride=(3, 1), padding=(2, 1)",
        "3, stride=2, dilation=2, padding=1",  # half of the outputs meet no tap
        "3, stride=2, dilation=3, groups=2",
        "2, stride=3",
        "4, stride=4, dilation=6, padding=5, output_padding=2",
        "(5, 4), stride=(3, 2), dilation=(2, 1), padding=(4, 3)",
    ],
)
def test_transposed_convolutions_go_by_phases(options: str) -> None:
    text = CONVOLUTION.format(layer=f"nn.ConvTranspose2d(4, 6, {options})")
    checked = check(text, [tensor("x", 2, 4, 5, 6)], symbol="M")
    assert "phase_h" in checked.text


@pytest.mark.parametrize(
    "options",
    [
        "3, stride=2, dilation=2, padding=1",
        "3, stride=5, dilation=2, padding=1",  # two of five phases along each axis meet no tap
        "(5, 4), stride=(1, 2), dilation=(2, 1), padding=(4, 3)",
    ],
)
def test_a_block_writes_the_lines_of_all_phases(options: str) -> None:
    text = CONVOLUTION.format(layer=f"nn.ConvTranspose2d(4, 6, {options})")
    families = ("normal", "special_inf")
    checked = check(text, [tensor("x", 2, 4, 5, 6)], symbol="M", knobs={"lines": 1}, families=families)
    n_phases = 5 if "stride=5" in options else 2
    assert f"float (*)[TM * {n_phases} + 4]" in checked.text
    assert f"const int phase = e % {n_phases};" in checked.text


def test_gradients_of_strided_inputs_are_written_by_lines() -> None:
    text = CONVOLUTION.format(layer="nn.Conv2d(4, 6, 3, stride=3, padding=1)")
    checked = check(text, [tensor("x", 2, 4, 9, 12)], symbol="M", backward=True, knobs={"lines": 1})
    assert "const int phase = e % 3;" in checked.text


WINDOWS = {
    # layer, shape of the input, columns of a tile
    "zeros around the source": ("nn.Conv2d(32, 32, 3, padding=1)", (2, 32, 5, 8), "128x32"),
    "taps apart, rows that are strided": (
        "nn.Conv2d(8, 64, (3, 4), stride=(2, 1), padding=(1, 3), dilation=(1, 2))",
        (2, 8, 7, 12),
        "128x64",
    ),
    "every tap of a row in a step": ("nn.Conv3d(16, 32, (2, 3, 3))", (2, 16, 4, 5, 8), "256x32"),
    "two parts of the channels": ("nn.Conv1d(64, 128, 5)", (3, 64, 44), "128x128"),
    "few steps per window": ("nn.Conv2d(32, 64, (1, 2))", (2, 32, 3, 8), "256x64"),
    "a transposed convolution": ("nn.ConvTranspose2d(8, 96, (3, 7), bias=False)", (2, 8, 5, 8), "128x96"),
    "a transposed one with padding": ("nn.ConvTranspose2d(24, 32, 3, padding=1)", (2, 24, 5, 8), "128x32"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_over_windows(name: str) -> None:
    layer, shape, tile = WINDOWS[name]
    knobs = {"windows": 1, "window_tile": tile}
    families = ("normal", "special_inf")
    text = CONVOLUTION.format(layer=layer)
    checked = check(text, [tensor("x", *shape)], symbol="M", knobs=knobs, families=families, sizes=({}, {"B": 1}))
    tile_m, tile_n = tile.split("x")
    assert f"TM = {tile_m}, TN = {tile_n}" in checked.text
    assert "copy_async<16>(&windows" in checked.text


def test_gradients_of_inputs_go_over_windows() -> None:
    text = CONVOLUTION.format(layer="nn.Conv2d(32, 32, 3, padding=1)")
    checked = check(text, [tensor("x", 2, 32, 5, 8)], symbol="M", backward=True, knobs={"windows": 1})
    kernels = [part for part in checked.text.split("__global__") if "grad_x[" in part]
    assert [("copy_async<16>(&windows" in kernel) for kernel in kernels] == [True]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ("nn.Conv2d(32, 32, 3, stride=2)", (1, 32, 9, 12)),
        ("nn.Conv2d(32, 32, 3, groups=2)", (1, 32, 5, 8)),
        ("nn.Conv2d(12, 32, 3)", (1, 12, 5, 8)),
        ("nn.Conv2d(32, 20, 3)", (1, 32, 5, 8)),
        ("nn.Conv2d(32, 32, 3)", (1, 32, 5, 9)),
    ],
    ids=["stride", "groups", "channels", "columns", "rows of no whole pieces"],
)
def test_windows_are_offered_where_they_fit(layer: str, shape: tuple[int, ...]) -> None:
    program = plan_text(CONVOLUTION.format(layer=layer), inputs=[tensor("x", *shape)], symbol="M")
    ways = {knob.name: "tensor_cores" for knob in program.knobs if "tensor_cores" in knob.values}
    offered = {knob.name.rpartition(".")[2] for knob in program.realize(ways).knobs}
    assert "warpgroups" in offered
    assert "windows" not in offered


def test_a_large_product_of_f32_is_on_tensor_cores_by_default() -> None:
    program = plan_text("def f(a, b): return a @ b", inputs=[tensor("a", 512, 512), tensor("b", 512, 512)])
    assert program.realize({}).schedule["f.mm.contraction"] == "tensor_cores"
    small = plan_text("def f(a, b): return a @ b", inputs=[tensor("a", 8, 16), tensor("b", 16, 8)])
    assert small.realize({}).schedule["f.mm.contraction"] != "tensor_cores"


@pytest.mark.parametrize("knobs", [{"parts": 4}, {"parts": 2, **GROUPS}], ids=["warp", "warpgroup"])
def test_sums_of_few_results_are_split_into_parts(knobs: dict[str, int]) -> None:
    inputs = [tensor("a", 20, 2048), tensor("b", 2048, 24), tensor("c", 24)]
    text = "def f(a, b, c): return torch.relu(a @ b + c)"
    checked = check(text, inputs, knobs=knobs, families=("normal", "special_inf"), sizes=({}, {"B": 3}, {"D": 4096}))
    assert f"mm_parts: f32[{knobs['parts']}, " in checked.text
    assert f"D % {knobs['parts']} == 0" in checked.text


def test_a_long_sum_of_few_results_is_split_by_default_and_others_are_not() -> None:
    def parts(rows: int, terms: int) -> int:
        task = plan_text("def f(a, b): return a @ b", inputs=[tensor("a", rows, terms), tensor("b", terms, 256)]).task
        schedule = plan_program(task, gpu=find_gpu("H200")).realize({}).schedule
        assert schedule["f.mm.contraction"] == "tensor_cores"
        return int(schedule.get("f.mm.parts", 1))

    assert parts(256, 65536) == 32
    assert parts(16384, 512) == 1


def test_a_short_sum_of_many_results_has_small_blocks() -> None:
    task = plan_text("def f(a, b): return a @ b", inputs=[tensor("a", 8192, 32), tensor("b", 32, 8192)]).task
    program = plan_program(task, gpu=find_gpu("H200"))
    schedule = program.realize({}).schedule
    assert (schedule["f.warpgroups"], schedule["f.stages"], schedule["f.strip"]) == (0, 3, 32)
    assert (schedule["f.tile_m"], schedule["f.tile_n"], schedule["f.chain"]) == (128, 64, 0)
    assert "__launch_bounds__(256, 2)" in program.render({})
    one_tile = {"f.strip": 0, "f.stages": 2, "f.tile_m": 64, "f.warps_m": 2}
    assert "__launch_bounds__(128, 6)" in program.render(one_tile)


def test_a_strided_convolution_of_few_channels_keeps_its_rows_and_has_narrow_tiles() -> None:
    inputs = [tensor("x", 64, 3, 224, 224), tensor("w", 96, 3, 11, 11)]
    task = plan_text("def f(x, w): return F.conv2d(x, w, stride=4, padding=2)", inputs=inputs).task
    program = plan_program(task, gpu=find_gpu("H200"))
    assert program.realize({}).schedule["f.tile_n"] == 96
    assert "k_of_lane" in program.render({})


STRIPS = {
    "rows by columns": ("a @ b.t()", (70, 24), (200, 24)),
    "rows by rows": ("a @ b", (70, 24), (24, 200)),
    "columns by rows": ("a.t() @ b", (24, 72), (24, 200)),
    "with an epilogue": ("torch.relu(a @ b.t() * 3.0 + c)", (70, 24), (200, 24)),
    "a batch": ("a @ b.transpose(1, 2)", (2, 70, 24), (2, 136, 24)),
}


@pytest.mark.parametrize("name", STRIPS)
def test_a_block_keeps_its_rows_and_walks_along_columns(name: str) -> None:
    call, left, right = STRIPS[name]
    inputs = [tensor("a", *left), tensor("b", *right)]
    extra = [tensor("c", 200)] if "+ c" in call else []
    parameters = ", ".join(each.name for each in [*inputs, *extra])
    checked = check(f"def f({parameters}): return {call}", [*inputs, *extra], knobs=STRIP)
    assert "constexpr int STRIP = 8" in checked.text


def test_strips_need_sums_of_one_step_and_packs_along_columns() -> None:
    long = [tensor("a", 64, 72), tensor("b", 128, 72)]
    knobs = [knob.name for knob in plan_text("def f(a, b): return a @ b.t()", inputs=long).knobs]
    assert not any(name.endswith(".strip") for name in knobs)


def test_f64_and_integers_are_not_offered_tensor_cores() -> None:
    inputs = [tensor("a", 8, 16, dtype="f64"), tensor("b", 16, 8, dtype="f64")]
    program = plan_text("def f(a, b): return a @ b", inputs=inputs)
    assert not [knob for knob in program.knobs if "tensor_cores" in knob.values]


@pytest.mark.parametrize(
    "schedule",
    [
        TensorCoreSchedule(64, 64, 8, 8, 1, 3),  # a warp of 8 rows
        TensorCoreSchedule(64, 64, 12, 2, 2, 3),  # half a step of `mma.sync`
        TensorCoreSchedule(256, 256, 16, 2, 2, 3),  # 512 sums per thread
        TensorCoreSchedule(256, 256, 16, 4, 4, 3, chain=16),  # 512 threads with 256 sums each
    ],
)
def test_schedules_that_do_not_fit_are_invalid(schedule: TensorCoreSchedule) -> None:
    assert not is_valid_schedule(schedule, DType.F32)


def test_the_other_product_of_a_sum_may_be_a_loop_in_its_epilogue() -> None:
    text = "def f(x, a, y, b): return x @ a + y @ b"
    inputs = [tensor(name, 64, 64) for name in ("x", "a", "y", "b")]
    program = plan_text(text, inputs=inputs)
    ways = [knob.name for knob in program.knobs if "tensor_cores" in knob.values]
    schedule = dict(zip(ways, ("tensor_cores", "direct"), strict=True))
    assert program.is_valid(schedule)
    check_program(program, schedule=schedule)
