"""The nodes of a syntax tree of Python, as a list: `ast.walk` takes several times as long."""

from __future__ import annotations

import ast

from kernel_lsp.rules.words import words

_NO_NODES = words(
    """
    arg asname attr conversion ctx id is_async kind kwd_attrs level lineno module name names op ops rest simple
    type_comment type_ignores
    """
)
"""Fields that hold no node, or one that says nothing more than its place does, as an operator's."""
_WITH_GAPS = frozenset(("keys", "kw_defaults"))
"""Lists that may have None in them."""


def nodes_in(root: ast.AST) -> list[ast.AST]:
    """The node and all in it, level by level, in the order of the text within a level; but for operators, contexts and
    the names of imports."""
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
    """The nodes right below it, in the order of the text."""
    found: list[ast.AST] = []
    for name in _fields_of(node):
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [each for each in value if each is not None]
        elif value is not None:
            found.append(value)
    return found


# --- below: which fields to look at

_fields: dict[type, tuple[str, ...]] = {ast.Constant: (), ast.MatchSingleton: (), ast.Global: (), ast.Nonlocal: ()}


def _fields_of(node: ast.AST) -> tuple[str, ...]:
    kind = node.__class__
    fields = _fields.get(kind)
    if fields is None:
        _fields[kind] = fields = tuple(name for name in kind._fields if name not in _NO_NODES)
    return fields
