"""KL244 and KL245: calls unsuitable for a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import WARNING, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.rule import Hit


@declare(
    "KL244",
    "device-heap",
    WARNING,
    on="device",
    needs=("new malloc",),
    patterns=(r"\b(?:new|malloc)\b",),
    summary="A kernel allocates memory",
    why="""
    `malloc` and `new` in a kernel take memory from a heap of 8 MiB for all threads, under a lock, and the memory is
    read like global memory. Use registers, shared memory, or a scratch tensor.
    """,
    bad="""
    __global__ void sort(float* __restrict__ x, int n) {
        float* copy = new float[n];
        for (int i = 0; i < n; ++i) copy[i] = x[i];
        for (int i = 0; i < n; ++i) x[i] = copy[n - 1 - i];
        delete[] copy;
    }
    """,
    good="""
    __global__ void sort(float* __restrict__ x, float* __restrict__ copy, int n) {
        for (int i = 0; i < n; ++i) copy[i] = x[i];
        for (int i = 0; i < n; ++i) x[i] = copy[n - 1 - i];
    }
    """,
)
def device_heap(function: Function) -> Iterator[Hit]:
    file = function.file
    news = [node for node in function.allocations if node.type == "new_expression" and not _is_placement(node)]
    mallocs = function.calls_named(("malloc", "std::malloc"))
    for node in sorted((*news, *mallocs), key=attrgetter("start_byte")):
        yield hit(file, node, "each thread takes memory from one small heap: use shared memory or scratch")


@declare(
    "KL245",
    "sizeof-pointer",
    WARNING,
    needs=("sizeof",),
    summary="`sizeof` of a pointer is 8",
    why="A pointer does not know how much it points to. Multiply the number of elements by `sizeof` of one.",
    bad="""
    #include <cstring>

    void clear(float* x, int n) {
        memset(x, 0, sizeof(x));
    }
    """,
    good="""
    #include <cstring>

    void clear(float* x, int n) {
        memset(x, 0, n * sizeof(float));
    }
    """,
)
def sizeof_pointer(function: Function) -> Iterator[Hit]:
    file = function.file
    for node in function.sizeofs:
        value = node.child_by_field_id(fields.VALUE)
        is_wrapped = value is not None and value.type == "parenthesized_expression" and value.named_child_count == 1
        inner = value.named_children[0] if value is not None and is_wrapped else value
        variable = function.variable(inner)
        is_bare = variable is not None and variable.is_pointer and not variable.is_array
        if variable is not None and is_bare and not _is_stored(function, node, variable.name):
            yield hit(file, node, f"`sizeof` of the pointer `{variable.name}`, not of what it points to")


def _is_stored(function: Function, node: Node, name: str) -> bool:
    """Return whether the call takes the pointer itself as its value: ``set(&p, sizeof(p))``."""
    call = next((parent for parent in function.around(node) if parent.type == "call_expression"), None)
    return call is not None and any(
        re.fullmatch(rf"\(?&\s*{name}\)?", function.source(argument)) for argument in function.arguments(call)
    )


def _uses(kernel: Function, parameter: Variable) -> Iterator[Node]:
    """Yield every mention of the name in the body, except in comments and strings."""
    length = len(parameter.name.encode())
    for start in kernel.mentions(parameter.name):
        node = kernel.body.descendant_for_byte_range(start, start + length)
        if node is not None and node.type not in _TEXT_NODES:
            yield node


_TEXT_NODES = frozenset(("comment", "string_content", "string_literal", "raw_string_content"))


def _is_placement(node: Node) -> bool:
    return node.child_by_field_id(fields.PLACEMENT) is not None
