"""List the nodes of a Python syntax tree. `ast.walk` takes several times as long."""

from __future__ import annotations

import ast

from kernel_lsp.rules.rule import words

_NO_NODES = words(
    """
    arg asname attr conversion ctx id is_async kind kwd_attrs level lineno module name names op ops rest simple
    type_comment type_ignores
    """
)
"""Fields without child nodes, or whose nodes repeat what their parent determines, such as operators."""
_WITH_GAPS = frozenset(("keys", "kw_defaults"))
"""Fields whose lists may contain None."""


def nodes_in(root: ast.AST) -> list[ast.AST]:
    """Return the node and its descendants, level by level, in source order within a level. Operators, contexts and
    the names of imports are left out."""
    found = [root]
    for node in found:
        fields = _fields.get(node.__class__)
        if fields is None:
            fields = _fields_of(node)
        for name in fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                found += value if name not in _WITH_GAPS else [each for each in value if each is not None]
            elif value is not None:
                found.append(value)
    return found


def children_of(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node in source order."""
    found: list[ast.AST] = []
    for name in _fields_of(node):
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [each for each in value if each is not None]
        elif value is not None:
            found.append(value)
    return found


# --- below: fields to visit

_fields: dict[type, tuple[str, ...]] = {ast.Constant: (), ast.MatchSingleton: (), ast.Global: (), ast.Nonlocal: ()}


def _fields_of(node: ast.AST) -> tuple[str, ...]:
    kind = node.__class__
    fields = _fields.get(kind)
    if fields is None:
        _fields[kind] = fields = tuple(name for name in kind._fields if name not in _NO_NODES)
    return fields
