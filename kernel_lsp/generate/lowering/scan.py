"""Running sums, products and extremes along one dim."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.lowering.builder import Call, positions
from kernel_lsp.generate.lowering.contraction import converted
from kernel_lsp.generate.lowering.table import lowers
from kernel_lsp.generate.scalar import Access, cast
from kernel_lsp.generate.tensor import Scan, Tensor


def scan_dtype(dtype: DType) -> DType:
    """PyTorch keeps running sums of f32 in f64 on the CPU; ours must not be worse, and a scan is bound by memory."""
    return DType.F64 if dtype.is_floating else dtype


def _scan(kind: str) -> Callable[[Call], Tensor]:
    def rule(call: Call) -> Tensor:
        source = call.tensor(0)
        if not source.shape:
            return call.builder.pointwise(call.dtype(), (), lambda index: Access(source, ()))
        axis = call.axis(1, "dim", len(source.shape))
        dtype = scan_dtype(call.dtype())
        variables = call.builder.variables(source.shape)
        body = cast(Access(source, positions(variables)), dtype)
        result = call.builder.tensor(
            call.builder.result_name(), call.dtype(), source.shape, Scan(kind, variables, axis, body)
        )
        return converted(call, result)

    return rule


lowers("cumsum")(_scan("sum"))
lowers("cumprod")(_scan("prod"))


@lowers("logcumsumexp", "cummax", "cummin")
def _unsupported_scan(call: Call) -> Tensor:
    call.fail("this scan is not implemented")
