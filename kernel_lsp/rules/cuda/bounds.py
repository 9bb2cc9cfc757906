"""KL201: the check of an index against the size."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import BLOCK_WORDS, THREAD_WORDS, WARNING, declare, hit, is_barrier
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads import block_names, may_depend_on_thread, thread_names
from kernel_lsp.rules.finding import QuickFix, TextEdit
from kernel_lsp.rules.rule import Hit

_CLAMPS = ("min", "max", "assert", "__builtin_assume", "umin")


@declare(
    "KL201",
    "missing-bound-check",
    WARNING,
    on="kernel",
    needs=(BLOCK_WORDS, THREAD_WORDS, "[", "* ["),
    summary="A global index is used without any check against the size",
    why="""
    The grid is rounded up to whole blocks: when the size is no multiple of the block, the last threads access memory
    behind the end. Check the index, or state in the launch plan that the size divides (`where: N % 256 == 0`).
    """,
    bad="""
    __global__ void scale(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        out[i] = x[i] / n;
    }
    """,
    good="""
    __global__ void scale(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {
            out[i] = x[i] / n;
        }
    }
    """,
)
def missing_bound_check(kernel: Function) -> Iterator[Hit]:
    if kernel.file.promises_divisibility:
        return
    file = kernel.file
    if _has_any_check(kernel):
        return
    access = next((node for node in kernel.subscripts if _is_global_access(kernel, node)), None)
    if access is not None:
        yield hit(file, access, "nothing checks this index against the size", *_bound_fix(kernel, access))


# --- below: what the rules ask


def _is_global_access(kernel: Function, subscript: Node) -> bool:
    """``p[i]`` of a pointer parameter, where i depends on block and thread."""
    array = kernel.variable(subscript.child_by_field_id(fields.ARGUMENT))
    if array is None or array not in kernel.parameters or not array.is_pointer:
        return False
    index = kernel.names_in(subscript.child_by_field_id(fields.INDICES))
    return not index.isdisjoint(thread_names(kernel)) and not index.isdisjoint(block_names(kernel))


def _has_any_check(kernel: Function) -> bool:
    """Whether any condition, clamp or helper function sees an index."""
    if kernel.lambdas or not any(parameter.is_integer for parameter in kernel.parameters):
        return True  # a size that is no parameter is a constant: the launch may fit it exactly
    if any(may_depend_on_thread(kernel, condition) for condition in kernel.conditions()):
        return True
    is_clamped = any(kernel.is_mentioned(name) for name in _CLAMPS)
    return is_clamped and any(kernel.callee(call) in _CLAMPS for call in kernel.calls)


def _bound_fix(kernel: Function, access: Node) -> tuple[QuickFix, ...]:
    """``if (i >= n) return;`` when there is one index variable and one integer parameter."""
    sizes = [parameter for parameter in kernel.parameters if parameter.is_integer]
    indices = access.child_by_field_id(fields.INDICES)
    names = [] if indices is None else [node for node in indices.named_children if node.type == "identifier"]
    variable = kernel.variable(names[0]) if len(names) == 1 else None
    if len(sizes) != 1 or variable is None or any(is_barrier(kernel, call) for call in kernel.calls):
        return ()
    declaration = variable.declaration
    line_start = kernel.file.parsed.data.rfind(b"\n", 0, declaration.start_byte) + 1
    indent = kernel.file.parsed.data[line_start : declaration.start_byte].decode("utf-8", errors="replace")
    text = f"\n{indent if not indent.strip() else ''}if ({variable.name} >= {sizes[0].name}) return;"
    edit = TextEdit(kernel.file.parsed.span(declaration.end_byte, declaration.end_byte), text)
    return (QuickFix(f"Return when `{variable.name} >= {sizes[0].name}`", (edit,), False),)
