"""Weight gradients of convolutions on tensor cores, from a copy of the input for each tap along a row."""

from __future__ import annotations

import pytest

from .harness import check, plan_text, tensor

KNOB = "m_backward.grad_weight.contraction"


def module(rank: int, settings: str) -> str:
    return f"""
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv{rank}d({settings}, bias=False)
        def forward(self, x): return self.conv(x)
    """


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ("16, 16, 3, padding=1", (2, 16, 24)),
        ("16, 16, 3, padding=1", (2, 16, 6, 8)),
        ("16, 16, 3, padding=(2, 0), dilation=(2, 1)", (2, 16, 7, 10)),
        ("16, 16, 3, padding=1, stride=2", (2, 16, 7, 8)),
        ("16, 16, 3, padding=(2, 1), stride=(3, 2), dilation=(2, 1)", (2, 16, 9, 8)),
        ("32, 32, 3, padding=1, groups=2", (2, 32, 4, 8)),
        ("16, 16, (2, 3, 3), padding=1", (1, 16, 3, 4, 4)),
    ],
)
def test_a_copy_for_each_tap_along_a_row(settings: str, shape: tuple[int, ...]) -> None:
    checked = check(
        module(len(shape) - 2, settings),
        symbol="M",
        inputs=[tensor("x", *shape)],
        backward=True,
        families=("normal", "small_integers"),
        schedule={KNOB: "by_taps"},
    )
    assert "scratch: by_taps: f32" in checked.text


def test_rows_of_whole_pieces_are_offered_a_copy() -> None:
    assert "by_taps" in ways("64, 64, 3, padding=1", 56)
    assert "by_taps" not in ways("64, 64, 3, padding=1", 55)
    assert "by_taps" not in ways("64, 64, 1", 56)


def ways(settings: str, size: int) -> tuple[object, ...]:
    program = plan_text(module(2, settings), symbol="M", inputs=[tensor("x", 32, 64, size, size)], backward=True)
    return next(knob.values for knob in program.realize({}).knobs if knob.name == KNOB)
