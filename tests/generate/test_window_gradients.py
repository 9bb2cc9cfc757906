"""Gradients of a convolution with a pooling behind it: one kernel that recomputes the windows, and small sums."""

from __future__ import annotations

import pytest

from .harness import check, plan_text, tensor

FAMILIES = ("normal", "small_integers", "special_nan", "zeros")
KERNEL = "m_backward_grad_parts("
KNOB = "m_backward.grad_parts.windows"


def module(settings: str, body: str = "F.max_pool2d(F.relu(self.conv(x)), 2)") -> str:
    return f"""
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d({settings})
        def forward(self, x): return {body}
    """


@pytest.mark.parametrize(
    ("settings", "n_channels", "high", "wide"),
    [
        ("1, 8, 3", 1, 8, 10),
        ("3, 6, 3, padding=1", 3, 6, 8),
        ("1, 3, (5, 3), padding=2", 1, 8, 6),
        ("2, 4, 1", 2, 4, 4),
    ],
)
def test_one_kernel_has_the_sums_of_each_image(settings: str, n_channels: int, high: int, wide: int) -> None:
    checked = check(
        module(settings),
        symbol="M",
        inputs=[tensor("x", 3, n_channels, high, wide)],
        backward=True,
        families=FAMILIES,
        sizes=({}, {"B": 1}, {"H": high - 2, "W": wide - 2}),
    )
    assert KERNEL in checked.text
    assert checked.plan.backward is not None
    assert len(checked.plan.backward.steps) == 2


@pytest.mark.parametrize("channels", [0, 1, 4])
def test_a_block_has_as_many_output_channels_as_the_schedule_says(channels: int) -> None:
    inputs = [tensor("x", 3, 1, 8, 8)]
    checked = check(module("1, 8, 3"), symbol="M", inputs=inputs, backward=True, schedule={KNOB: channels})
    assert (KERNEL in checked.text) == bool(channels)


def test_without_relu_and_bias() -> None:
    text = module("1, 4, 3, bias=False", "F.max_pool2d(self.conv(x), 2)")
    checked = check(text, symbol="M", inputs=[tensor("x", 3, 1, 8, 8)], backward=True, families=FAMILIES)
    assert KERNEL in checked.text


def test_without_the_gradient_of_the_image() -> None:
    text = module("1, 8, 3", "F.max_pool2d(F.relu(self.conv(x.detach())), 2)")
    checked = check(text, symbol="M", inputs=[tensor("x", 3, 1, 10, 10)], backward=True, families=FAMILIES)
    assert KERNEL in checked.text
    assert "grad_parts: f32[B, 1, 80]" in checked.text


OF_OPEN_CHANNELS = "def f(x, w, b): return F.max_pool2d(F.relu(F.conv2d(x, w.view(-1, 1, 3, 3), b)), 2)"


@pytest.mark.parametrize("launches", [None, "each", "cooperative"])
def test_an_open_number_of_output_channels(launches: str | None) -> None:
    """Weights are inputs: an infinite or NaN one meets no zeros outside of what is convolved."""
    checked = check(
        OF_OPEN_CHANNELS,
        inputs=[tensor("x", 2, 1, 8, 10), tensor("w", 8, 9), tensor("b", 8)],
        backward=True,
        schedule={"f_backward.launches": launches} if launches else {},
        families=("normal", "special_nan", "special_mixed"),
        sizes=({}, {"B2": 16, "B": 1}, {"B2": 24, "H": 6}),
    )
    assert "f_backward_grad_parts(" in checked.text
    assert "// where: B2 % 8 == 0" in checked.text


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ("1, 8, 3, stride=2", "F.max_pool2d(F.relu(self.conv(x)), 2)"),
        ("1, 8, 4", "F.max_pool2d(F.relu(self.conv(x)), 2)"),
        ("1, 8, 3", "F.max_pool2d(F.relu(self.conv(x)), 3)"),
        ("1, 8, 3", "F.max_pool2d(F.relu(self.conv(x)), 2, 1)"),
        ("1, 8, 3", "F.max_pool2d(F.relu6(self.conv(x)), 2)"),
        ("1, 8, 3", "F.avg_pool2d(F.relu(self.conv(x)), 2)"),
    ],
)
def test_other_windows_go_apart(settings: str, body: str) -> None:
    assert not is_offered(module(settings, body), 1, 16)


def test_planes_that_do_not_fit_shared_memory_go_apart() -> None:
    assert is_offered(module("3, 8, 3, padding=1"), 3, 32)
    assert not is_offered(module("3, 8, 3, padding=1"), 3, 224)


@pytest.mark.parametrize(
    "body", ["F.max_pool2d(F.relu(self.conv(x)), 2)", "F.max_pool2d(self.conv(x), 2, ceil_mode=True)"]
)
def test_planes_that_windows_do_not_cover_go_apart(body: str) -> None:
    """The contract would exclude the captured sizes."""
    assert is_offered(module("1, 8, 3", body), 1, 16)
    assert not is_offered(module("1, 8, 3", body), 1, 15)


def is_offered(text: str, n_channels: int, size: int) -> bool:
    inputs = [tensor("x", 2, n_channels, size, size)]
    program = plan_text(text, symbol="M", inputs=inputs, backward=True)
    return KNOB in {knob.name for knob in program.realize({}).knobs}
