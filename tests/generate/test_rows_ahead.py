"""Blocks that load their next row into registers as they store this one, and keep weights in shared memory."""

from __future__ import annotations

import pytest

from kernel_lsp.generate.codegen.rows import rows_ahead
from kernel_lsp.generate.schedule import row_fit
from tests.generate.harness import built, check, plan_text, tensor

FAMILIES = ("normal", "constant_rows", "special_nan")
LAYER_NORM = "F.layer_norm(x, weight.shape, weight, bias)"
LENGTH = 64 * 64 * 2 * 3
"""Three packs of two elements for each of 64 threads of 64 blocks."""
SCHEDULE = {"cached": 1, "blocks": 64, "threads": 64, "vector": 2, "staged": 2, "streaming": 1}
FIXED = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((256, 256))
    def forward(self, x): return self.norm(x)
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("result", "n_held", "n_ahead"),
    [
        (LAYER_NORM, 2, 0),
        (LAYER_NORM, 1, 1),
        (LAYER_NORM, 0, 2),
        ("F.rms_norm(x, weight.shape, weight)", 1, 0),
        ("F.rms_norm(x, weight.shape)", 0, 0),
        ("(x + 1).softmax(-1) * weight", 1, 0),
        ("F.layer_norm(x * weight, weight.shape, weight, bias)", 1, 1),
    ],
)
def test_the_next_row_is_loaded_as_this_one_is_stored(
    result: str, n_held: int, n_ahead: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_of_weights = LENGTH // 64 * (4 if dtype == "f32" else 2)
    monkeypatch.setattr(row_fit, "MIN_WHOLE_ELEMENTS", 1)
    monkeypatch.setattr(rows_ahead, "MAX_STAGED_BYTES", 2 * n_held * bytes_of_weights)  # two blocks per SM
    checked = check(
        f"def f(x, weight, bias): return {result}",
        inputs=[tensor("x", 6, LENGTH, dtype=dtype), *(tensor(n, LENGTH, dtype=dtype) for n in ("weight", "bias"))],
        schedule={f"f.{knob}": value for knob, value in SCHEDULE.items()},
        families=FAMILIES,
        sizes=({}, {"B": 1}, {"B": 9}, {"D": LENGTH - 2}, {"D": 2 * LENGTH}),
    )
    whole, _, rest = checked.text.split("__global__", 1)[1].partition(" f_any_size(")
    assert "if (has_next) x_row[item] = load_once(" in whole
    assert whole.count("_held = reinterpret_cast") == n_held
    assert whole.count("_ahead[item] = ") == n_ahead
    assert "has_next" not in rest
    assert "cluster=8" in checked.text


def test_one_team_takes_all_rows_of_a_known_length() -> None:
    checked = check(
        FIXED,
        symbol="M",
        inputs=[tensor("x", 3, 256, 256)],
        schedule={f"m.{knob}": value for knob, value in {**SCHEDULE, "blocks": 256}.items()},
        families=FAMILIES,
        sizes=({}, {"B": 1}, {"B": 4}),
    )
    assert checked.n_kernels == 1
    assert "const bool has_next = row + 1 < B;" in checked.text
    assert "wait_async();" in checked.text


@pytest.mark.parametrize(("n_rows", "is_ahead"), [(1, False), (4, False), (16, True)])
def test_many_rows_that_a_grid_takes_are_loaded_ahead_by_default(n_rows: int, is_ahead: bool) -> None:
    shape = (64, 256, 256)
    inputs = [tensor("x", n_rows, *shape), tensor("weight", *shape), tensor("bias", *shape)]
    schedule = {"f.shifted_sum.by_rows": 0}
    text = plan_text(f"def f(x, weight, bias): return {LAYER_NORM}", inputs=inputs).render(schedule)
    assert ("if (has_next) x_row[item] = " in text) == is_ahead
    assert ("C * H * W <= 4194304" in text) != is_ahead


def test_a_row_whose_length_is_a_constant_stays_in_registers() -> None:
    """1024 threads have 64 registers each; with signed places of packs, 60 bytes were spilled."""
    program = plan_text(
        FIXED.replace("(256, 256)", "(64, 256, 256)"), symbol="M", inputs=[tensor("x", 16, 64, 256, 256)]
    )
    (kernel,) = built(program.render({"m.shifted_sum.by_rows": 0})).kernels
    assert kernel.spill_store_bytes == 0
