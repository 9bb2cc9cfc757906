"""KL129: sorts of which only the first elements are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import INFORMATION, declare, hit, integer
from kernel_lsp.rules.pytorch.parsing import nodes_of
from kernel_lsp.rules.pytorch.scopes import Scope
from kernel_lsp.rules.rule import Hit

_SORTS = ("sort", "argsort", "msort")


@declare(
    "KL129",
    "full-sort",
    INFORMATION,
    needs=("sort argsort msort",),
    summary="A tensor is sorted, and only its first or last elements are read",
    why="""
    A sort orders all elements and writes values and 64-bit indices of all of them. `torch.topk` finds the `k` that are
    read, in one pass for a small `k`.
    """,
    bad="""
    import torch

    def best(scores: torch.Tensor, k: int) -> torch.Tensor:
        order = torch.argsort(scores, dim=-1, descending=True)
        return order[:, :k]
    """,
    good="""
    import torch

    def best(scores: torch.Tensor, k: int) -> torch.Tensor:
        return torch.topk(scores, k, dim=-1).indices
    """,
)
def full_sort(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name, given = _name(call, scope), {keyword.arg for keyword in call.keywords}
        if name in _SORTS and "stable" not in given:
            uses = list(_uses(call, scope, is_pair=name == "sort"))
            if uses and all(_is_end(use, scope) for use in uses):
                yield hit(scope, call, "only a part of the sorted elements is read: use `torch.topk`")


def _name(call: ast.Call, scope: Scope) -> str:
    """Return the function's name, also of a method with an argument that only a tensor's has."""
    is_of_tensor = any(keyword.arg in ("descending", "dim") for keyword in call.keywords)
    is_foreign = scope.dotted(call.func).startswith(("torch.", "numpy.", "pandas."))
    is_method = isinstance(call.func, ast.Attribute) and is_of_tensor and not is_foreign
    return scope.function_name(call) or (call.func.attr if is_method and isinstance(call.func, ast.Attribute) else "")


def _uses(node: ast.expr, scope: Scope, is_pair: bool) -> Iterator[ast.AST]:
    """Yield what reads the result of a sort: a pair of values and indices, or one tensor."""
    parent = scope.parents.get(id(node))
    if is_pair and isinstance(parent, ast.expr) and _is_member(parent, node):
        yield from _uses(parent, scope, False)
        return
    targets = parent.targets if isinstance(parent, ast.Assign) and parent.value is node else []
    if len(targets) != 1:
        yield parent or node
        return
    target = targets[0]
    names = target.elts if isinstance(target, ast.Tuple) and is_pair else [target]
    for name in names:
        if not isinstance(name, ast.Name) or scope.loop_around(node) is not None:
            yield node
            return
        for each in _loads(name, scope):
            is_one = is_pair and not isinstance(target, ast.Tuple)
            yield from _uses(each, scope, True) if is_one else iter([scope.parents.get(id(each), each)])


def _loads(name: ast.Name, scope: Scope) -> Iterator[ast.Name]:
    """Yield the reads of a name until it is assigned again."""
    named = [each for each in nodes_of(scope.node, ast.Name) if each.id == name.id]
    later = [each.lineno for each in named if isinstance(each.ctx, ast.Store) and each.lineno > name.lineno]
    last = min(later, default=None)
    for each in named:
        is_read = isinstance(each.ctx, ast.Load) and each.lineno > name.lineno
        if is_read and (last is None or each.lineno <= last):
            yield each


def _is_member(parent: ast.expr, node: ast.expr) -> bool:
    """Return whether the parent is ``pair.values``, ``pair.indices``, ``pair[0]`` or ``pair[1]``."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("values", "indices")
    return isinstance(parent, ast.Subscript) and parent.value is node and integer(parent.slice) in (0, 1)


def _is_end(use: ast.AST, scope: Scope) -> bool:
    """Return whether the use is a slice up to a number of elements, or of the last ones: ``x[:, :k]``."""
    if not isinstance(use, ast.Subscript) or not isinstance(use.ctx, ast.Load):
        return False
    parts = use.slice.elts if isinstance(use.slice, ast.Tuple) else [use.slice]
    slices = [part for part in parts if isinstance(part, ast.Slice) and (part.lower or part.upper or part.step)]
    if len(slices) != 1 or slices[0].step is not None:
        return False
    lower, upper = slices[0].lower, slices[0].upper
    is_first = (lower is None or integer(lower) == 0) and upper is not None and (integer(upper) or 0) >= 0
    is_negative = isinstance(lower, ast.UnaryOp) and isinstance(lower.op, ast.USub)
    is_rest = isinstance(upper, ast.UnaryOp)
    return (is_first and not is_rest) or (upper is None and is_negative)
