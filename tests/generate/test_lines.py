"""Lines of memory: parts of rows that a variance combines, and lines of a row whose sums a cluster finds as well."""

from __future__ import annotations

import pytest

from kernel_lsp.generate.codegen.elements import lines
from kernel_lsp.generate.schedule import element_knobs
from kernel_lsp.generate.structure import row_splits
from tests.generate.harness import check, plan_text, tensor

FAMILIES = ("normal", "constant_rows", "offset")
BATCH_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(6, track_running_stats=False)
    def forward(self, x): return self.norm(x)
"""
LAYER_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((6, 8, 16))
    def forward(self, x): return self.norm(x)
"""
GROUP_NORM = """
def f(x, weight, bias): return F.group_norm(x, 2, weight, bias, 1e-5)
"""
CLUSTERS = {
    "two blocks of four lines": {"blocks": 2, "threads": 256, "vector": 4},
    "four blocks": {"blocks": 4, "threads": 128, "vector": 4, "resident": 4},
    "eight blocks of one line": {"blocks": 8, "threads": 256, "vector": 2},
    "single elements": {"blocks": 4, "threads": 512, "vector": 1},
}


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lines of a few elements be parts of rows."""
    monkeypatch.setattr(row_splits, "MIN_SPLIT_LENGTH", 64)
    monkeypatch.setattr(row_splits, "MIN_LINES_PER_MULTIPROCESSOR", 0)


@pytest.mark.usefixtures("short_lines")
def test_moments_of_a_batch_norm_are_those_of_lines() -> None:
    checked = check(
        BATCH_NORM,
        symbol="M",
        inputs=[tensor("x", 5, 6, 16, 24)],
        schedule={"m.shifted_sum.by_rows": 1},
        families=FAMILIES,
        sizes=({}, {"B": 1, "H": 7, "W": 4}, {"B": 40, "H": 8, "W": 9}),
    )
    assert checked.n_kernels == 3
    assert "squares_parts" in checked.text


@pytest.mark.usefixtures("short_lines")
def test_moments_of_a_long_row_are_those_of_its_lines() -> None:
    schedule = {"m.shifted_sum.by_rows": 1}
    inputs = [tensor("x", 5, 6, 8, 16)]
    checked = check(LAYER_NORM, symbol="M", inputs=inputs, schedule=schedule, families=FAMILIES)
    assert checked.n_kernels == 3


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("way", CLUSTERS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_cluster_finds_the_sums_of_groups_and_of_their_channels(dtype: str, way: str) -> None:
    of_channel = [tensor(name, 16, dtype=dtype) for name in ("weight", "bias")]
    checked = check(
        GROUP_NORM,
        inputs=[tensor("x", 3, 16, 32, 128, dtype=dtype), *of_channel],
        backward=True,
        schedule={f"f_backward_grad_x.{what}": value for what, value in CLUSTERS[way].items()},
        sizes=({}, {"H": 3, "W": 8}),
    )
    assert "of_line" in checked.text


@pytest.mark.parametrize("n", [2, 4])
def test_lines_that_share_an_operand_read_it_once(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MIN_SHARED_BYTES", 1 << 10)
    checked = check(
        "def f(x, w, b): return x * w + b",
        inputs=[tensor("x", 6, 20, 64), tensor("w", 20, 64), tensor("b", 64)],
        schedule={"f.shared_lines": n, "f.vector": 4},
        sizes=({}, {"B": 1}, {"B": 9}),
    )
    assert f"first_line = blockIdx.x * {n}" in checked.text  # blocks that share the operand are neighbours


@pytest.mark.parametrize(
    "call",
    [
        "a.repeat(2, 64) + b[:1]",
        "torch.cat([a.expand(a.shape[0], 64), b * 2])",
        "b.select_scatter(a[0, 0] + b[0], 0, 2)",
    ],
)
def test_coordinates_of_packs_are_declared_where_the_pack_is(call: str) -> None:
    """Declare before the packs what all packs of a thread share, and in each what depends on it."""
    inputs = [tensor("a", 3, 1), tensor("b", 5, 64)]
    checked = check(f"def f(a, b): return {call}", inputs=inputs, schedule={"f.vector": 4, "f.unroll": 4})
    assert "u < 4" in checked.text


def test_bytes_that_become_16_bits_leave_the_l2_cache_last_and_their_scale_is_loaded_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(element_knobs, "LARGE_BYTES", 1 << 10)
    inputs = [tensor("q", 6, 2048, dtype="i8", within=(-127, 128)), tensor("scale", 6, 1, dtype="bf16")]
    schedule = {"f.vector": 8, "f.threads": 64, "f.unroll": 2}
    text = "def f(q, scale): return q.to(scale.dtype) * scale"
    checked = check(text, inputs=inputs, schedule=schedule, sizes=({}, {"D": 8}, {"D": 1000}))
    kernel = checked.text.split("__global__")[1]
    assert "q_pack[u] = load_kept(&packs<8>(q)[" in kernel
    assert kernel.index("= float(scale[") < kernel.index("q_pack[u] =")


def test_the_last_pass_of_a_shared_row_goes_backward_and_writes_what_needs_no_reduction() -> None:
    checked = check(
        "def f(x, w): return F.layer_norm(x, w.shape, w), x * 2",
        inputs=[tensor("x", 1, 8200), tensor("w", 8200)],
        schedule={"f.blocks": 32, "f.threads": 64, "f.cached": 0, "f.vector": 4},
        families=FAMILIES,
    )
    kernel = checked.text[checked.text.index("__global__") :]
    assert "pack >= 0" in kernel
    assert kernel.index("grid_sync(") < kernel.index("* 2.0f")


def test_gradients_of_a_loss_of_16_bits_use_quick_exponentials() -> None:
    text = "def f(x, t): return F.cross_entropy(x.float(), t)"
    inputs = [tensor("x", 64, 1000, dtype="bf16"), tensor("t", 64, dtype="i64", within=(0, 1000))]
    kernels = plan_text(text, inputs=inputs, backward=True).render({}).split("__global__ ")[1:]
    assert {"f_backward" in kernel.split("(")[1] for kernel in kernels if "__expf(" in kernel} == {True}


@pytest.mark.parametrize(("n", "keeps"), [(16000, True), (24000, False)])
def test_long_rows_of_16_bits_keep_no_exponentials(n: int, *, keeps: bool) -> None:
    inputs = [tensor("x", 1200, n, dtype="bf16"), tensor("t", 1200, dtype="i64", within=(0, n))]
    program = plan_text("def f(x, t): return F.cross_entropy(x.float(), t)", inputs=inputs, backward=True)
    assert ("kept_exp" in program.render({"f.keeps": 0})) == keeps


ROTATED = """
def f(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
"""


@pytest.mark.parametrize(("n", "across"), [(2, 2), (2, 1), (4, 4)])
def test_threads_of_rotations_take_several_lines(n: int, across: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "L1_BYTES", 64)
    rotations = [tensor(name, 10, 32, dtype="bf16") for name in ("cos", "sin")]
    checked = check(
        ROTATED,
        inputs=[tensor("x", 3, 5, 10, 32, dtype="bf16"), *rotations],
        schedule={"f.shared_lines": n, "f.block_lines": across, "f.vector": 8, "f.threads": 64},
        sizes=({}, {"B": 1, "C": 1}, {"B": 4, "C": 8, "H": 7}),
    )
    across_text = f"(blockIdx.y * {across} + threadIdx.x / {64 // across})" if across > 1 else "blockIdx.y"
    assert f"first_line = {across_text} * {n};" in checked.text
    kernel = checked.text[checked.text.index("first_line") :]
    assert f"x_run[{n}][8];" in kernel
    assert kernel.index("(&x_run[u]") < kernel.index("out_pack;")  # loads of all lines go before any result


@pytest.mark.parametrize(
    ("text", "dtype", "n"),
    [
        (ROTATED, "bf16", 2),
        (ROTATED, "f32", None),
        ("def f(x, cos, sin): return x * cos[:, :1] * sin[:, :1]", "bf16", None),
    ],
)
def test_rotations_of_16_bits_share_what_all_lines_read(text: str, dtype: str, n: int | None) -> None:
    rotations = [tensor(name, 2048, 128, dtype=dtype) for name in ("cos", "sin")]
    rendered = plan_text(text, inputs=[tensor("x", 4, 32, 2048, 128, dtype=dtype), *rotations]).realize({})
    assert rendered.schedule.get("f.shared_lines") == n
    assert rendered.schedule.get("f.block_lines") == n


def test_rotations_of_queries_and_keys_share_a_launch_of_small_blocks() -> None:
    text = f"{ROTATED}\ndef both(q, k, cos, sin): return f(q, cos, sin), f(k, cos, sin)"
    rotations = [tensor(name, 2048, 128, dtype="bf16") for name in ("cos", "sin")]
    heads = [tensor(name, 4, n, 2048, 128, dtype="bf16") for name, n in (("q", 32), ("k", 8))]
    rendered = plan_text(text, symbol="both", inputs=[*heads, *rotations]).realize({})
    assert rendered.schedule["both.block"] == 128


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("def f(x): return x.mean((2, 3))", "grad_out[pack / (H * W / 4)]"),
        ("def f(x, y): return torch.relu(x * y[:, :, None, None])", "y[pack / (H * W / 4)]"),
        (
            "def f(x): return (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()",
            "= packs<4>(x)[pack];",
        ),
    ],
)
def test_lanes_of_a_pack_share_what_divides_by_whole_packs(
    text: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of a mean took 31 us on an H200 with a division per element, torch.compile's 24."""
    monkeypatch.setattr(element_knobs, "LARGE_BYTES", 0)
    inputs = [tensor("x", 2, 3, 6, 8), tensor("y", 2, 3)][: 1 + ("y" in text)]
    program = plan_text(text, inputs=inputs, backward=True)
    wide = {knob.name: 4 for knob in program.knobs if knob.name.endswith(".vector") and 4 in knob.values}
    schedule = {name: 4 for name in wide if program.is_valid(wide)}
    checked = check(text, inputs=inputs, backward=True, schedule=schedule, sizes=({}, {"B": 1, "H": 4}, {"W": 4}))
    assert shared in checked.text


def test_packs_of_a_pixel_shuffle_need_no_division_by_the_batch() -> None:
    """A pack of 8 in a line of 4 * H * W elements was stored by single elements: 71 us on an H200 for 52."""
    text = "def f(x): return F.pixel_shuffle(x, 2)"
    rendered = plan_text(text, inputs=[tensor("x", 16, 256, 64, 64, dtype="bf16")]).render({})
    assert "packs<8>(out)[" in rendered
    assert "near_quotient" not in rendered
    check(text, inputs=[tensor("x", 2, 8, 32, 32, dtype="bf16")], schedule={"f.lines": 1, "f.vector": 8})
