"""Gradients of a depthwise convolution: one kernel that has a plane on chip, and small sums."""

from __future__ import annotations

import pytest

from .harness import check, plan_text, tensor

KERNEL = "m_backward_grad_x("
KNOB = "m_backward.grad_parts.windows"


def module(settings: str, body: str = "F.silu(self.conv(x))") -> str:
    return f"""
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d({settings})
            self.norm = nn.BatchNorm2d(3)
        def forward(self, x): return {body}
    """


@pytest.mark.parametrize(
    ("settings", "high", "wide", "strips"),
    [
        ("3, 3, 3, padding=1, groups=3", 8, 10, 1),
        ("3, 3, 3, padding=1, groups=3", 9, 6, 4),
        ("3, 3, 3, groups=3", 8, 7, 2),
        ("3, 3, (5, 3), padding=(2, 0), groups=3", 9, 6, 2),
        ("3, 3, (3, 4), padding=(2, 2), groups=3, bias=False", 6, 9, 4),
        ("3, 3, 7, padding=3, groups=3", 10, 10, 1),
        ("3, 3, (1, 4), padding=(0, 3), groups=3", 4, 12, 2),
    ],
)
def test_one_kernel_has_all_gradients_of_a_plane(settings: str, high: int, wide: int, strips: int) -> None:
    checked = check(
        module(settings),
        symbol="M",
        inputs=[tensor("x", 2, 3, high, wide)],
        backward=True,
        families=("normal", "small_integers"),
        sizes=({}, {"B": 1, "H": high - 1, "W": wide - 1}),
        schedule={KNOB: strips},
    )
    assert KERNEL in checked.text
    assert f"grad_parts: f32[B, {strips}, 3, " in checked.text
    assert checked.plan.backward is not None
    assert len(checked.plan.backward.steps) == 2
    assert "product" not in {scratch.name for scratch in checked.plan.backward.scratch}


@pytest.mark.parametrize("strips", [0, 1])
def test_the_schedule_says_whether_they_go_apart(strips: int) -> None:
    settings = "3, 3, 3, padding=1, groups=3"
    inputs = [tensor("x", 2, 3, 8, 8)]
    checked = check(module(settings), symbol="M", inputs=inputs, backward=True, schedule={KNOB: strips})
    assert ("grad_parts: " in checked.text) == bool(strips)


@pytest.mark.parametrize(
    "body",
    [
        "self.conv(x)",
        "F.relu(self.conv(x)) + x",
        "F.relu(self.norm(self.conv(x)))",
        "F.avg_pool2d(F.gelu(self.conv(F.relu(x))), 2)",
        "self.conv(x).flip(-1)",
    ],
)
def test_what_is_around_the_convolution(body: str) -> None:
    checked = check(
        module("3, 3, 3, padding=1, groups=3", body),
        symbol="M",
        inputs=[tensor("x", 2, 3, 8, 8)],
        backward=True,
        sizes=({}, {"B": 1}),
    )
    assert "grad_parts: " in checked.text


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_elements_of_16_bits(dtype: str) -> None:
    text = "def f(x, w, b): return F.silu(F.conv2d(x, w, b, padding=1, groups=3))"
    inputs = [tensor("x", 2, 3, 8, 6, dtype=dtype), tensor("w", 3, 1, 3, 3, dtype=dtype), tensor("b", 3, dtype=dtype)]
    checked = check(text, inputs=inputs, backward=True)
    assert "grad_parts: f32" in checked.text


@pytest.mark.parametrize(
    "settings",
    [
        "3, 3, 3, stride=2, groups=3",
        "3, 3, 3, dilation=2, groups=3",
        "3, 6, 3, groups=3",
        "3, 3, 9, groups=3",
        "3, 3, 1, padding=1, groups=3",
    ],
)
def test_other_convolutions_go_apart(settings: str) -> None:
    assert not is_offered(module(settings), 16)


def test_planes_that_do_not_fit_shared_memory_go_in_strips() -> None:
    text = module("3, 3, 3, padding=1, groups=3")
    assert offered(text, 56) == (0, 1, 2, 4, 8, 16)
    assert offered(text, 112) == (0, 4, 8, 16)
    assert not is_offered(text, 2048)


def is_offered(text: str, size: int) -> bool:
    return bool(offered(text, size))


def offered(text: str, size: int) -> tuple[object, ...]:
    program = plan_text(text, symbol="M", inputs=[tensor("x", 2, 3, size, size)], backward=True)
    return next((knob.values for knob in program.realize({}).knobs if knob.name == KNOB), ())
