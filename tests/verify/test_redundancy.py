"""Each rule sees its pattern in captured code, and does not see it in what only looks like it."""

from __future__ import annotations

import pytest

from kernel_lsp.verify.task_filters import redundancies
from tests.worker.capturing import capture_text, tensor


def kinds(body: str) -> list[str]:
    """Return what is redundant in ``def f(x, y): ...`` over two matrices of 8 by 16."""
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    task = capture_text(f"def f(x, y):\n{lines}", "f", inputs=[tensor("x", 8, 16), tensor("y", 8, 16)])
    return [redundancy.kind for redundancy in redundancies(task.forward)]


@pytest.mark.parametrize(
    ("kind", "redundant", "needed"),
    [
        ("duplicate", "return x.exp() + y * x.exp()", "return x.exp() + y * y.exp()"),
        ("sum-of-softmax", "return x.softmax(1).sum(1) + y.sum(1)", "return x.softmax(1).sum(0) + y.sum(0)"),
        ("sum-of-softmax", "return x.log_softmax(-1).exp().sum(1) + y.sum(1)", "return x.log_softmax(-1).sum(1)"),
        ("repeated-norm", "return x.softmax(1).softmax(1) + y", "return x.softmax(0).softmax(1) + y"),
        (
            "repeated-norm",
            "return F.layer_norm(F.layer_norm(x, (16,)) * 2.0, (16,)) + y",
            "return F.layer_norm(F.layer_norm(x, (16,)) @ y.T, (8,))",
        ),
        ("repeated", "return x.relu().relu() + y", "return x.relu().neg().relu() + y"),
        ("repeated", "return (-(-x)) + y", "return (-x) + y"),
        ("repeated", "return x.clamp(-1, 1).clamp(-1, 1) + y", "return x.clamp(-1, 1).clamp(-0.5, 1) + y"),
        ("inverse", "return x.exp().log() + y", "return (x.exp() + 1.0).log() + y"),
        ("not-negative", "return x.sigmoid().relu() + y", "return (x.sigmoid() - 0.5).relu() + y"),
        ("neutral", "return x * 1.0 + y", "return x * 1.5 + y"),
        ("neutral", "z = x + y\nreturn z - z", "z = x + y\nreturn z - x * z"),
        ("single-element-axis", "return x.sum(1, keepdim=True).mean(1) + y.sum(1)", "return x.sum(1) + y.mean(1)"),
    ],
)
def test_a_rule_sees_its_pattern_and_nothing_else(kind: str, redundant: str, needed: str) -> None:
    assert kind in kinds(redundant)
    assert kinds(needed) == []


def test_a_loss_that_torch_itself_decomposes_is_not_redundant() -> None:
    inputs = [tensor("x", 8, 16), tensor("labels", 8, dtype="i64", within=(0, 16))]
    task = capture_text("def f(x, labels):\n    return F.cross_entropy(x, labels)", "f", inputs=inputs)
    assert redundancies(task.forward) == ()


def test_a_redundancy_is_on_the_users_line() -> None:
    task = capture_text("def f(x):\n    y = x.relu()\n    return y.relu()", "f", inputs=[tensor("x", 8, 16)])
    (found,) = redundancies(task.forward)
    assert task.forward.nodes[-1].source is not None
    assert found.line == task.forward.nodes[-1].source.line
    assert found.message == "relu of relu is relu"
