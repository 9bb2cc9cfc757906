"""Lines of memory: parts of rows that a variance combines, and lines of a row whose sums a cluster finds as well."""

from __future__ import annotations

import pytest

from kernel_lsp.generate import row_splits
from tests.generate.harness import check, tensor

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
    "four blocks": {"blocks": 4, "threads": 128, "vector": 4},
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
