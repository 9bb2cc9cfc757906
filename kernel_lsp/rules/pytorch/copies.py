"""KL115, KL119 and KL129: redundant copies and conversions, and sorts of which little is read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.pytorch.declare import INFORMATION, declare, hit, integer, is_number
from kernel_lsp.rules.pytorch.program.kinds import CAST_DTYPES
from kernel_lsp.rules.pytorch.program.parsing import nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.rule import Hit

_FLOATING_DTYPES = ("float32", "float16", "bfloat16", "float64")
"""Floating-point dtypes. Casts to integers are excluded, because they truncate, often on purpose."""


@declare(
    "KL115",
    "repeat-instead-of-expand",
    INFORMATION,
    needs=("repeat", "unsqueeze"),
    summary="`repeat` copies a dimension of size 1 that `expand` would only view",
    why="""
    `repeat` writes every copy to memory; `expand` gives a view with stride 0, which every operation can read. Only if
    the result is written in place is a copy needed.
    """,
    bad="""
    import torch

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ k.unsqueeze(1).repeat(1, 8, 1, 1).transpose(-1, -2)
    """,
    good="""
    import torch

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ k.unsqueeze(1).expand(-1, 8, -1, -1).transpose(-1, -2)
    """,
)
def repeat_instead_of_expand(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[dim]) as inner, attr="repeat"
                ),
                args=counts,
                keywords=[],
            ) if isinstance(dim, ast.Constant) and type(dim.value) is int and scope.is_tensor(inner):
                if 0 <= dim.value < len(counts) and _only_repeats(counts, dim.value):
                    sizes = ", ".join(
                        scope.module.source(count) if i == dim.value else "-1" for i, count in enumerate(counts)
                    )
                    text = f"{scope.module.source(inner)}.expand({sizes})"
                    edit = scope.module.replace(call, text)
                    fix = QuickFix("Use `expand`, a view that must not be written in place", (edit,), False)
                    yield hit(scope, call, "`repeat` copies; `expand` gives a view of the same shape", fix)


@declare(
    "KL119",
    "cast-there-and-back",
    INFORMATION,
    needs=("float half bfloat16 double float16 float32 float64",),
    summary="A tensor is cast and cast again, with nothing in between",
    why="""
    Two kernels, and the value is rounded to the narrower dtype on the way. If the rounding is meant, say so in a
    comment; otherwise cast once.
    """,
    bad="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.float().half()
    """,
    good="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.half()
    """,
)
def cast_there_and_back(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        inner = _receiver(call)
        outer_dtype = _cast_dtype(call, scope)
        if outer_dtype not in _FLOATING_DTYPES or not isinstance(inner, ast.Call) or not scope.is_tensor(inner):
            continue
        inner_dtype = _cast_dtype(inner, scope)
        if inner_dtype in _FLOATING_DTYPES and inner_dtype != outer_dtype:
            yield hit(scope, call, f"cast to {inner_dtype}, and at once to {outer_dtype}: cast once")


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _method(call: ast.Call) -> str:
    """Return the name of a method or of a module's function; empty for another call."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _arguments(call: ast.Call) -> list[str]:
    return [ast.dump(node) for node in (*call.args, *call.keywords)]


def _cast_dtype(call: ast.Call, scope: Scope) -> str:
    """Return the dtype that a cast produces, in its first spelling; "" for other calls."""
    name = _method(call)
    if name in CAST_DTYPES and not call.args and not call.keywords:
        return CAST_DTYPES[name][0]
    if name == "to" and len(call.args) == 1 and not call.keywords:
        dtype = scope.dotted(call.args[0]).removeprefix("torch.")
        return next((names[0] for names in CAST_DTYPES.values() if dtype in names), "")
    return ""


def _only_repeats(counts: list[ast.expr], dim: int) -> bool:
    return all(i == dim or is_number(count, 1) for i, count in enumerate(counts)) and not is_number(counts[dim], 1)


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
            if uses and all(_is_end(use) for use in uses):
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


def _is_end(use: ast.AST) -> bool:
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
