"""Find the object whose method a value comes from: ``v.data()`` of a container, ``x.get()`` of a structure here."""

from __future__ import annotations

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.members import plain_name, structure_of
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.variables import Variable

MAX_OWNERS = 4
"""Maximum members of members that are followed."""


def owner_of_call(function: Function, call: Node) -> tuple[str, Variable] | None:
    """Return the method and the object of a call without arguments such as ``graph.edges.data()``."""
    method = call.child_by_field_id(fields.FUNCTION) if call.type == "call_expression" else None
    if method is None or method.type != "field_expression" or function.arguments(call):
        return None
    owner = declared(function, method.child_by_field_id(fields.ARGUMENT))
    return None if owner is None else (_field(function, method), owner)


def declared(function: Function, node: Node | None, depth: int = 0) -> Variable | None:
    """Return the variable or member that ``x``, ``a.x`` or ``this->x`` names. None where the structure of `a` is not in
    the file; where the text does not state it, one structure of the file alone has such a member."""
    if node is None or depth > MAX_OWNERS:
        return None
    if node.type == "identifier":
        return function.variable(node) or _own_member(function, function.source(node))
    if node.type != "field_expression":
        return None
    argument, name = node.child_by_field_id(fields.ARGUMENT), _field(function, node)
    if argument is not None and argument.type == "this":
        return _own_member(function, name)
    owner = declared(function, argument, depth + 1)
    if owner is None or "auto" in owner.words:  # such as the variable of a loop over a container
        known = [inside[name] for inside in function.file.members.values() if name in inside]
        return known[0] if len(known) == 1 and argument is not None and argument.type == "identifier" else None
    return function.file.members.get(plain_name(owner.type_text), {}).get(name)


def _own_member(function: Function, name: str) -> Variable | None:
    """Return the member of that name of the structure that the function is a method of."""
    scope = structure_of(function.file.parsed, function.definition.outer) or function.name.rpartition("::")[0]
    return None if function.named(name) else function.file.members.get(plain_name(scope), {}).get(name)


def _field(function: Function, node: Node) -> str:
    name = node.child_by_field_id(fields.FIELD)
    return "" if name is None else function.source(name)
