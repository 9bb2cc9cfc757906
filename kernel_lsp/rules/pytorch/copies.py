"""KL115 and KL119: redundant copies and conversions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.pytorch.declare import INFORMATION, declare, hit, is_number
from kernel_lsp.rules.pytorch.kinds import CAST_DTYPES
from kernel_lsp.rules.pytorch.scopes import Scope
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
