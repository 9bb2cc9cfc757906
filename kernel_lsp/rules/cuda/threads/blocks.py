"""Find updates of elements that all blocks of a grid share, for KL219."""

from __future__ import annotations

from tree_sitter import Node

from kernel_lsp.rules.cuda.declare import conditions_around
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import values_of
from kernel_lsp.rules.cuda.variables import Variable

_OF_THREADS = frozenset(("threadIdx", "blockDim"))


def is_of_all_blocks(kernel: Function, update: Node, target: Node, array: Variable) -> bool:
    """Return whether each block of a grid that shares work executes the update, and the element depends on the thread
    alone. A `return`, a condition on anything loaded, or a barrier of the grid may leave one block."""
    if (
        array.is_shared
        or not kernel.is_kernel
        or "blockIdx" not in kernel.text
        or "grid.sync" in kernel.text
        or kernel.returns
    ):
        return False
    names = {*kernel.names_in(target)} - {array.name}
    for condition in conditions_around(kernel, update):
        names |= kernel.names_in(condition)
    return all(_is_of_thread(kernel, name) for name in names)


def _is_of_thread(kernel: Function, name: str) -> bool:
    """Return whether the name is a thread's index, a parameter, a constant, or a counter made of these."""
    if name in _OF_THREADS or name in kernel.file.constants:
        return True
    return all(_is_made_of_threads(kernel, variable) for variable in kernel.named(name)) and bool(kernel.named(name))


def _is_made_of_threads(kernel: Function, variable: Variable) -> bool:
    if variable in kernel.parameters:
        return not variable.is_pointer and not variable.writes
    names = [kernel.names_in(value) for value in values_of(variable)]
    return bool(names) and all(name in _OF_THREADS or name in kernel.file.constants for each in names for name in each)
