"""Running sums, products, extremes and log-sum-exps along one dim."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.scalar import Access, Constant, cast
from kernel_lsp.generate.ir.tensor import Scan, Tensor
from kernel_lsp.generate.lowering.builder import Call, accumulation_dtype, lowers, positions

NARROW = (DType.I16, DType.I8, DType.U8, DType.BOOL)


def scan_dtype(kind: str, dtype: DType) -> DType:
    """Return the accumulation type of a scan. Products are combined in double: parts of a row may overflow in single
    precision where the whole does not. Narrow integers are combined in 32 bits, whose lower bits are the same."""
    if dtype in NARROW:
        return DType.I32
    if kind == "prod" and dtype.is_floating:
        return DType.F64
    return accumulation_dtype(dtype)


def _scan(kind: str) -> Callable[[Call], Tensor]:
    def rule(call: Call) -> Tensor:
        return _running(call, kind, 0, call.dtype())

    return rule


def _extreme(kind: str) -> Callable[[Call], tuple[Tensor, Tensor]]:
    def rule(call: Call) -> tuple[Tensor, Tensor]:
        source = call.tensor(0).dtype
        return _running(call, kind, 0, source), _running(call, f"arg{kind}", 1, source)

    return rule


def _running(call: Call, kind: str, item: int, combined: DType) -> Tensor:
    """Return result `item` of the call: a scan of its argument, of elements of type `combined`."""
    source, dtype = call.tensor(0), call.dtype(item)
    if not source.shape:
        return call.builder.pointwise(dtype, (), lambda index: Constant(0, dtype) if item else Access(source, ()))
    axis = call.axis(1, "dim", len(source.shape))
    variables = call.builder.variables(source.shape)
    body = cast(cast(Access(source, positions(variables)), combined), scan_dtype(kind, combined))
    name = f"{call.builder.result_name()}_indices" if item else call.builder.result_name()
    return call.builder.tensor(name, dtype, source.shape, Scan(kind, variables, axis, body))


lowers("cumsum")(_scan("sum"))
lowers("cumprod")(_scan("prod"))
lowers("logcumsumexp")(_scan("logsumexp"))
lowers("cummax")(_extreme("max"))
lowers("cummin")(_extreme("min"))
