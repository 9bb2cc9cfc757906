"""Convolutions of 16 bits and their gradients: values rounded once, in memory, and the library's tensor cores."""

from __future__ import annotations

import pytest

from .harness import check, check_program, plan_text, tensor


def module(rank: int, settings: str, behind: str = "F.gelu", dtype: str = "bf16") -> str:
    torch_dtype = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]
    return f"""
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv{rank}d({settings})
            self.to(torch.{torch_dtype})
        def forward(self, x): return {behind}(self.conv(x))
    """


CASES = [
    ("16, 16, 3, padding=1", (2, 16, 24)),
    ("16, 32, 3, padding=1", (2, 16, 6, 8)),
    ("16, 16, 3, padding=1, stride=2", (2, 16, 7, 8)),
    ("32, 32, 3, padding=1, groups=2", (2, 32, 4, 8)),
    ("16, 16, (2, 3, 3), padding=1", (1, 16, 3, 4, 4)),
]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("settings", "shape"), CASES)
def test_gradients_by_the_library(settings: str, shape: tuple[int, ...], dtype: str) -> None:
    checked = check(
        module(len(shape) - 2, settings, dtype=dtype),
        symbol="M",
        inputs=[tensor("x", *shape, dtype=dtype)],
        backward=True,
        schedule={f"m_backward.grad_{name}.contraction": "library" for name in ("input", "weight")},
    )
    assert checked.text.count("library: aten::convolution_backward(") == 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_what_two_gradients_multiply_is_computed_once(dtype: str) -> None:
    checked = check(
        module(1, "16, 16, 3, padding=1", dtype=dtype),
        symbol="M",
        inputs=[tensor("x", 2, 16, 24, dtype=dtype)],
        backward=True,
        schedule={f"m_backward.grad_{name}.contraction": "tensor_cores" for name in ("input", "weight")},
    )
    backward = checked.text[checked.text.index("op: m_backward") :]
    assert backward.count("0.3989422804014327f") == 1


def test_large_gradients_are_the_librarys_by_default() -> None:
    inputs = [tensor("x", 16, 64, 64, 64, dtype="bf16")]
    program = plan_text(module(2, "64, 64, 3, padding=1"), symbol="M", inputs=inputs, backward=True)
    assert program.render({}).count("library: aten::convolution_backward(") == 2


def test_channels_with_taps_of_their_own_take_no_library() -> None:
    inputs = [tensor("x", 8, 192, 56, 56, dtype="bf16")]
    text = module(2, "192, 192, 3, padding=1, groups=192", "F.silu")
    rendered = plan_text(text, symbol="M", inputs=inputs).render({})
    assert "library:" not in rendered
    assert "box of 1 x 1 x 2 x 4 elements" in rendered


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 16, 6, 8), (2, 16, 7, 9)])
def test_windows_of_neighbouring_channels_share_reads(shape: tuple[int, ...], dtype: str) -> None:
    checked = check(
        module(2, "16, 16, 3, padding=1, groups=16", "F.silu", dtype),
        symbol="M",
        inputs=[tensor("x", *shape, dtype=dtype)],
        schedule={"m.convolution.contraction": "direct", "m.box": "1x1x2x4"},
    )
    assert "box of 1 x 1 x 2 x 4 elements" in checked.text


PATCHES = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = {layer}
    def forward(self, x): return self.cut(x)
"""


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ("nn.Conv2d(3, 20, 4, 4)", (2, 3, 8, 12)),
        ("nn.Conv1d(2, 12, 5, 5)", (3, 2, 38)),
        ("nn.ConvTranspose2d(24, 3, 4, 4)", (2, 24, 5, 3)),
    ],
)
def test_patches_of_few_channels_are_one_product(layer: str, shape: tuple[int, ...]) -> None:
    program = plan_text(PATCHES.format(layer=layer), symbol="M", inputs=[tensor("x", *shape)], backward=True)
    assert (
        " % 4 == 0 && " not in check_program(program, schedule={}).text
    )  # no sum looks for the taps that reach a position
