"""Tell the functions of a file that compute tensors, with annotations or without, from all others."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from kernel_lsp.source.python_file import FunctionNode, PythonFile

MAX_CALLS_DEEP = 2
"""Functions of a file below one that calls them, which are read to know whether it computes tensors."""
_OF_MODULES = frozenset(("parameters", "train", "eval", "backward", "state_dict", "zero_grad"))
_NO_FORMULA = frozenset(("as_tensor", "compile", "device", "empty", "from_numpy", "full", "load", "manual_seed"))
_NO_FORMULA |= frozenset(("ones", "rand", "randint", "randn", "save", "set_num_threads", "tensor", "zeros"))
"""Functions of torch that make, store or set something: whoever passes its arguments to these has no formula."""


def computes_tensors(symbol: str, source: PythonFile) -> bool:
    """Return True for code that handles tensors, the only code worth optimizing."""
    node = source.definition(symbol)
    if not isinstance(node, FunctionNode):
        return source.definition(f"{symbol}.forward") is not None
    return _takes_tensors(node, source, MAX_CALLS_DEEP)


def _takes_tensors(node: FunctionNode, source: PythonFile, depth: int) -> bool:
    """Return True for a function with a tensor among its annotations, or a formula of arguments without any."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    if isinstance(node, ast.AsyncFunctionDef) or not arguments:
        return False
    annotations = [argument.annotation for argument in arguments if argument.annotation is not None]
    if any("Tensor" in ast.unparse(annotation) for annotation in annotations):
        return True
    is_open = {argument.arg for argument in arguments if argument.annotation is None}
    return _is_tensor_formula(node, {argument.arg for argument in arguments}, is_open, source, depth)


def _is_tensor_formula(
    node: ast.FunctionDef, names: set[str], is_open: set[str], source: PythonFile, depth: int
) -> bool:
    """Return True for a function that returns what torch's functions, or formulas of its file, compute of its arguments
    without annotations, `is_open`, or of what it made of these. One that calls an argument or reads state of a module
    from it (a training loop) is none."""
    inside = [*ast.walk(node)]
    calls = [each for each in inside if isinstance(each, ast.Call)]
    if any(isinstance(call.func, ast.Name) and call.func.id in names for call in calls):
        return False
    if any(isinstance(each, ast.Attribute) and each.attr in _OF_MODULES for each in inside):
        return False
    made = _made_of(is_open, inside)
    arguments = [each for call in calls if _is_of_torch(call.func) for value in call.args for each in ast.walk(value)]
    arguments += [value for call in calls if _is_of_file(call.func, source, depth) for value in call.args]
    returns = any(isinstance(each, ast.Return) and each.value is not None for each in inside)
    return returns and any(isinstance(each, ast.Name) and each.id in made for each in arguments)


def _made_of(names: set[str], inside: Sequence[ast.AST]) -> set[str]:
    """Return the names, and those of parts of them: ``first, second = x.chunk(2, -1)``, ``half = x[..., :n]``."""
    found = {*names}
    for each in inside:
        if not isinstance(each, ast.Assign):
            continue
        value: ast.expr = each.value
        while isinstance(value, ast.Subscript | ast.Attribute | ast.Call):
            is_size = isinstance(value, ast.Attribute) and value.attr in ("shape", "size", "ndim", "dtype", "device")
            value = ast.Constant(0) if is_size else value.func if isinstance(value, ast.Call) else value.value
        if isinstance(value, ast.Name) and value.id in found:
            found |= {name.id for target in each.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


def _is_of_file(called: ast.expr, source: PythonFile, depth: int) -> bool:
    """Return True for a function of the same file that computes tensors."""
    node = source.definition(called.id) if isinstance(called, ast.Name) and depth else None
    return isinstance(node, FunctionNode) and _takes_tensors(node, source, depth - 1)


def _is_of_torch(called: ast.expr) -> bool:
    """Return True for ``torch.tanh``, ``F.relu`` and the like, but not for what makes or stores tensors."""
    if not isinstance(called, ast.Attribute) or called.attr in _NO_FORMULA:
        return False
    return ast.unparse(called.value) in ("torch", "F", "nn.functional", "torch.nn.functional", "torch.special")
