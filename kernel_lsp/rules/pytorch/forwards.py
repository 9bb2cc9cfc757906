"""Decide which functions run at each step of a model."""

from __future__ import annotations

import ast

from kernel_lsp.rules.pytorch.names import ModuleClass
from kernel_lsp.rules.pytorch.parsing import ParsedModule
from kernel_lsp.rules.pytorch.scopes import FunctionNode, Scope, first_line

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
