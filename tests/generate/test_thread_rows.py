"""Contractions of few terms and columns: all columns of a tile for several rows of each thread."""

from __future__ import annotations

from typing import Any

import pytest

from tests.generate.harness import check_program, plan_text, tensor

MODULE = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}
    def forward(self, x): return self.layer(x){after}
"""

PARAMETER = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.randn(5, 8))
    def forward(self, x): return x @ self.value
"""


def check(layer: str, x: Any, *, columns: int = 4, after: str = "", **how: Any) -> str:
    """Assert that the program computes a layer by rows of threads, and that it is right; return its text."""
    program = plan_text(MODULE.format(layer=layer, after=after), symbol="M", inputs=[x])
    ways: dict[str, int | str] = {k.name: "thread_rows" for k in program.knobs if "thread_rows" in k.values}
    assert ways
    offered = [knob.name for knob in program.realize(ways).knobs]
    ways |= {name: columns for name in offered if name.endswith(".columns_per_thread")}
    ways |= {name: 2 for name in offered if name.endswith(".rows_per_thread")}
    assert program.is_valid(ways)
    found = check_program(program, schedule=ways, **how).text
    assert "sums[ROWS][TN]" in found
    return found


@pytest.mark.parametrize("columns", [4, 8])
def test_rows_and_columns_past_the_end_are_not_written(columns: int) -> None:
    families = ("normal", "special_inf")
    found = check("nn.Conv3d(3, 6, 3)", tensor("x", 2, 3, 5, 6, 7), columns=columns, after=".relu()", families=families)
    assert "x_row_1" in found  # the address of a row is worked out once


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Conv2d(4, 6, 3, padding=(2, 1), stride=(2, 1), dilation=(1, 2))",
        "nn.Conv2d(4, 8, 3, groups=2)",
        "nn.Linear(9, 8)",
    ],
)
def test_padding_strides_groups_and_matrices(layer: str) -> None:
    check(layer, tensor("x", 3, 4, 9, 9))


def test_a_sum_may_have_a_single_term() -> None:
    check("nn.Conv2d(1, 8, 1)", tensor("x", 3, 1, 9, 9))


def test_a_parameter_may_have_the_name_of_a_local_variable() -> None:
    program = plan_text(PARAMETER, symbol="M", inputs=[tensor("x", 9, 5)])
    found = check_program(program, schedule={"m.mm.contraction": "thread_rows"})
    assert "value = value_2[" in found.text


@pytest.mark.parametrize(
    ("layer", "x", "is_offered"),
    [
        ("nn.Linear(3072, 64)", tensor("x", 5, 3072), True),  # 4 columns fit shared memory
        ("nn.Linear(3073, 8)", tensor("x", 5, 3073), False),
        ("nn.Linear(8, 8, dtype=torch.float64)", tensor("x", 5, 8, dtype="f64"), False),
        ("nn.ConvTranspose2d(4, 8, 4, stride=2)", tensor("x", 3, 4, 9, 9), False),
        ("lambda x: x @ x.T", tensor("x", 5, 8), False),  # an unknown number of terms
    ],
)
def test_rows_of_threads_are_offered_where_they_are_valid(layer: str, x: Any, is_offered: bool) -> None:
    program = plan_text(MODULE.format(layer=layer, after=""), symbol="M", inputs=[x])
    found = [knob for knob in program.knobs if "thread_rows" in knob.values]
    assert bool(found) == is_offered
    assert all(program.is_valid({knob.name: "thread_rows"}) for knob in found)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_numbers_of_16_bits_are_added_up_in_f32(dtype: str) -> None:
    torch_type = {"f16": "torch.float16", "bf16": "torch.bfloat16"}[dtype]
    check(f"nn.Conv2d(3, 8, 3, dtype={torch_type})", tensor("x", 2, 3, 8, 9, dtype=dtype))


@pytest.mark.parametrize(
    ("layer", "n_images", "default"),
    [
        ("nn.Conv3d(3, 24, 3)", 16, "thread_rows"),
        ("nn.Conv3d(3, 24, 3)", 2, "tensor_cores"),  # fewer than 2048 rows per multiprocessor
        ("nn.Conv3d(3, 96, 3)", 16, "tensor_cores"),
    ],
)
def test_large_convolutions_of_few_channels_go_by_rows_of_threads(layer: str, n_images: int, default: str) -> None:
    program = plan_text(MODULE.format(layer=layer, after=""), symbol="M", inputs=[tensor("x", n_images, 3, 24, 32, 32)])
    assert next(knob for knob in program.knobs if knob.name.endswith(".contraction")).default == default
