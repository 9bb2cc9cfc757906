"""Declare the rules of this language, and share short helpers among them."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.core.finding import Severity
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import CudaFile
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Declare, Hit

declare = Declare("cuda")
ERROR, WARNING, INFORMATION, HINT = Severity.ERROR, Severity.WARNING, Severity.INFORMATION, Severity.HINT

BARRIERS = frozenset(
    ("__syncthreads", "__syncthreads_and", "__syncthreads_or", "__syncthreads_count", "cg::sync", "__barrier_sync")
)


THREAD_WORDS = "threadIdx thread_rank thread_index"
BLOCK_WORDS = "blockIdx block_rank group_index"
LOOP_WORDS = "for while"
"""Required words of the loop rules. A `do` loop contains `while`, too."""


def launches_in(function: Function) -> list[Node]:
    """Return the ``kernel<<<grid, block>>>(...)`` calls."""
    return [
        call
        for call in function.calls_with(b"<<<")
        if any(child.type == "kernel_call_syntax" for child in call.named_children)
    ]


def hit(file: CudaFile, node: Node, message: str, *fixes: QuickFix) -> Hit:
    return Hit(file.parsed.range(node), message, fixes)


def rewrite(file: CudaFile, node: Node, new_text: str) -> QuickFix:
    """Return a safe fix that replaces `node` with `new_text`."""
    return QuickFix(f"Replace with `{new_text}`", (file.parsed.replace(node, new_text),), True)


def barriers_in(function: Function) -> list[Node]:
    """Return the calls that all threads of the block must reach together."""
    known = function.caches.setdefault("barriers", {})
    if not known:
        known[0] = [call for call in function.calls_with(b"sync") if is_barrier(function, call)]
    return known[0]


def is_barrier(function: Function, call: Node) -> bool:
    """Return whether all threads of the block must reach the call together."""
    name = function.callee(call)
    if name.endswith("::sync") and _is_tile(function, call):
        return False
    return name in BARRIERS or (name.endswith(".sync") and "block" in name)


def conditions_around(function: Function, node: Node) -> Iterator[Node]:
    """Yield the conditions of enclosing branches and loops, except those whose head contains the node."""
    place = node.start_byte
    for branch in function.branches_around(node):
        condition = branch.child_by_field_id(fields.CONDITION)
        if condition is not None and not condition.start_byte <= place < condition.end_byte:
            yield condition


def indentation(function: Function, statement: Node) -> str:
    """Return the white space in front of the line of a statement."""
    data = function.file.parsed.data
    line = data[data.rfind(b"\n", 0, statement.start_byte) + 1 : statement.start_byte].decode(errors="replace")
    return line[: len(line) - len(line.lstrip())]


def _is_tile(function: Function, call: Node) -> bool:
    """Return whether ``cg::sync(group)`` is given a part of a block: only the threads of that must meet."""
    group = next(iter(function.arguments(call)), None)
    variable = function.variable(group)
    if variable is None or group is None:
        return group is not None and "tile" in function.source(group)
    value = "" if variable.value is None else function.source(variable.value)
    return any(word in f"{variable.type_text} {value}" for word in ("tile", "partition", "coalesced"))
