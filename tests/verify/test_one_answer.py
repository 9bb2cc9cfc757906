"""Check which outputs have one correct value, by what PyTorch's capture makes of a function."""

from __future__ import annotations

import pytest

from kernel_lsp.verify.oracle.narrow_rounding import with_one_answer
from tests.worker.capturing import capture_text, tensor

ONE = ("x + y", "torch.relu(x - y)", "(x * y).t()", "x * 0.5", "-x.abs()", "w.to(torch.float16)", "w.to(x.dtype)")
MORE = (
    "x * 0.3",
    "x + y + x",
    "torch.add(x, y, alpha=2)",
    "x.sum(-1)",
    "torch.exp(x)",
    "x - 0 * y",
    "w + w",
    "(w + w).to(x.dtype)",
    "d.to(x.dtype)",
)


@pytest.fixture(scope="module")
def found() -> dict[str, bool]:
    """By the expression that makes an output, of one capture. w is f32, d f64, the others bf16."""
    expressions = (*ONE, *MORE)
    dtypes = {"x": "bf16", "y": "bf16", "w": "f32", "d": "f64"}
    task = capture_text(
        f"def f(x, y, w, d): return {', '.join(expressions)}",
        "f",
        inputs=[tensor(name, 8, 16, dtype=dtype) for name, dtype in dtypes.items()],
    )
    single = with_one_answer(task.forward)
    return {e: output.name in single for e, output in zip(expressions, task.forward.outputs, strict=True)}


@pytest.mark.parametrize("expression", ONE)
def test_one_rounding_at_most_has_one_answer(found: dict[str, bool], expression: str) -> None:
    assert found[expression]


@pytest.mark.parametrize("expression", MORE)
def test_what_is_rounded_twice_or_by_way_of_f32_or_not_of_16_bits_is_held_to_its_budget(
    found: dict[str, bool], expression: str
) -> None:
    assert not found[expression]
