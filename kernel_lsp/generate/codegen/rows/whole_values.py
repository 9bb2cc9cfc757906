"""Values common to all rows: reductions of a whole tensor that every block computes for itself."""

from __future__ import annotations

from kernel_lsp.generate.codegen.accumulator import Accumulator, combination_of, counted
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, WholeReduction, scalars_of_group
from kernel_lsp.generate.ir.scalar import accesses


def find_whole(scope: Scope, group: RowGroup, whole: WholeReduction, n_threads: int) -> None:
    """Compute a whole reduction by the `n_threads` of a block, and bind its reads to the result."""
    kernel = scope.kernel
    scope.hoist([whole.scalar], [whole.position])
    name = f"{whole.tensor.name}_value" if kernel.is_parameter(whole.tensor.name) else whole.tensor.name
    count = counted(whole.kind, whole.scalar, kernel)
    scalar = count or whole.scalar
    accumulator = Accumulator.start(
        scope, name, whole.kind, scalar.dtype, whole.tensor.dtype, is_count=count is not None
    )
    limit = kernel.size(f"n_{name}", whole.position.extent)
    with scope.open(f"for (int at = threadIdx.x; at < {limit}; at += {n_threads})") as inner:
        inner.define(whole.position, "at")
        accumulator.add(inner, inner.value(scalar))
    base, dtype = combination_of(whole.kind, accumulator.dtype)
    helper = kernel.use(f"block_{base}", dtype)
    scope.line(f"{accumulator.name} = {helper}<{n_threads}>({accumulator.name});")
    for access in accesses(*scalars_of_group(group)):
        if access.tensor is whole.tensor:
            scope.bind(access, accumulator.result)
