"""Small tasks as few launches: products split over threads, kernels that share a launch, values that every block finds,
boxes of elements per thread, and sums over rows beside the rows."""

from __future__ import annotations

import pytest

from tests.generate.harness import Checked, check, plan_text, tensor

LINEAR = """
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(96, 40)
    def forward(self, x): return F.relu(self.fc(x))
"""
NORM = """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(128)
    def forward(self, x): return self.norm(x)
"""
POOL = "def f(x): return F.max_pool2d(x, 2)"
CONVOLUTION = "def f(x, w, b): return F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2)"
CROSS_ENTROPY = "def f(x, labels): return F.cross_entropy(x, labels)"
SPLIT = {"f.mm.contraction": "split_warps", "f.bmm.contraction": "split_warps"}


def launches(checked: Checked, *, backward: bool = True) -> int:
    """Return the launches of one direction."""
    operation = checked.plan.backward if backward else checked.plan.forward
    assert operation is not None
    return sum(hasattr(step, "kernel") for step in operation.steps)


@pytest.mark.parametrize("shape", [(37, 50, 19), (64, 200, 16), (5, 7, 130), (33, 128, 64)])
@pytest.mark.parametrize("cluster", [1, 4])
def test_split_products(shape: tuple[int, int, int], cluster: int) -> None:
    inputs = [tensor("a", *shape[:2]), tensor("b", *shape[1:])]
    check("def f(a, b): return a @ b", inputs=inputs, schedule={**SPLIT, "f.cluster": cluster})


@pytest.mark.parametrize("tile", ["8x8_2x2", "16x32_2x4", "64x64_4x4"])
def test_tiles_of_split_products(tile: str) -> None:
    inputs = [tensor("a", 70, 96), tensor("b", 96, 72)]
    check("def f(a, b): return a @ b", inputs=inputs, schedule={**SPLIT, "f.tile": tile, "f.step": 32})


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_split_products_in_other_types(dtype: str) -> None:
    inputs = [tensor("a", 20, 64, dtype=dtype), tensor("b", 64, 40, dtype=dtype)]
    check("def f(a, b): return a @ b", inputs=inputs, schedule=SPLIT)


def test_split_products_in_batches() -> None:
    inputs = [tensor("a", 3, 20, 36), tensor("b", 3, 36, 10)]
    check("def f(a, b): return torch.bmm(a, b)", inputs=inputs, schedule=SPLIT, backward=True)


@pytest.mark.parametrize("mode", ["each", "together", "cooperative", None])
def test_gradients_of_a_linear_layer_share_launches(mode: str | None) -> None:
    schedule: dict[str, str | int] = {"linear_backward.launches": mode} if mode else {}
    schedule["linear_backward.chosen.inlined"] = 0
    checked = check(LINEAR, symbol="Linear", inputs=[tensor("x", 9, 96)], schedule=schedule, backward=True)
    assert launches(checked) == {"each": 4, "cooperative": 1}.get(mode or "", 2)


def test_small_products_compute_an_elementwise_factor_where_they_stage_it() -> None:
    inputs, families = [tensor("x", 9, 96)], ("normal", "special_nan")
    checked = check(LINEAR, symbol="Linear", inputs=inputs, families=families, sizes=[{}, {"B": 40}], backward=True)
    assert launches(checked) == 1
    assert checked.plan.backward is not None
    assert not checked.plan.backward.scratch


@pytest.mark.parametrize(("n_inputs", "n_outputs", "threads"), [(128, 128, 128), (1600, 128, 256)])
def test_small_gradients_share_a_grid_of_small_blocks(n_inputs: int, n_outputs: int, threads: int) -> None:
    text = LINEAR.replace("nn.Linear(96, 40)", f"nn.Linear({n_inputs}, {n_outputs})")
    program = plan_text(text, symbol="Linear", inputs=[tensor("x", 64, n_inputs)], backward=True)
    schedule = program.realize({}).schedule
    assert schedule["linear_backward.block"] == threads
    assert schedule["linear_backward.mm.contraction"] == "split_warps"


def test_small_products_of_open_sizes_read_a_stored_factor() -> None:
    text = "def f(x, w): return F.relu(x) @ w"
    program = plan_text(text, inputs=[tensor("x", 9, 96), tensor("w", 96, 40)])
    schedule = program.realize({}).schedule
    assert [value for name, value in schedule.items() if name.endswith(".inlined")] == [0]


def test_large_products_read_a_stored_factor() -> None:
    text = "def f(x, w): return F.relu(x) @ w"
    program = plan_text(text, inputs=[tensor("x", 1024, 1024), tensor("w", 1024, 1024)])
    assert not any(knob.name.endswith(".inlined") for knob in program.realize({}).knobs)
    assert "// scratch: " in program.realize({}).text


@pytest.mark.parametrize("way", ["direct", "rows", "tiled", "split_warps"])
def test_every_way_can_share_a_launch(way: str) -> None:
    ways = {f"linear_backward.{name}.contraction": way for name in ("mm", "mm_2")}
    schedule = {**ways, "linear_backward.launches": "together", "linear.keeps": 0}
    checked = check(LINEAR, symbol="Linear", inputs=[tensor("x", 9, 96)], schedule=schedule, backward=True)
    assert launches(checked) == 2


def test_large_groups_that_read_memory_once_share_launches() -> None:
    text = "def f(a, b): s = a.square().sum() + b.square().sum(); return a * s, b * s"
    inputs = [tensor("a", 4096, 4096), tensor("b", 8192, 4096)]
    assert plan_text(text, inputs=inputs).realize({}).text.count("// launch:") == 3


def test_a_small_operation_is_one_block() -> None:
    inputs = [tensor("x", 16, 10), tensor("labels", 16, dtype="i64", within=(0, 10))]
    checked = check(CROSS_ENTROPY, inputs=inputs, sizes=[{}, {"B": 70}])
    assert launches(checked, backward=False) == 1


def test_a_count_that_all_rows_need_takes_no_launch() -> None:
    inputs = [tensor("x", 40, 10), tensor("labels", 40, dtype="i64", within=(0, 10))]
    for level in (0, 1):
        schedule, sizes = {"f.keeps": level}, [{}, {"B": 3}]
        assert launches(check(CROSS_ENTROPY, inputs=inputs, backward=True, sizes=sizes, schedule=schedule)) == 1


@pytest.mark.parametrize("box", ["1x1x1x1", "1x1x2x2", "1x1x2x4"])
def test_the_gradient_of_a_max_pool_asks_its_windows(box: str) -> None:
    schedule = {"f_backward.box": box}
    checked = check(
        POOL, inputs=[tensor("x", 2, 3, 8, 9)], schedule=schedule, backward=True, families=["normal", "tied_rows"]
    )
    assert checked.plan.backward is not None
    assert not checked.plan.backward.scratch


@pytest.mark.parametrize("planes", [0, 1])
@pytest.mark.parametrize("box", ["1x4x1x1", "1x8x1x1", "1x1x2x2"])
def test_a_convolution_and_its_pooling_in_boxes(box: str, planes: int) -> None:
    inputs = [tensor("x", 2, 1, 9, 10), tensor("w", 8, 1, 3, 3), tensor("b", 8)]
    schedule = {"f.box": box, "f.planes": planes}
    check(CONVOLUTION, inputs=inputs, schedule=schedule, families=("normal", "special_nan", "special_inf"))


@pytest.mark.parametrize(("height", "planes"), [(8, 1), (9, 0)])
def test_boxes_load_rows_of_windows_and_store_rows_of_results_in_packs(height: int, planes: int) -> None:
    schedule: dict[str, str | int] = {"f.keeps": 0, "f.box": "1x1x1x2", "f_backward.box": "1x1x2x2"}
    for name in ("f", "f_backward"):
        schedule |= {f"{name}.packs": 1, f"{name}.planes": planes}
    checked = check(
        POOL,
        inputs=[tensor("x", 2, 3, height, 8)],
        schedule=schedule,
        backward=True,
        families=["normal", "tied_rows", "special_nan"],
        sizes=[{}, {"W": 12}],
    )
    assert "packs<4>(x +" in checked.text
    assert "*packs<2>(grad_x + " in checked.text
    assert "// where: W // 2 % 2 == 0\n// launch: f<" in checked.text
    assert ("// where: H % 2 == 0" in checked.text) == (height % 2 == 0)


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize(("height", "width"), [(8, 12), (7, 12), (8, 10), (6, 9)])
def test_windows_that_cover_an_image_take_one_division(height: int, width: int, keeps: int) -> None:
    schedule: dict[str, str | int] = {"f.keeps": keeps, "f.box": "1x1x1x2", "f_backward.box": "1x1x2x2"}
    for name in ("f", "f_backward"):
        schedule |= {f"{name}.packs": 1, f"{name}.planes": 0}
    checked = check(
        POOL,
        inputs=[tensor("x", 3, 2, height, width)],
        schedule=schedule,
        backward=True,
        families=["normal", "tied_rows", "special_nan"],
        sizes=[{}, {"B": 1, "H": height + 4, "W": width + 4}],
    )
    backward = checked.text.rpartition("__global__")[2]
    assert ("const int outer = i / W_div_2;" in backward) == (height % 2 == width % 2 == 0)


def test_windows_that_overlap_are_stored() -> None:
    text = "def f(x): return F.max_pool2d(x.exp(), 3, stride=2)"
    assert check(text, inputs=[tensor("x", 2, 3, 9, 9)]).plan.forward.scratch


@pytest.mark.parametrize("n_rows", [300, 1060])
def test_sums_over_rows_ride_along_with_the_rows(n_rows: int) -> None:
    schedule = {f"norm_backward.{name}.split": 132 for name in ("sum_3", "sum_4")}
    checked = check(NORM, symbol="Norm", inputs=[tensor("x", n_rows, 128)], schedule=schedule, backward=True)
    assert launches(checked) == 2


def test_windows_that_do_not_overlap_compare_taps_instead_of_positions() -> None:
    inputs, families = [tensor("x", 2, 3, 8, 10)], ["normal", "tied_rows"]
    checked = check(POOL, inputs=inputs, backward=True, families=families, schedule={"f.keeps": 0})
    backward = checked.text.rpartition("__global__")[2]
    assert "kh * 2 + kw" in backward


def test_tiles_of_either_layout_lie_within_shared_memory() -> None:
    """Rows of `a` are neighbours across the sum and those of `w` along it; a step is longer than two tiles of rows."""
    inputs = [tensor("a", 672, 49), tensor("w", 192, 672)]
    schedule = {**SPLIT, "f.tile": "32x64_4x4", "f.step": 84, "f.cluster": 8}
    checked = check("def f(a, w): return a.t() @ w.t()", inputs=inputs, schedule=schedule)
    assert "TM = 32, TN = 64, TK = 84" in checked.text
