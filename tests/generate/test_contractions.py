"""Matrix products and convolutions, however they are computed, with what follows them."""

from __future__ import annotations

import pytest

from kernel_lsp.generate.program import Program
from kernel_lsp.generate.schedule.knobs import Knob
from tests.generate.harness import check, plan_text, tensor

WAYS = ["direct", "rows", "tiled", "split_warps", "tensor_cores"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["a @ b", "(b.t() @ a.t()).t()", "torch.relu(a @ b) + 1"])
def test_matrix_products(call: str, way: str) -> None:
    schedule = {f"f.{name}.contraction": way for name in ("mm", "out", "matmul")}
    check(f"def f(a, b): return {call}", inputs=[tensor("a", 37, 50), tensor("b", 50, 19)], schedule=schedule)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_matrix_products_in_other_types(dtype: str) -> None:
    inputs = [tensor("a", 20, 70, dtype=dtype), tensor("b", 70, 40, dtype=dtype)]
    check("def f(a, b): return a @ b", inputs=inputs, schedule={"f.mm.contraction": "tiled"})


def test_batched_matrix_products_and_einsum() -> None:
    inputs = [tensor("a", 3, 20, 30), tensor("b", 3, 30, 10)]
    check("def f(a, b): return torch.bmm(a, b), torch.einsum('bij,bjk->bik', a, b)", inputs=inputs, backward=True)


def test_a_tensor_times_a_matrix() -> None:
    check("def f(a, b): return a @ b", inputs=[tensor("a", 2, 3, 5, 8), tensor("b", 8, 6)], backward=True)


def test_matrix_vector_and_dot() -> None:
    check("def f(a, v): return a @ v, torch.dot(v, v)", inputs=[tensor("a", 33, 70), tensor("v", 70)], backward=True)


LINEAR = """
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(24, 40)
    def forward(self, x): return F.relu(self.fc(x))
"""


@pytest.mark.parametrize("way", WAYS)
def test_linear_with_relu_is_one_kernel(way: str) -> None:
    checked = check(
        LINEAR, symbol="Linear", inputs=[tensor("x", 9, 24)], schedule={"linear.addmm.contraction": way}, backward=True
    )
    assert checked.n_kernels == 1


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Conv2d(4, 6, 3, padding=1)",
        "nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2)",
        "nn.Conv2d(4, 4, 3, groups=4)",
        "nn.Conv2d(4, 6, (3, 5), groups=2, bias=False)",
        "nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)",
        "nn.ConvTranspose2d(4, 6, 3, groups=2)",
    ],
)
@pytest.mark.parametrize("way", ["direct", "tiled"])
def test_convolutions_forward_and_backward(layer: str, way: str) -> None:
    text = f"""
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = {layer}
        def forward(self, x): return self.conv(x)
    """
    names = ("convolution", "grad_input", "grad_weight", "convolution_backward")
    schedule = {f"{op}.{name}.contraction": way for name in names for op in ("m", "m_backward")}
    check(text, symbol="M", inputs=[tensor("x", 2, 4, 9, 11)], backward=True, schedule=schedule)


@pytest.mark.parametrize("n_dims", [1, 3])
def test_convolutions_in_one_and_three_dims(n_dims: int) -> None:
    shape = (2, 3, *(6, 7, 8)[:n_dims])
    text = f"""
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.up = nn.Conv{n_dims}d(3, 4, 3, padding=1), nn.ConvTranspose{n_dims}d(4, 2, 2, stride=2)
        def forward(self, x): return self.up(F.relu(self.conv(x)))
    """
    check(text, symbol="M", inputs=[tensor("x", *shape)])


def test_convolution_relu_pool_is_one_kernel() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3)
        def forward(self, x): return F.max_pool2d(F.relu(self.conv(x)), 2)
    """
    checked = check(text, symbol="M", inputs=[tensor("x", 2, 1, 14, 14)], backward=True, sizes=({}, {"B": 3}))
    assert checked.n_kernels == 1


def test_attention_written_out_and_as_one_call() -> None:
    text = """
    def f(q, k, v):
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return scores.softmax(-1) @ v, F.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    inputs = [tensor(name, 2, 2, 9, 16) for name in "qkv"]
    check(text, inputs=inputs)


def test_gelu_mlp_and_swiglu() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.gate, self.down = nn.Linear(16, 40), nn.Linear(16, 40), nn.Linear(40, 16)
        def forward(self, x): return self.down(F.gelu(self.up(x))), self.down(F.silu(self.gate(x)) * self.up(x))
    """
    check(text, symbol="M", inputs=[tensor("x", 2, 7, 16)], backward=True)


PROJECTION = "def f(x, w): return F.linear(x.flatten(2).permute(2, 0, 1), w)"


@pytest.mark.parametrize("way", ["direct", "tiled", "tensor_cores"])
def test_rows_of_a_repeated_matrix_are_rows_of_one_product(way: str) -> None:
    inputs = [tensor("x", 2, 16, 6, 8), tensor("w", 24, 16)]
    knob = _contraction_knob(plan_text(PROJECTION, inputs=inputs))
    check(PROJECTION, inputs=inputs, schedule={knob.name: way}, sizes=({}, {"H": 5}))


def test_a_projection_of_pairs_of_rows_uses_tensor_cores() -> None:
    program = plan_text(PROJECTION, inputs=[tensor("x", 2, 128, 128, 128), tensor("w", 384, 128)])
    assert _contraction_knob(program).default == "tensor_cores"


def _contraction_knob(program: Program) -> Knob:
    return next(knob for knob in program.knobs if knob.name.endswith(".contraction"))


@pytest.mark.parametrize(
    ("text", "left", "right", "default"),
    [
        ("def f(x, w): return F.linear(x, w)", (10, 25088), (4096, 25088), "register_tiles"),
        ("def f(x, w): return F.linear(x.flatten(1), w)", (10, 512, 7, 7), (4096, 25088), "register_tiles"),
        ("def f(x, w): return x @ w", (1920, 49, 32), (1920, 32, 49), "tensor_cores"),
        ("def f(x, w): return x @ w", (19, 49, 32), (19, 32, 49), "split_warps"),
    ],
    ids=[
        "a classifier of few rows",
        "that of a feature map",
        "many products of few terms",
        "few products of few terms",
    ],
)
def test_products_of_networks_have_the_way_that_was_fastest(
    text: str, left: tuple[int, ...], right: tuple[int, ...], default: str
) -> None:
    program = plan_text(text, inputs=[tensor("x", *left), tensor("w", *right)])
    assert _contraction_knob(program).default == default


def test_an_attention_over_pairs_is_products() -> None:
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v)"
    for n_keys, default in ((2, "products"), (64, "online")):
        program = plan_text(text, inputs=[tensor(name, 32, 8, n_keys, 64) for name in "qkv"])
        assert {knob.default for knob in program.knobs if knob.name.endswith(".attention")} == {default}


def test_as_many_groups_as_channels_are_a_constant() -> None:
    text = "def f(x): return F.conv2d(x, torch.full((x.shape[1], 1, 3, 3), 0.5), groups=x.shape[1])"
    checked = check(text, inputs=[tensor("x", 2, 3, 9, 8)], backward=True, sizes=({}, {"B": 1}))
    assert [symbol.name for symbol in checked.task.symbols] == ["B", "H", "W"]


def test_a_library_writes_to_what_the_operation_returns_of_its_result() -> None:
    text = "def f(x, w):\n    y = F.linear(x, w)\n    return y, F.relu(y)"
    inputs = [tensor("x", 48, 64, dtype="bf16"), tensor("w", 32, 64, dtype="bf16")]
    program = plan_text(text, inputs=inputs)
    ways = {knob.name: "library" for knob in program.knobs if "library" in knob.values}
    checked = check(text, inputs=inputs, schedule=ways)
    (step,) = [step for step in checked.plan.forward.steps if not hasattr(step, "kernel")]
    assert list(step.results) == [checked.plan.forward.outputs[0].name]
    assert checked.n_kernels == 1
