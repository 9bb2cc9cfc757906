"""Gradients of operators whose own code in PyTorch cannot be traced: it changes tensors in place, asks for concrete
sizes or has a gradient of its own."""

from __future__ import annotations

import textwrap

import pytest

from tests.generate.harness import check, tensor


@pytest.mark.parametrize(
    ("cell", "step"),
    [
        ("GRUCell(4, 4)", "h = self.cell(x[:, step], h)"),
        ("LSTMCell(4, 4, bias=False)", "h, c = self.cell(x[:, step], (h, c))"),
    ],
)
def test_steps_of_a_cell(cell: str, step: str) -> None:
    text = f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.{cell}

            def forward(self, x):
                h, c = x[:, 0], x[:, 1]
                for step in range(x.shape[1]):
                    {step}
                return h, c
    """
    check(text, symbol="Model", inputs=[tensor("x", 3, 3, 4)], backward=True)


def test_normalized_weights() -> None:
    text = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
                self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 3, 3), dim=1)

            def forward(self, x):
                return self.linear(self.conv(x))
    """
    check(text, symbol="Model", inputs=[tensor("x", 2, 3, 8)], backward=True)


def test_distances_of_which_some_are_zero() -> None:
    text = "def f(x, y): return torch.cdist(x, y), torch.cdist(x, y, 1.0)"
    inputs = [tensor("x", 5, 4), tensor("y", 7, 4)]
    check(text, inputs=inputs, backward=True, families=("normal", "constant_rows"))


def test_repeated_edges() -> None:
    text = "def f(x): return F.pad(x, (2, 1, 0, 3), mode='replicate') * F.pad(x, (-1, 4, 2, 1), mode='replicate')"
    check(text, inputs=[tensor("x", 2, 3, 6, 5)], backward=True)


def test_affine_grids() -> None:
    text = "def f(theta, x): return F.affine_grid(theta, x.shape, align_corners=False) * x.sum()"
    check(text, inputs=[tensor("theta", 2, 2, 3), tensor("x", 2, 3, 6, 5)], backward=True)


def test_assignments_to_slices() -> None:
    text = """
    def f(x):
        result, last = torch.zeros_like(x, dtype=torch.float64), torch.zeros_like(x[:, 0])
        for step in reversed(range(x.shape[1])):
            last = x[:, step].sin() + 0.9 * last
            result[:, step] = last
        result[0, 1:] = 2 * result[1, 0]
        return result
    """
    check(textwrap.dedent(text), inputs=[tensor("x", 3, 5)], backward=True)
