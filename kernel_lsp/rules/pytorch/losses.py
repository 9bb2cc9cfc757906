"""Find the activation that a loss applies by itself in what the loss gets: a call, a module, a model of the file."""

from __future__ import annotations

import ast

from kernel_lsp.rules.pytorch.names import LOSSES_OF_LOGITS, activation_of, activation_of_class, last_layer
from kernel_lsp.rules.pytorch.scopes import Scope

Activated = tuple[str, str]
"""An activation, and the module of the file that applies it (empty for a call)."""


def loss_name(call: ast.Call, scope: Scope) -> str:
    """Return ``cross_entropy`` for `F.cross_entropy`, and for a call of an `nn.CrossEntropyLoss`; else ""."""
    name = scope.function_name(call)
    if name:
        return name if name in ("binary_cross_entropy", *LOSSES_OF_LOGITS.values()) else ""
    return LOSSES_OF_LOGITS.get(_constructor(call.func, scope).rpartition(".")[2], "")


def activation_before(node: ast.expr, scope: Scope) -> Activated:
    """Return the activation whose result the expression is."""
    made = scope.definition(node)
    if not isinstance(made, ast.Call):
        return "", ""
    name = scope.function_name(made) or activation_of(made, scope.names, scope.owner.submodules if scope.owner else {})
    if name:
        return name, ""
    constructor = _constructor(made.func, scope)
    is_given = isinstance(made.func, ast.Name) and made.func.id in scope.parameters
    if is_given and not constructor:
        constructor = scope.names.only_model or ""
    activation = scope.names.activations.get(constructor, "")
    return (activation, constructor) if activation else (activation_of_class(constructor), "")


# --- below: what a name was made by


def _constructor(function: ast.expr, scope: Scope) -> str:
    """Return the class whose object is called: of `self.loss`, of a name of this scope or of the file."""
    match function:
        case ast.Call(func=made):
            return scope.dotted(made)
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute) if scope.owner is not None:
            return scope.owner.submodules.get(attribute, "")
        case ast.Name(id=name):
            value = scope.definition(function)
            if isinstance(value, ast.Call):
                return last_layer(value, scope.names)
            return "" if name in scope.parameters or name in scope.assigned else scope.names.made.get(name, "")
    return ""
