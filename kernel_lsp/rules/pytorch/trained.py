"""Find what exists only in training, such as losses, gradients and loops over epochs, and the functions that run at
each step of a model."""

from __future__ import annotations

import ast

from kernel_lsp.rules.pytorch.names import ModuleClass
from kernel_lsp.rules.pytorch.parsing import ParsedModule
from kernel_lsp.rules.pytorch.scopes import FunctionNode, Scope, first_line


def item_of_training(call: ast.Call, scope: Scope) -> str:
    """Return ``.item()`` for a call on a value that exists only in training: a gradient, or a loss of a model; and
    ``.cpu()`` where `numpy()` or `tolist()` follows, which only tensors have."""
    function = call.func
    if isinstance(function, ast.Name) and function.id == "float" and len(call.args) == 1:
        return "float()" if ast.unparse(call.args[0]) in _trained(scope) else ""
    if isinstance(function, ast.Name) and function.id == "print":
        shown = [
            part.value if isinstance(part, ast.FormattedValue) else part
            for given in call.args
            for part in _parts(given)
        ]
        return "print" if any(ast.unparse(each) in _trained(scope) for each in shown) else ""
    if isinstance(function, ast.Attribute) and function.attr == "cpu" and not call.args:
        read = scope.parents.get(id(call))
        return ".cpu()" if isinstance(read, ast.Attribute) and read.attr in ("numpy", "tolist", "item") else ""
    if isinstance(function, ast.Attribute) and function.attr == "tolist":
        return ".tolist()" if _is_of_model(function.value, scope) else ""
    if not isinstance(function, ast.Attribute) or function.attr != "item" or call.args:
        return ""
    value = function.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME_VALUE:
        value = value.func.value
    is_loss = ast.unparse(value) in _trained(scope) or (
        isinstance(value, ast.Name) and _is_loss_of_model(value.id, scope)
    )
    return ".item()" if is_loss or _is_of_gradient(value) or _is_count_of_equal(value) else ""


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return what an f-string formats, or the expression alone."""
    return list(node.values) if isinstance(node, ast.JoinedStr) else [node]


def holds_steps(loop: ast.stmt) -> bool:
    """Return whether each iteration is an epoch. An inner loop runs the steps, and its cost outweighs one
    synchronization."""
    inner = (node for node in ast.walk(loop) if isinstance(node, ast.For | ast.While) and node is not loop)
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("backward", "step")
        for each in inner
        for node in ast.walk(each)
    )


def _is_count_of_equal(node: ast.expr) -> bool:
    """Return whether the node is ``(prediction == label).sum()`` or ``prediction.eq(label).sum()``, whose result has an
    `item` only as a tensor's."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COUNTS:
        node = node.func.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("eq", "ne") and len(node.args) == 1
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)


_SAME_VALUE = ("detach", "float", "mean", "clone")
_COUNTS = ("sum", "mean", "float", "all", "any", "double")


def _is_of_model(node: ast.expr, scope: Scope) -> bool:
    """Return whether the value is computed from the result of a model: ``(model(x) != pad).sum(-1)``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in (*_COUNTS, *_SAME_VALUE, "argmax"):
                node = inner
            case ast.Compare(left=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
                node = inner
            case ast.Name(id=name):
                values = scope.assigned.get(name, [])
                return bool(values) and all(isinstance(v, ast.Call) and _calls_model(v.func, scope) for v in values)
            case _:
                return isinstance(node, ast.Call) and _calls_model(node.func, scope)


def _calls_model(function: ast.expr, scope: Scope) -> bool:
    """Return whether a model is called: a name of one, that no import explains."""
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    is_model = name.endswith(("model", "net", "backbone", "encoder", "decoder"))
    return is_model and _root(function) not in scope.names.imported


def _is_of_gradient(node: ast.expr) -> bool:
    """Return whether the node is a chain of methods on `.grad`: ``p.grad.detach().norm()``."""
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def _trained(scope: Scope) -> set[str]:
    """Return the code of values with a ``.backward()`` call, ``loss`` or ``out["loss"]``. Only tensors have such a
    method without arguments."""
    methods = [call.func for call in scope.calls if isinstance(call.func, ast.Attribute) and not call.args]
    return {ast.unparse(method.value) for method in methods if method.attr == "backward"}


def _is_loss_of_model(name: str, scope: Scope) -> bool:
    """Return whether the name contains "loss" and all its values are calls of functions that are not imported."""
    values = scope.assigned.get(name, [])
    roots = [_root(value.func) for value in values if isinstance(value, ast.Call)]
    is_local = len(roots) == len(values) > 0 and not any(root in (None, *scope.names.imported) for root in roots)
    return "loss" in name and is_local


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


_NOT_HOT = (
    "__",
    "test",
    "train",
    "eval",
    "main",
    "bench",
    "plot",
    "save",
    "load",
    "collate",
    "preprocess",
    "log_",
    "get_",
)
"""Prefixes of names of functions that a model does not call at each step."""
_TRAINING_METHODS = frozenset(("backward", "zero_grad"))


def may_be_forward(node: FunctionNode | ast.Module, owner: ModuleClass | None, module: ParsedModule) -> bool:
    """Return whether the code may run at each step of a model, as far as is known before it is read."""
    if isinstance(node, ast.Module):
        return False
    if owner is not None:
        return node.name in owner.forward_methods
    return _has_pragma(module, node) or not (node.name.startswith(_NOT_HOT) or node.name.endswith("_loop"))


def is_forward(scope: Scope, has_tensor_parameter: bool, returns_tensor: bool) -> bool:
    """Return whether the code runs at each step of a model."""
    node = scope.node
    if isinstance(node, ast.Module) or not may_be_forward(node, scope.owner, scope.module):
        return False
    if scope.owner is not None or _has_pragma(scope.module, node):
        return True
    if not has_tensor_parameter:
        return False
    if any(isinstance(c.func, ast.Attribute) and c.func.attr in _TRAINING_METHODS for c in scope.calls):
        return False
    return returns_tensor or scope.names.is_tensor_annotation(node.returns)


# --- below: pragmas


def _has_pragma(module: ParsedModule, node: FunctionNode) -> bool:
    """Return whether a comment ``# kernel-lsp: x=f32[...]`` precedes the function."""
    first = first_line(node)
    return first >= 2 and module.lines[first - 2].lstrip().startswith("# kernel-lsp:")
