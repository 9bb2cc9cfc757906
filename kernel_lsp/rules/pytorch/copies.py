"""KL111, KL112, KL115 to KL117 and KL119: redundant conversions and copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from kernel_lsp.rules.finding import QuickFix, TextEdit
from kernel_lsp.rules.pytorch.declare import HINT, INFORMATION, WARNING, declare, hit, is_number, rewrite
from kernel_lsp.rules.pytorch.kinds import CAST_DTYPES, CASTS
from kernel_lsp.rules.pytorch.scopes import Scope, same
from kernel_lsp.rules.rule import Hit

_SAME_AGAIN = ("contiguous", "detach", "cpu", "cuda", "clone", *CASTS)
_FLOATING_DTYPES = ("float32", "float16", "bfloat16", "float64")
"""Floating-point dtypes. Casts to integers are excluded, because they truncate, often on purpose."""
_TRANSPOSING = ("permute", "transpose", "t", "movedim", "swapaxes", "mT", "T")


@declare(
    "KL111",
    "repeated-conversion",
    WARNING,
    needs=(" ".join(("to", *_SAME_AGAIN)),),
    summary="The same copy or cast twice in a row",
    why="The second does nothing, or copies once more. Remove it.",
    bad="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().contiguous().float().float()
    """,
    good="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().float()
    """,
)
def repeated_conversion(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        inner = _receiver(call)
        if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Attribute):
            continue
        if _is_same_conversion(inner, call, scope):
            place = scope.module.after(inner, call)
            fix = QuickFix("Remove the second one", (TextEdit(place, ""),), True)
            yield Hit(place, f"`.{_method(call)}(...)` was just done: remove it", (fix,))


@declare(
    "KL112",
    "conversion-to-itself",
    WARNING,
    needs=("to type", "dtype device"),
    summary="A tensor is converted to its own dtype or device",
    why="It does nothing, and hides what was meant.",
    bad="""
    import torch

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.to(x.dtype) + y.to(y.device)
    """,
    good="""
    import torch

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y.to(x.dtype)
    """,
)
def conversion_to_itself(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(value=tensor, attr="to" | "type"),
                args=[ast.Attribute(value=other, attr="dtype" | "device")],
                keywords=[],
            ) if isinstance(tensor, ast.Name | ast.Attribute) and same(tensor, other):
                source = scope.module.source(tensor)
                yield hit(scope, call, f"`{source}` has this already", rewrite(scope, call, source))


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
    "KL116",
    "transposed-twice",
    INFORMATION,
    needs=("contiguous",),
    summary="Two transposing copies in one chain",
    why="""
    `x.permute(...).contiguous()` rewrites the whole tensor in another order. A chain with two such copies moves it
    twice; usually one of the layouts in between is not needed, or the operation takes a `dim`.
    """,
    bad="""
    import torch

    def shuffle(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().view(8, 64, 64).transpose(0, 1).contiguous()
    """,
    good="""
    import torch

    def shuffle(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(8, 64, 64).transpose(0, 1)
    """,
)
def transposed_twice(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "contiguous":
            methods = _methods_before(call)
            if _transposing_copies(methods) >= 2 and not _is_inside_longer_chain(call, scope):
                yield hit(scope, call, "this chain copies the whole tensor into another layout more than once")


@declare(
    "KL117",
    "contiguous-view",
    HINT,
    needs=("contiguous", "view"),
    summary="`.contiguous().view(...)` where `.reshape(...)` copies only if it must",
    why="`reshape` is a view whenever the layout allows one; `contiguous` copies whatever is not row-major.",
    bad="""
    import torch

    def flatten_heads(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().view(8, -1)
    """,
    good="""
    import torch

    def flatten_heads(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(8, -1)
    """,
)
def contiguous_view(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Attribute(value=tensor, attr="contiguous"), args=[], keywords=[]) as inner,
                    attr="view",
                ) as view
            ) if scope.is_tensor(inner) and call.args and not _is_dtype(call.args[0], scope):
                edit = TextEdit(scope.module.after(tensor, view), ".reshape")
                fix = QuickFix("Use `reshape`, which may give a view", (edit,), False)
                yield Hit(scope.module.after(tensor, view), "`reshape` copies only if it must", (fix,))


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


# --- below: helpers of the rules


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _method(call: ast.Call) -> str:
    """Return the name of a method or of a module's function; empty for another call."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_same_conversion(inner: ast.Call, outer: ast.Call, scope: Scope) -> bool:
    first, second = _method(inner), _method(outer)
    if not scope.is_tensor(inner):
        return False
    if first == second and (first == "to" or first in _SAME_AGAIN):
        return _arguments(inner) == _arguments(outer)
    dtype = _cast_dtype(inner, scope)
    return bool(dtype) and dtype == _cast_dtype(outer, scope)


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


def _methods_before(call: ast.Call) -> list[str]:
    """Return the methods of a chain, the last one first."""
    methods: list[str] = []
    node: ast.expr = call
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            methods.append(node.func.attr)
            node = node.func.value
        elif isinstance(node, ast.Attribute):
            methods.append(node.attr)
            node = node.value
        else:
            return methods


def _transposing_copies(methods: list[str]) -> int:
    """Return the number of `contiguous` calls that directly follow a transposition."""
    return sum(after == "contiguous" and before in _TRANSPOSING for after, before in pairwise(methods))


def _is_inside_longer_chain(call: ast.Call, scope: Scope) -> bool:
    child: ast.AST = call
    for parent in scope.around(call):
        is_receiver = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is child)
        if not is_receiver:
            return False
        if isinstance(parent, ast.Attribute) and parent.attr == "contiguous":
            return True
        child = parent
    return False


def _is_dtype(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Attribute) and (node.attr == "dtype" or scope.dotted(node).startswith("torch."))
