"""KL240 and KL246: aliasing of a kernel's pointers under `__restrict__`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, INFORMATION, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import CudaFile as File
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix, TextEdit
from kernel_lsp.rules.rule import Hit

_RESTRICT = re.compile(rb"\b(?:__restrict__|__restrict|restrict)\b\s*")


@declare(
    "KL240",
    "missing-restrict",
    INFORMATION,
    on="kernel",
    needs=("const",),
    summary="Pointers of a kernel without `__restrict__`",
    why="""
    Without it the compiler must assume that a store through one pointer changes what another one reads: it loads
    values again, and cannot use the read-only cache. Say `__restrict__` when the tensors do not overlap.
    A file with launches that never says it is left alone.
    """,
    bad="""
    __global__ void add(const float* x, const float* y, float* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + y[i];
    }
    """,
    good="""
    __global__ void add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + y[i];
    }
    """,
)
def missing_restrict(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    pointers = [p for p in kernel.parameters if p.is_pointer and not p.is_reference]
    bare = [p for p in pointers if not _is_restricted(file, p) and _has_star(file, p)]
    writes = any(not p.is_const for p in pointers)
    may_gain = any(p.is_const for p in bare) and not file.leaves_restrict_out
    if may_gain and len(pointers) >= 2 and writes and not _aliases_on_purpose(kernel):
        edits = tuple(file.parsed.insert(p.name_node.start_byte, _spaced_restrict(file, p)) for p in bare)
        fix = QuickFix("Add `__restrict__` to all of them, if they do not overlap", edits, False)
        names = ", ".join(p.name for p in bare)
        yield hit(file, bare[0].declaration, f"pointers may alias: add `__restrict__` to {names}", fix)


@declare(
    "KL246",
    "overlapping-restrict",
    ERROR,
    on="kernel",
    needs=("restrict",),
    summary="A launch passes one buffer for two `__restrict__` pointers of which one is written",
    why="""
    `__restrict__` promises that what is written through one pointer is reached through no other. With one buffer for
    both the compiler may read old values: the result is undefined. Give the kernel two buffers, or take the promise
    back.
    """,
    bad="""
    __global__ void shift(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i + 1 < n) out[i] = x[i + 1];
    }

    cudaError_t run(float* buffer, int n) {
        shift<<<(n + 255) / 256, 256>>>(buffer, buffer, n);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void shift(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i + 1 < n) out[i] = x[i + 1];
    }

    cudaError_t run(const float* from, float* to, int n) {
        shift<<<(n + 255) / 256, 256>>>(from, to, n);
        return cudaGetLastError();
    }
    """,
)
def overlapping_restrict(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    for first, second, buffer in _overlapping(kernel):
        if _is_restricted(file, first) and _is_restricted(file, second):
            fix = QuickFix("Remove `__restrict__` from both", (*_freed(file, first), *_freed(file, second)), True)
            message = (
                f"a launch in this file passes `{buffer}` for `{first.name}` too: `__restrict__` says that they do "
                "not overlap"
            )
            yield hit(file, second.declaration, message, fix)


def _overlapping(kernel: Function) -> Iterator[tuple[Variable, Variable, str]]:
    """Yield pairs of pointers for which a launch passes one buffer, if one of the two is written through."""
    repeated = kernel.file.repeated_arguments.get(kernel.key, ())
    declared = kernel.declarator.child_by_field_id(fields.PARAMETERS)
    if not repeated or declared is None or _n_parameters(declared) != len(kernel.parameters):
        return
    for first, second, buffer in repeated:
        if second < len(kernel.parameters):
            one, other = kernel.parameters[first], kernel.parameters[second]
            if one.is_pointer and other.is_pointer and not (one.is_const and other.is_const):
                yield one, other, buffer


def _n_parameters(declared: Node) -> int:
    return sum(child.type != "comment" for child in declared.named_children)


def _is_restricted(file: File, parameter: Variable) -> bool:
    declaration = parameter.declaration
    return _RESTRICT.search(file.parsed.data, declaration.start_byte, declaration.end_byte) is not None


def _freed(file: File, parameter: Variable) -> tuple[TextEdit, ...]:
    """Return the edits that remove `__restrict__` from a declaration."""
    place = parameter.declaration
    found = _RESTRICT.finditer(file.parsed.data, place.start_byte, place.end_byte)
    return tuple(TextEdit(file.parsed.span(match.start(), match.end()), "") for match in found)


def _has_star(file: File, parameter: Variable) -> bool:
    return "*" in file.source(parameter.declaration)


def _spaced_restrict(file: File, parameter: Variable) -> str:
    before = file.parsed.data[parameter.name_node.start_byte - 1 : parameter.name_node.start_byte]
    return "__restrict__ " if before == b" " else " __restrict__ "


def _aliases_on_purpose(kernel: Function) -> bool:
    """Return whether the kernel's pointers alias on purpose: the text says so, a launch passes one buffer twice, or
    one pointer is assigned to another, as in a buffer swap."""
    is_said = "in place" in kernel.head or "alias" in kernel.head
    return is_said or any(_overlapping(kernel)) or any(map(partial(_renames, kernel), kernel.assignments))


def _renames(kernel: Function, assignment: Node) -> bool:
    """Return whether the assignment is ``a = b`` of pointers and the first is a parameter."""
    left = kernel.variable(assignment.child_by_field_id(fields.LEFT))
    right = kernel.variable(assignment.child_by_field_id(fields.RIGHT))
    if left is None or right is None or kernel.operator(assignment) != "=":
        return False
    return left in kernel.parameters and left.is_pointer and right.is_pointer
