"""Scatter kernels: one thread per update, atomic where several updates may hit one element."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.coordinates import name_coordinates
from kernel_lsp.generate.codegen.kernel import RenderedKernel, blocks_of, rendered
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.operators import stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ScatterGroup
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.row_major import ravel

LOCAL_NAMES = ("i",)


def render_scatter(kernel: KernelWriter, group: ScatterGroup, threads: int, comment: str) -> RenderedKernel:
    """Render the kernel of the updates. Its target was prepared before."""
    scope = Scope(kernel)
    scope.define(group.position, "i")
    name_coordinates(kernel, as_index(group.position), group.shape)
    prefix = "(long long)" if kernel.index_type == "long long" else ""
    scope.line(f"const {kernel.index_type} i = {prefix}blockIdx.x * {threads} + threadIdx.x;")
    scope.line(f"if (i >= {kernel.size('n', group.position.extent)}) return;")
    if group.mask is not None:
        scope.line(f"if (!({scope.value(group.mask).text})) return;")
    flat = ravel(group.index, group.tensor.shape)
    target = kernel.target(group.tensor)
    text = scope.value(group.scalar)
    offset = scope.index(flat).text
    dtype = group.tensor.dtype
    if group.kind == "set":
        scope.line(f"{target}[{offset}] = {stored(text, group.scalar.dtype, dtype)};")
    elif dtype == DType.I64:
        pointer = f"reinterpret_cast<unsigned long long*>({target} + {offset})"
        scope.line(f"atomicAdd({pointer}, static_cast<unsigned long long>({text.text}));")
    else:
        scope.line(f"atomicAdd({target} + {offset}, {text.text});")
    return rendered(kernel, comment, scope.lines, (blocks_of(group.position.extent, threads),), (threads,))


ATOMIC_TYPES = (DType.F32, DType.F64, DType.I32, DType.I64)
"""Element types that can be added to atomically."""
