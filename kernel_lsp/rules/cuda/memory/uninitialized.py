"""KL248: shared memory that is read and never set."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.variables import Variable, type_bytes
from kernel_lsp.rules.rule import Hit

_MAY_ALIAS = frozenset(("volatile", "extern"))
"""Arrays that another name may set: all dynamic shared arrays begin at one address."""


@declare(
    "KL248",
    "uninitialized-shared",
    ERROR,
    on="kernel",
    needs=("__shared__", "["),
    summary="A shared array is read or added to, and nothing sets it",
    why="""
    Shared memory is not zeroed: it holds what the block before left there. Set each element and put `__syncthreads()`
    behind that, before the first addition.
    """,
    bad="""
    __global__ void count(const unsigned char* __restrict__ v, int* __restrict__ bins) {
        __shared__ int local[256];
        atomicAdd(&local[v[threadIdx.x]], 1);
        __syncthreads();
        atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
    }
    """,
    good="""
    __global__ void count(const unsigned char* __restrict__ v, int* __restrict__ bins) {
        __shared__ int local[256];
        local[threadIdx.x] = 0;
        __syncthreads();
        atomicAdd(&local[v[threadIdx.x]], 1);
        __syncthreads();
        atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
    }
    """,
)
def uninitialized_shared(kernel: Function) -> Iterator[Hit]:
    if "asm" in kernel.text:
        return
    reported: set[int] = set()
    for variable in kernel.all_variables():
        is_plain = not _MAY_ALIAS & variable.words
        is_value = not variable.is_pointer and type_bytes(variable.element) is not None
        if variable.is_shared and (variable.is_array or is_value) and is_plain:
            first = _first_use(kernel, variable)
            if first is not None and len(kernel.named(variable.name)) == 1:
                message = f"`{variable.name}` is never set: shared memory is not zeroed"
                reported.add(first.start_point[0])
                yield hit(kernel.file, first, message)
    yield from simulated_hits(kernel, "KL248", reported=reported)


def _first_use(kernel: Function, array: Variable) -> Node | None:
    """Return the first read or update of an element; None where anything may set elements."""
    first: Node | None = None
    length = len(array.name.encode())
    for start in kernel.mentions(array.name):
        node = kernel.body.descendant_for_byte_range(start, start + length)
        if node is None or node.type != "identifier" or start == array.name_node.start_byte:
            continue
        element = _element(kernel, node, len(array.sizes)) if array.is_array else node
        if element is None or not _only_reads_or_adds(kernel, element):
            return None
        first = first or element
    return first


def _element(kernel: Function, name: Node, n_dims: int) -> Node | None:
    """Return the whole subscript around the array's name, None where the array itself, or a row, is passed on."""
    node, parent, n_indices = name, kernel.parent(name), 0
    while parent is not None and parent.type == "subscript_expression":
        argument = parent.child_by_field_id(fields.ARGUMENT)
        if argument is None or argument.id != node.id:
            break
        node, parent, n_indices = parent, kernel.parent(parent), n_indices + 1
    return node if n_indices == n_dims else None


def _only_reads_or_adds(kernel: Function, element: Node) -> bool:
    parent = kernel.parent(element)
    if parent is None or parent.type in ("field_expression", "init_declarator", "sizeof_expression"):
        return False
    if parent.type == "pointer_expression":
        arguments = kernel.parent(parent)
        call = None if arguments is None else kernel.parent(arguments)
        is_call = call is not None and call.type == "call_expression"
        return is_call and call is not None and kernel.callee(call).startswith(("atomicAdd", "atomicSub", "atomicInc"))
    left = parent.child_by_field_id(fields.LEFT)
    is_target = parent.type == "assignment_expression" and left is not None and left.id == element.id
    if parent.type == "argument_list":  # a function may take a reference
        call = kernel.parent(parent)
        return call is not None and kernel.callee(call).startswith(("atomic", "fmax", "fmin", "max", "min"))
    return not is_target or kernel.operator(parent) != "="
