"""Admit a task's text that a model wrote: straight-line code over the catalogue's operators, and nothing else.

The worker runs it, in its sandbox, as it runs a user's file. A model's reply is no user's file, so what it may contain
is listed: imports, operators, constructors of tensors, views.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator

IMPORTS = (
    *("import torch", "from torch import nn", "import torch.nn as nn", "import torch.nn.functional as F"),
    *("from torch.nn import functional as F", "import math", "from __future__ import annotations"),
)
ROOTS = ("torch", "nn", "F", "math")
CONSTRUCTORS = (
    *("torch.randn", "torch.rand", "torch.ones", "torch.zeros", "torch.full", "torch.tensor", "torch.Tensor"),
    *("torch.float32", "nn.Parameter", "nn.Module", "math.sqrt", "math.pi"),
)
"""Names below `torch`, `nn` and `math` that make values and are no operators."""
VIEWS = (
    *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "T", "mT", "unsqueeze", "squeeze"),
    *("contiguous", "expand", "expand_as", "size", "shape", "register_buffer"),
)
"""Methods and attributes of tensors and modules that are no operators."""
JOINS = ("torch.cat", "torch.maximum", "torch.add", "torch.mul", "torch.sub")
"""Operators that a draw joins two tensors by: not all of them are in the catalogue."""
FUNCTIONS = ("get_inputs", "get_init_inputs")
NODES: tuple[type[ast.AST], ...] = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Return),
    *(ast.Expr, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.BinOp),
    *(ast.UnaryOp, ast.Subscript, ast.Slice, ast.expr_context, ast.operator, ast.unaryop, ast.alias, ast.Module),
    *(ast.AnnAssign, ast.Starred),
)
MAX_CHARACTERS = 20_000
BINARY: dict[type[ast.operator], str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow"},
    **{ast.FloorDiv: "floor_divide", ast.Mod: "remainder"},
}


class NotAdmitted(Exception):
    """The text has something that no task needs, or lacks a part."""


def admit(text: str, known: Collection[str], max_operators: int) -> tuple[str, ...]:
    """Return the operators of the text, e.g. ``nn.Conv2d``: modules, then the others as computed. Raises NotAdmitted.

    `known` are the catalogue's names.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotAdmitted(f"the file has {len(text)} characters, and {MAX_CHARACTERS} are allowed")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAdmitted(f"it is no Python: {error}") from None
    _check_parts(tree)
    for node in ast.walk(tree):
        _check(node, known)
    operators = tuple(_operators(tree, known))
    if not 1 <= len(operators) <= max_operators:
        raise NotAdmitted(f"it uses {len(operators)} operators, and 1 to {max_operators} are allowed")
    return operators


def without_docstring(text: str) -> str:
    """Return the text after its module's docstring."""
    first = ast.parse(text).body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return "\n".join(text.splitlines()[first.end_lineno :]).lstrip("\n") + "\n" if is_docstring else text


def _check_parts(tree: ast.Module) -> None:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if set(functions) != set(FUNCTIONS):
        raise NotAdmitted(f"it must define {' and '.join(FUNCTIONS)}, and no other function")
    if [node.name for node in classes] != ["Model"] or [_dotted(base) for base in classes[0].bases] != ["nn.Module"]:
        raise NotAdmitted("it must define one class, Model(nn.Module)")
    methods = [node for node in classes[0].body if isinstance(node, ast.FunctionDef)]
    if [node.name for node in methods] != ["__init__", "forward"] or len(methods[0].args.args) != 1:
        raise NotAdmitted("Model must define __init__(self) and forward")
    inner = [node for each in (*functions.values(), *methods) for node in each.body]
    for node in (*inner, *classes[0].body):
        if isinstance(node, ast.ClassDef | ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.FunctionDef) and node not in methods
        ):
            raise NotAdmitted(f"line {node.lineno}: classes, functions and imports belong at the file's top")
    bodies = {id(node) for each in inner for node in ast.walk(each)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and id(each) not in bodies:
            raise NotAdmitted(f"line {each.lineno}: a call outside of the functions runs when the file is imported")


def _check(node: ast.AST, known: Collection[str]) -> None:
    line = f"line {getattr(node, 'lineno', 1)}"
    if not isinstance(node, NODES):
        raise NotAdmitted(f"{line}: {type(node).__name__} is not allowed")
    if isinstance(node, ast.Import | ast.ImportFrom) and ast.unparse(node) not in IMPORTS:
        raise NotAdmitted(f"{line}: `{ast.unparse(node)}` is not allowed")
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
        raise NotAdmitted(f"{line}: decorators are not allowed")
    if isinstance(node, ast.Name):
        _check_name(node, line)
    if isinstance(node, ast.Attribute):
        _check_attribute(node, line, known)


def _check_name(node: ast.Name, line: str) -> None:
    is_builtin = node.id in dir(builtins) and node.id not in ("super", "float", "int", "len")
    is_rebound = node.id in ROOTS and not isinstance(node.ctx, ast.Load)
    if node.id.startswith("_") or is_builtin or is_rebound:
        raise NotAdmitted(f"{line}: the name {node.id} is not allowed")


def _check_attribute(node: ast.Attribute, line: str, known: Collection[str]) -> None:
    dotted = _dotted(node)
    if dotted is not None and dotted.partition(".")[0] in ROOTS:
        is_module = dotted in ("torch.nn", "torch.nn.functional", "nn.functional", "nn", "F")
        if not is_module and dotted not in CONSTRUCTORS and not _is_known(dotted, known):
            raise NotAdmitted(f"{line}: {dotted} is no operator of the catalogue")
    elif _is_constructor_call(node) or (dotted is not None and dotted.startswith("self.") and dotted.count(".") == 1):
        if node.attr.startswith("_") and not _is_constructor_call(node):
            raise NotAdmitted(f"{line}: the attribute {node.attr} is not allowed")
    elif node.attr not in VIEWS and not _is_known(f"torch.{node.attr}", known):
        raise NotAdmitted(f"{line}: the attribute {node.attr} is no operator of the catalogue")


def _is_known(dotted: str, known: Collection[str]) -> bool:
    """Tell an operator of the catalogue, which has ``F.relu`` for `torch.relu`, too."""
    root, _, name = dotted.partition(".")
    return (
        dotted in known
        or dotted in JOINS
        or (root in ("torch", "F") and bool({f"torch.{name}", f"F.{name}"} & set(known)))
    )


def _is_constructor_call(node: ast.Attribute) -> bool:
    """Tell `super().__init__`."""
    return node.attr == "__init__" and ast.unparse(node.value) == "super()"


def _operators(tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    """Yield modules that are constructed, functions and methods that are called, and arithmetic of forward."""
    (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    constructor, forward = (node for node in model.body if isinstance(node, ast.FunctionDef))
    for node in ast.walk(constructor):
        dotted = _dotted(node.func) if isinstance(node, ast.Call) else None
        if dotted is not None and dotted.startswith("nn.") and dotted in known:
            yield dotted
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    sizes = {name.id for node in assigned for name in ast.walk(node) if isinstance(name, ast.Name)}
    calls = [node for node in ast.walk(forward) if isinstance(node, ast.Call | ast.BinOp)]
    calls.sort(key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))  # as they are computed
    for node in calls:
        if isinstance(node, ast.BinOp):
            if not _is_number(node, sizes):
                yield BINARY.get(type(node.op), type(node.op).__name__)
        elif isinstance(node.func, ast.Attribute):
            dotted = _dotted(node.func)
            if dotted is not None and dotted.partition(".")[0] in ROOTS:
                if dotted not in CONSTRUCTORS:
                    yield dotted
            elif not (dotted or "").startswith("self.") and node.func.attr not in VIEWS:
                yield f"torch.{node.func.attr}"


def _is_number(node: ast.AST, sizes: Collection[str]) -> bool:
    """Tell arithmetic of literals and of the file's constants."""
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, sizes) and _is_number(node.right, sizes)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in sizes)


def _dotted(node: ast.AST) -> str | None:
    """Return ``F.gelu`` of any spelling of it; None for what is no chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    dotted = ".".join((node.id, *reversed(parts)))
    for long, short in (("torch.nn.functional.", "F."), ("nn.functional.", "F."), ("torch.nn.", "nn.")):
        if dotted.startswith(long):
            return short + dotted.removeprefix(long)
    return dotted
