"""Decide whether a value is uniform across a block, and whether it is loaded from memory."""

from __future__ import annotations

import re

from tree_sitter import Node

from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads.threads import has_hiding_call, may_depend_on_thread, values_of

_DEREFERENCE = re.compile(r"(?:^|[-+*/%=(,&|!<>?:\[])\s*\*\s*[\w(]")
"""A dereferencing star rather than a product: it precedes its operand."""
_KNOWN_NAMES = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "true", "false", "nullptr"))


def is_uniform(function: Function, node: Node) -> bool:
    """Return whether the value is provably uniform across the block: it depends on parameters, constants and the
    block index alone. Results of calls, and names that the text does not declare, are unknown."""
    waiting: list[Node] = [node]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if may_depend_on_thread(function, node) or has_hiding_call(function, node):
            return False
        for name in function.names_in(node) - seen:
            seen.add(name)
            values = _values_of_name(function, name)
            if values is None:
                return False
            waiting += values
    return True


def is_read_from_memory(function: Function, node: Node) -> bool:
    """Return whether the value depends on memory or a call, even transitively, rather than on indices and sizes
    alone."""
    waiting: list[Node] = [node]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        is_read = function.subscripts.within(node) or _DEREFERENCE.search(function.source(node)) is not None
        if is_read or has_hiding_call(function, node):
            return True
        for name in function.names_in(node) - seen:
            seen.add(name)
            waiting += _values_of_name(function, name) or ()
    return False


# --- below: values of a name


def _values_of_name(function: Function, name: str) -> list[Node] | None:
    """Return the values of all variables of a name. None for a name that may have other values."""
    variables = function.named(name)
    if not variables and name not in _KNOWN_NAMES and name not in function.file.constants:
        return None
    found: list[Node] = []
    for variable in variables:
        values = values_of(variable)
        if not values and variable not in function.parameters:
            return None
        found += values
    return found
