"""Activations and their gradients, as a table of formulas."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.scalar import Scalar, both, cast, compare, operation, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import clamped, elementwise, number, op, parameter
from kernel_lsp.generate.lowering.builder import Call, lowers

FORMULAS = {
    "gelu(x, approximate: fixed = 'none')": "gelu_tanh(x) if approximate == 'tanh' else gelu(x)",
    "gelu_backward(grad, x, approximate: fixed = 'none')": (
        "grad * gelu_tanh_derivative(x) if approximate == 'tanh' else grad * gelu_derivative(x)"
    ),
    "silu(x)": "silu(x)",
    "silu_backward(grad, x)": "grad * sigmoid(x) * (1 + x * (1 - sigmoid(x)))",
    "relu6(x)": "clamp(x, 0, 6)",
    "hardtanh(x, min_val: number = -1, max_val: number = 1)": "clamp(x, min_val, max_val)",
    "hardtanh_backward(grad, x, min_val: number = -1, max_val: number = 1)": (
        "0 if x <= min_val or x >= max_val else grad"
    ),
    "hardsigmoid(x)": "hard(x)",
    "hardsigmoid_backward(grad, x)": "grad / 6 if x > -3 and x < 3 else 0",
    "hardswish(x)": "x * hard(x)",
    "hardswish_backward(grad, x)": "0 if x < -3 else grad * (x / 3 + 0.5) if x <= 3 else grad",
    "leaky_relu(x, negative_slope: number = 0.01)": "x if x > 0 else x * negative_slope",
    "leaky_relu_backward(grad, x, negative_slope: number)": "grad if x > 0 else grad * negative_slope",
    "prelu(x, weight)": "x if x > 0 else weight * x",
    "_prelu_kernel(x, weight)": "x if x > 0 else weight * x",
    "elu(x, alpha: fixed = 1, scale: fixed = 1, input_scale: fixed = 1)": (
        "x * scale if x > 0 else expm1(x * input_scale) * (alpha * scale)"
    ),
    "elu_backward(grad, alpha: fixed, scale: fixed, input_scale: fixed, is_result: fixed, x)": (
        "grad * ((x + alpha * scale) * input_scale if is_result else"
        " exp(x * input_scale) * (alpha * scale * input_scale)) if x <= 0 else grad * scale"
    ),
    # Self-Normalizing Neural Networks, Klambauer et al. 2017, with ATen's digits.
    "selu(x)": "x * 1.0507009873554805 if x > 0 else expm1(x) * (1.6732632423543772 * 1.0507009873554805)",
    "celu(x, alpha: number = 1)": "x if x > 0 else expm1(x / alpha) * alpha",
    "softplus(x, beta: number = 1, threshold: number = 20)": (
        "x if x * beta > threshold else log1p(exp(x * beta)) / beta"
    ),
    "softplus_backward(grad, x, beta: number, threshold: number)": (
        "grad if x * beta > threshold else grad * sigmoid(x * beta)"
    ),
    "mish(x)": "x * tanh(soft(x))",
    "mish_backward(grad, x)": "grad * (tanh(soft(x)) + x * sigmoid(x) * (1 - tanh(soft(x)) * tanh(soft(x))))",
    "log_sigmoid(x)": "(x if x < 0 else 0) - log1p(exp(-abs(x)))",
    "log_sigmoid_forward(x)": "(x if x < 0 else 0) - log1p(exp(-abs(x)))",
    "sigmoid_backward(grad, y)": "grad * ((1 - y) * y)",
    "tanh_backward(grad, y)": "grad * (1 - y * y)",
    "threshold(x, threshold: number, value: number)": "value if x <= threshold else x",
    "threshold_backward(grad, x, threshold: number)": "0 if x <= threshold else grad",
}
"""Result of an element by the operator and its arguments in ATen's order: tensors, numbers, and `fixed` constants of
the kernel. Functions are those that code generation knows."""
PARTS = {"hard(x)": "clamp(x + 3, 0, 6) / 6", "soft(x)": "x if x > 20 else log1p(exp(x))"}
"""Functions that formulas share. The logarithm of 1 + exp(x) is x itself where that is exact in f32."""
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"},
    **{ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq"},
}

Value = Scalar | float | str


class _Formula:
    """Evaluates an expression for operands of one type. Constants of the kernel are computed as Python does."""

    def __init__(self, values: Mapping[str, Value], like: Scalar) -> None:
        self._values, self._like = values, like

    def scalar(self, node: ast.expr) -> Scalar:
        value = self._value(node)
        assert not isinstance(value, str)
        return value if isinstance(value, Scalar) else number(value, self._like)

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                return self._values[name]
            case ast.UnaryOp(operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.UnaryOp(operand=operand):
                return op("neg", self.scalar(operand))
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                condition = self._value(test)
                if isinstance(condition, Scalar):
                    return select(condition, self.scalar(body), self.scalar(otherwise))
                return self._value(body if condition else otherwise)
            case ast.BoolOp(op=kind, values=[left, right]):
                conditions = self.scalar(left), self.scalar(right)
                is_and = isinstance(kind, ast.And)
                return both(*conditions) if is_and else operation("logical_or", DType.BOOL, *conditions)
            case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]):
                return self._combined(OPERATORS[type(kind)], left, right)
            case ast.Call(func=ast.Name(id="clamp"), args=arguments):
                return clamped(*map(self.scalar, arguments))
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                x, part = self.scalar(argument), PARTS.get(f"{name}(x)")
                return op(name, x) if part is None else _Formula({"x": x}, x).scalar(_parsed(part))
        raise SyntaxError(f"not in a formula: {ast.unparse(node)}")

    def _combined(self, name: str, left: ast.expr, right: ast.expr) -> Value:
        values = self._value(left), self._value(right)
        if not any(isinstance(value, Scalar) for value in values):
            return getattr(operator, name)(*values)
        operands = self.scalar(left), self.scalar(right)
        return compare(name, *operands) if name in ("lt", "le", "gt", "ge") else op(name, *operands)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _rule(name: str, signature: ast.arguments, body: ast.expr) -> Callable[[Call], Tensor | tuple[Tensor | None, ...]]:
    defaults = [None] * (len(signature.args) - len(signature.defaults)) + [*map(ast.literal_eval, signature.defaults)]
    kinds = [ast.unparse(argument.annotation) if argument.annotation else "tensor" for argument in signature.args]
    names = [argument.arg for argument in signature.args]
    tensors = [position for position, kind in enumerate(kinds) if kind == "tensor"]

    def rule(call: Call) -> Tensor | tuple[Tensor | None, ...]:
        values: dict[str, Value] = {}
        for position, (argument, kind, default) in enumerate(zip(names, kinds, defaults, strict=True)):
            if kind == "number":
                values[argument] = cast(parameter(call, position, argument, default), call.dtype())
            elif kind == "fixed":
                raw = call.raw(position, argument, default)
                values[argument] = raw if isinstance(raw, str) else call.number(position, argument, default)

        def element(*operands: Scalar) -> Scalar:
            own = {names[position]: operand for position, operand in zip(tensors, operands, strict=True)}
            return _Formula(values | own, operands[0]).scalar(body)

        out = elementwise(call, element, *map(call.tensor, tensors))
        return (out, None) if name.endswith("_forward") else out

    return rule


for _signature, _text in FORMULAS.items():
    _function = ast.parse(f"def {_signature}: pass").body[0]
    assert isinstance(_function, ast.FunctionDef)
    lowers(_function.name)(_rule(_function.name, _function.args, _parsed(_text)))
