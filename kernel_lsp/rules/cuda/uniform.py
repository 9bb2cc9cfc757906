"""Which values all threads of a block share for sure, and which come from memory."""

from __future__ import annotations

import re

from tree_sitter import Node

from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.threads import has_hiding_call, may_depend_on_thread, values_of

_DEREFERENCE = re.compile(r"(?:^|[-+*/%=(,&|!<>?:\[])\s*\*\s*[\w(]")
"""A star that is no product: it stands in front of what it reads."""
_KNOWN_NAMES = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "true", "false", "nullptr"))


def is_uniform(function: Function, node: Node) -> bool:
    """Whether all threads of a block have the same value there for sure: it is made of parameters, constants and the
    block's index alone. What a call gives, or a name that the text does not declare, is not known."""
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
    """Whether the value comes from memory or a call, by any way, and not from indices and sizes alone."""
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


# --- below


def _values_of_name(function: Function, name: str) -> list[Node] | None:
    """The values that the variables of a name have; None for one that may have another."""
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
