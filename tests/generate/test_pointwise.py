"""Elementwise operators, with PyTorch's rules for NaN, types and broadcasting."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.divisions import inverse_for_bytes
from kernel_lsp.generate.ir.scalar import Constant, Operation
from tests.generate.harness import check, plan_text, scalar, tensor

SPECIAL = ("normal", "large", "special_nan", "special_inf")


@pytest.mark.parametrize(
    "calls",
    [
        "F.relu(x), F.gelu(x), F.gelu(x, approximate='tanh'), F.silu(x), torch.sigmoid(x), torch.tanh(x), F.mish(x)",
        "F.hardswish(x), F.hardsigmoid(x), F.hardtanh(x), F.relu6(x), F.leaky_relu(x, 0.2), F.elu(x, 1.3), F.selu(x)",
        "F.softplus(x), F.celu(x, 0.7), F.softsign(x), F.logsigmoid(x), F.tanhshrink(x), F.hardshrink(x)",
        "x.abs(), x.neg(), x.sign(), x.floor(), x.ceil(), x.round(), x.trunc(), x.frac()",
        "x.exp(), x.expm1(), x.exp2(), x.sin(), x.cos(), x.atan(), x.asinh(), x.erf(), x.erfc()",
        "x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp(max=0.1), torch.maximum(x, -x), torch.minimum(x, x * x)",
    ],
    ids=["activations", "hard activations", "soft activations", "rounding", "transcendental", "clamps"],
)
def test_unary_operators_are_right_and_keep_nan(calls: str) -> None:
    check(f"def f(x): return {calls}", inputs=[tensor("x", 6, 33)], families=SPECIAL)


def test_logarithms_and_roots_on_positive_input() -> None:
    calls = "x.log(), x.log1p(), x.log2(), x.log10(), x.sqrt(), x.rsqrt(), x.reciprocal()"
    calls += ", x ** 0.5, x ** 3, x ** -1, x ** 2.5"
    check(f"def f(x): x = x.abs() + 0.1; return {calls}", inputs=[tensor("x", 6, 33)])


def test_bytes_are_divided_without_a_division() -> None:
    text = "def f(x): return x.float() / 255, x.float() / 57.375, x.to(torch.float64) / 255, x.half() / 254"
    checked = check(text, inputs=[tensor("x", 40, 33, dtype="u8")])
    assert checked.text.count("byte_quotient(") == 1 + 3  # and its definition


def test_quotients_of_bytes_are_exact_in_16_bits_too() -> None:
    """A product with 1 / 255 and a difference become one fma: 255 / 255 - 1 was 6e-8, and a quotient by 0 infinite."""
    inputs = [tensor("x", 40, 33, dtype="u8"), tensor("mean", 33, dtype="bf16"), tensor("std", 33, dtype="bf16")]
    checked = check("def f(x, mean, std): return (x.to(mean.dtype) / 255 - mean) / std", inputs=inputs)
    assert checked.text.count("byte_quotient(") == 1 + 1  # and its definition


def test_the_inverse_of_a_divisor_is_tried_for_all_bytes() -> None:
    def inverse(divisor: float, dtype: DType) -> float | None:
        byte = Operation("cast", DType.F32, (Constant(1, dtype),))
        return inverse_for_bytes(Operation("div", DType.F32, (byte, Constant(divisor, DType.F32))))

    found = inverse(255.0, DType.U8)
    assert found is not None
    wanted = np.arange(256, dtype=np.float32) / np.float32(255)
    bytes_, factor = np.arange(256, dtype=np.longdouble), np.longdouble(found)
    quotients = (bytes_ * factor).astype(np.float32).astype(np.longdouble)
    rests = (bytes_ - quotients * 255).astype(np.float32).astype(np.longdouble)
    assert ((quotients + rests * factor).astype(np.float32) == wanted).all()
    assert inverse(0.0, DType.U8) is None
    assert inverse(float("inf"), DType.U8) is None
    assert inverse(255.0, DType.I32) is None


def test_binary_operators_broadcast() -> None:
    calls = "x + y, x - 2 * y, x * y, torch.atan2(x, y), torch.where(x > y, x, y)"
    check(f"def f(x, y): return {calls}", inputs=[tensor("x", 4, 1, 33), tensor("y", 5, 33)])


def test_equal_gradients_are_written_once() -> None:
    inputs = [tensor(name, 5, 8) for name in ("x", "y", "gate", "w")]
    checked = check("def f(x, y, gate, w): return gate.sigmoid() * (x + y) + w", inputs=inputs, backward=True)
    assert checked.plan.backward is not None
    assert [result.same_as for result in checked.plan.backward.results] == ["", "grad_x", "", "grad_out"]


def test_a_backward_writes_a_result_where_all_are_what_it_is_given() -> None:
    checked = check("def f(x, y): return x + y", inputs=[tensor("x", 5, 8), tensor("y", 5, 8)], backward=True)
    assert checked.plan.backward is not None
    assert [result.same_as for result in checked.plan.backward.results] == ["", "grad_x"]


def test_remainders_follow_python() -> None:
    calls = "x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode='floor'), torch.div(x, y, rounding_mode='trunc')"
    inputs = [tensor("x", 4, 33), tensor("y", 4, 33)]
    check(f"def f(x, y): y = y + 0.25; return {calls}", inputs=inputs, families=("normal",))


def test_integers_are_exact() -> None:
    calls = "a + b, a * b, a // b, a % b, a & b, a | b, a ^ b, ~a, a.abs(), -a, a / b, a ** 2, torch.maximum(a, b)"
    inputs = [tensor("a", 4, 33, dtype="i64", within=(-50, 50)), tensor("b", 33, dtype="i64", within=(1, 9))]
    check(f"def f(a, b): return {calls}", inputs=inputs)


def test_comparisons_and_logic() -> None:
    calls = "x > y, x >= 0, (x < y) & (y > 0), torch.isnan(x), ~(x == y), torch.logical_xor(x > 0, y > 0), x.isinf()"
    check(f"def f(x, y): return {calls}", inputs=[tensor("x", 4, 33), tensor("y", 33)], families=SPECIAL)


def test_casts_between_types() -> None:
    calls = "x.half(), x.to(torch.int32), (x > 0).float(), x.double() * 2, x.to(torch.bool), x.bfloat16() + 1"
    check(f"def f(x): return {calls}", inputs=[tensor("x", 4, 33)])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_other_floating_types_are_computed_in_float_or_double(dtype: str) -> None:
    inputs = [tensor("x", 4, 64, dtype=dtype), tensor("y", 64, dtype=dtype)]
    check("def f(x, y): return F.gelu(x * y + 0.5) * torch.rsqrt(y.abs() + 1)", inputs=inputs)


def test_tensors_made_of_nothing() -> None:
    calls = "torch.arange(x.shape[1]) * 2 + 1, torch.full_like(x, 3.5), torch.zeros_like(x) + x, x.tril(), x.triu(1)"
    calls += ", torch.special.xlogy(x.abs(), 2.0)"  # a number as `prims.scalar_tensor`
    check(f"def f(x): return {calls}", inputs=[tensor("x", 7, 9)], sizes=({}, {"B": 3}))


def test_a_number_of_the_caller_is_an_argument_of_the_kernel() -> None:
    checked = check("def f(x, scale): return x * scale", inputs=[tensor("x", 4, 33), scalar("scale", 2.5)])
    assert "where: scale" not in checked.text
    assert "float scale) {" in checked.text


def test_wide_loads_when_the_size_is_known_to_divide() -> None:
    text = """
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(64))
        def forward(self, x): return F.relu(x + self.bias)
    """
    checked = check(text, symbol="M", inputs=[tensor("x", 4, 64)], schedule={"m.vector": 4}, sizes=({}, {"B": 3}))
    assert "packs<4>(x)[pack]" in checked.text
    assert "packs<4>(bias)" in checked.text


def test_names_that_mean_something_in_cuda_are_renamed() -> None:
    check("def f(index, exp): return torch.exp(index) + exp", inputs=[tensor("index", 4, 8), tensor("exp", 4, 8)])


def test_a_pointwise_chain_is_one_kernel() -> None:
    assert check("def f(x): return (x * 2 + 1).relu().tanh() - x", inputs=[tensor("x", 4, 8)]).n_kernels == 1


def test_packs_that_read_little_come_in_twos() -> None:
    def text(code: str) -> str:
        inputs = [tensor("x", 8192, 8192), tensor("y", 8192, 8192)]
        return plan_text(f"def f(x, y): return {code}", inputs=inputs).realize({}).text

    assert "Pack<float, 4> x_pack[2];" in text("F.softplus(x)")
    assert "x_pack[2]" not in text("F.softplus(x) * y")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_gates_of_16_bits_are_quick(dtype: str) -> None:
    inputs = [tensor("x", 40, 33, dtype=dtype)]
    checked = check("def f(x): return torch.sigmoid(x), F.silu(x * 2)", inputs=inputs, families=SPECIAL)
    assert "quick_sigmoid(" in checked.text


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_quotients_and_roots_of_results_of_16_bits_need_not_be_exact(dtype: str) -> None:
    text = "def f(x, y): return x / ((y * y + x).abs().sqrt() + 1) / 0.1, x / y, y.abs().sqrt()"
    inputs = [tensor("x", 9, 40, dtype=dtype), tensor("y", 9, 40, dtype=dtype)]
    families = ("normal", "special_nan", "special_inf", "large")
    checked = check(text, inputs=inputs, families=families)
    assert "const float ratio = quick_quotient(x_value, " in checked.text
    is_alone_quick = dtype == "bf16"  # a quotient of f16 elements is rounded once: it must be the correct one
    assert ("quick_quotient(x_value, y_value)" in checked.text) == is_alone_quick
    assert ("quick_root(fabsf(y_value))" in checked.text) == is_alone_quick


@pytest.mark.parametrize(("width", "is_whole"), [(16, True), (12, False)])
def test_halves_of_rows_that_are_exchanged_are_read_in_packs(width: int, is_whole: bool) -> None:
    """A pack of 4 lies in one half where the halves are multiples of 4, and one load reads the other half's."""
    text = """
    def f(x, c):
        first, second = x.chunk(2, -1)
        return x * c + torch.cat((-second, first), -1) * c
    """
    inputs = [tensor("x", 3, 5, width), tensor("c", 5, width)]
    schedule, families = {"f.vector": 4}, ("normal", "special_nan")
    checked = check(text, inputs=inputs, schedule=schedule, sizes=({}, {"B": 2}), families=families)
    assert ("*packs<4>(&x_run[" in checked.text) == is_whole
    assert ("*packs<4>(x + (is_" in checked.text) == is_whole
    assert "x_run_2" not in checked.text
    assert ("where: D % 4 == 0" in checked.text) == is_whole


@pytest.mark.parametrize(
    "body",
    [
        "x * torch.tensor([0.299, 0.587, 0.114, 0.5])[:, None]",
        "x @ torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])[:, :2].repeat(11, 1)",
        "x[torch.tensor([3, 0, 0, 1])] + torch.tensor([True, False, False, True])[:, None]",
        "torch.minimum(x, torch.tensor([float('inf'), -1.0, 0.5, 1.0])[:, None])",
    ],
)
def test_small_constant_tensors_are_part_of_the_kernels(body: str) -> None:
    """They were arguments, which no call of the code passes: the operator was never used."""
    checked = check(f"def f(x): return {body}", inputs=[tensor("x", 4, 33)])
    assert [argument.name for argument in checked.task.arguments] == ["x"]
