"""Building blocks of elementwise lowering rules."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar import Constant, Scalar, cast, compare, operation, select
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.builder import Call, read


def elementwise(call: Call, body: Callable[..., Scalar], *operands: Tensor | Scalar) -> Tensor:
    """Return ``body(elements)`` with broadcasting. Operands are converted to the result's type first."""
    dtype = call.dtype()

    def element(index: tuple[Index, ...]) -> Scalar:
        return body(*(cast(element_of(operand, index), dtype) for operand in operands))

    return call.builder.pointwise(dtype, call.shape(), element)


def op(name: str, *operands: Scalar, dtype: DType | None = None) -> Scalar:
    """Return a scalar operator on operands of one type."""
    return operation(name, dtype or operands[0].dtype, *operands)


def number(value: float | Scalar, like: Scalar) -> Scalar:
    """Return a number in another scalar's type."""
    return cast(value if isinstance(value, Scalar) else Constant(float(value), DType.F64), like.dtype)


def parameter(call: Call, position: int, name: str, default: float | None = None) -> Scalar:
    """Return a number argument for `number`, which converts it to the type of its operand."""
    return call.scalar(position, name, DType.F64, default)


def element_of(operand: Tensor | Scalar, index: tuple[Index, ...]) -> Scalar:
    """Return the operand's value for element `index` of a result that it broadcasts to."""
    return read(operand, index) if isinstance(operand, Tensor) else operand


def operand_of(call: Call, position: int, name: str, dtype: DType | None = None) -> Tensor | Scalar:
    """Return an argument that may be a tensor or a number. A number gets `dtype`, else the result's type."""
    if call.is_tensor(position, name):
        return call.tensor(position, name)
    return call.scalar(position, name, dtype or call.dtype())


def clamped(x: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """Clamp to constant bounds. A NaN compares false and so stays."""
    if low is not None:
        x = select(compare("lt", x, low), low, x)
    if high is not None:
        x = select(compare("gt", x, high), high, x)
    return x
