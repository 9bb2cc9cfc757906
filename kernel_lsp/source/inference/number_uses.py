"""Find the parameters that a function's code uses as numbers, or reshapes, though no annotation says so."""

from __future__ import annotations

import ast

from kernel_lsp.source.pragma import last_name
from kernel_lsp.source.python_file import FunctionNode

AXIS_KEYWORDS = ("dim", "axis")
COUNTS = ("range", "arange", "linspace", "view", "reshape", "expand", "repeat", "zeros", "ones", "empty", "full")
"""Functions whose arguments are sizes."""
RESHAPES = ("unsqueeze", "view", "reshape", "flatten", "expand", "transpose", "permute")
AXIS, SIZE, RATE = "axis", "size", "rate"


def is_reshaped(function: FunctionNode, name: str) -> bool:
    """Return True for a parameter that the code indexes or reshapes, ``gamma[:, :, None, None]``: it is no vector."""
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=ast.Name(id=used)) if used == name:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=used), attr=called)) if used == name:
                if called in RESHAPES:
                    return True
    return False


def number_kind(function: FunctionNode, name: str) -> str:
    """Return AXIS, SIZE or RATE for a parameter that the code uses so, empty for one that it reads as an object or a
    tensor."""
    kind = ""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=used)) | ast.Subscript(value=ast.Name(id=used)) if used == name:
                return ""
            case ast.BinOp(left=ast.Name(id=used), op=ast.FloorDiv() | ast.Mod()) if used == name:
                kind = kind or SIZE
            case ast.Call(func=called, args=arguments, keywords=keywords):
                kind = kind or _kind_in(called, arguments, keywords, name)
    return kind


def _kind_in(called: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword], name: str) -> str:
    function = last_name(called) if isinstance(called, ast.Name | ast.Attribute) else ""
    positional = [i for i, each in enumerate(arguments) if isinstance(each, ast.Name) and each.id == name]
    named = [each.arg for each in keywords if isinstance(each.value, ast.Name) and each.value.id == name]
    if any(each in AXIS_KEYWORDS for each in named) or (positional and name in AXIS_KEYWORDS):
        return SIZE if function in COUNTS else AXIS
    if "dropout" in function and ("p" in named or any(positional)):
        return RATE
    return SIZE if function in COUNTS and positional else ""
