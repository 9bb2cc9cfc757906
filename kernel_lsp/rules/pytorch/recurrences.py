"""Find loops whose iterations cannot be one operation."""

from __future__ import annotations

import ast


def is_recurrence(loop: ast.For) -> bool:
    """Return whether an iteration depends on the result of the previous one, as in ``h = cell(x[t], h)``.
    Accumulation does not count."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if any(_needs_the_last(name, node, loop) for name in names):
                return True
    return False


def calls_module(loop: ast.For) -> bool:
    """Return whether an iteration runs a layer of the module, as in a recurrent network."""
    calls = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    owners = (f.value for f in calls if isinstance(f, ast.Attribute))
    return any(isinstance(owner, ast.Name) and owner.id == "self" for owner in owners)


def _needs_the_last(name: str, node: ast.Assign, loop: ast.For) -> bool:
    """Return whether the name's new value depends on its value from the previous iteration."""
    is_needed = any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.value))
    return is_needed and not _adds_to(name, node.value) and not _is_read_first(name, loop, node)


def _adds_to(name: str, value: ast.expr) -> bool:
    """Return whether the value is an accumulation: ``total + ...``."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add | ast.Sub):
        return False
    return any(isinstance(side, ast.Name) and side.id == name for side in (value.left, value.right))


def _is_read_first(name: str, loop: ast.For, statement: ast.Assign) -> bool:
    """Return whether the same iteration assigns the name earlier: ``y = x[i]``, then ``y = y * 2``."""
    targets = [loop.target]
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and node.lineno < statement.lineno:
            targets += node.targets
    return any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target))
