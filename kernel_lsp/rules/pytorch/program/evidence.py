"""Infer tensors from names: the calls that return tensors, and the parameters whose use requires a tensor."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from kernel_lsp.rules.pytorch.program.functions import FunctionNode
from kernel_lsp.rules.pytorch.program.kinds import (
    ARRAY_LIKE_NAMES,
    MULTIPLE_OUTPUT_MODULES,
    NOT_TENSOR_FUNCTIONS,
    TAKES_NUMBERS,
    TAKES_TENSORS,
    TENSOR_NAMESPACES,
    TENSOR_ONLY_METHODS,
    Kind,
)
from kernel_lsp.rules.pytorch.program.parsing import nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope

NAMES_MASK = re.compile(
    r"mask$|^(?:is_|has_|not_|in)?(?:valid|visible|keep|kept|observed|finite|active|alive|foreground|selected|present"
    r"|missing|matched|labell?ed|positive|negative)(?:_\w+)?$"
)
"""A name that reads as a condition on each element. A list has no such index."""
_FORWARD_EVIDENCE = TENSOR_ONLY_METHODS | ARRAY_LIKE_NAMES


@dataclass(eq=False)
class CallKinds:
    """The kinds of the results of a scope's calls, by the callee's name."""

    scope: Scope
    by_name: dict[str, Kind] = field(default_factory=dict)

    def of(self, function: ast.expr) -> Kind:
        dotted = self.scope.dotted(function)
        kind = self.by_name.get(dotted)
        if kind is None:
            kind = self.by_name[dotted] = self._read(function, dotted)
        return kind

    def _read(self, function: ast.expr, dotted: str) -> Kind:
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
            return self._of_submodule(function.attr)
        head, _, name = dotted.rpartition(".")
        if head == "torch" and name not in NOT_TENSOR_FUNCTIONS and not name.startswith(("_", "is_", "get_", "set_")):
            return Kind.TENSOR if name[:1].islower() else Kind.OTHER
        return Kind.TENSOR if dotted.startswith(TENSOR_NAMESPACES) else Kind.OTHER

    def _of_submodule(self, attribute: str) -> Kind:
        owner = self.scope.owner
        constructor = "" if owner is None else owner.submodules.get(attribute, "")
        if constructor in self.scope.names.classes:
            return Kind.TENSOR if self.scope.names.classes[constructor].returns_tensor else Kind.OTHER
        if not constructor.startswith("torch.nn."):
            return Kind.OTHER
        name = constructor.rpartition(".")[2]
        return Kind.TENSORS if name in MULTIPLE_OUTPUT_MODULES else Kind.TENSOR


def tensor_parameters(node: FunctionNode, unclear: set[str], scope: Scope, calls: CallKinds) -> dict[str, Kind]:
    """Return the kinds of unannotated parameters that have a use valid for tensors alone."""
    in_forward = scope.owner is not None and node.name in scope.owner.forward_methods
    evidence = _FORWARD_EVIDENCE if in_forward else TENSOR_ONLY_METHODS
    found: set[str] = set()
    lists: set[str] = set()
    masks: set[str] = set()
    shaped: set[str] = set()
    placed: set[str] = set()
    for used in nodes_of(node, ast.Attribute):
        if isinstance(used.value, ast.Name) and used.value.id in unclear:
            if used.attr in evidence:
                found.add(used.value.id)
            elif in_forward and used.attr in ("any", "all"):
                masks.add(used.value.id)
            elif used.attr in ("shape", "device"):
                (shaped if used.attr == "shape" else placed).add(used.value.id)
    annotated = calls.scope.parameters - unclear
    for call in nodes_of(node, ast.Call) if not found >= unclear else ():
        if call.args and not isinstance(call.args[0], ast.Constant):
            names, is_list = _tensors_taken(call, unclear, calls, annotated)
            (lists if is_list else found).update(names)
    found |= (shaped | _operands(node)) & placed  # arrays have no device, and modules neither shape nor arithmetic
    kinds = dict.fromkeys(masks & unclear, Kind.MASK) | dict.fromkeys(lists & unclear, Kind.TENSORS)
    return kinds | dict.fromkeys(found & unclear, Kind.TENSOR)


def _operands(node: FunctionNode) -> set[str]:
    """Return the names that arithmetic is applied to."""
    sides = (side for each in nodes_of(node, ast.BinOp) for side in (each.left, each.right))
    return {side.id for side in sides if isinstance(side, ast.Name)}


def _tensors_taken(
    call: ast.Call, unclear: set[str], calls: CallKinds, annotated: frozenset[str]
) -> tuple[set[str], bool]:
    """Return the unclear names in a call's first argument that must be tensors, or the one name that must be a list
    of tensors. The flag marks a list."""
    first = call.args[0]
    listed = first.elts if isinstance(first, ast.List | ast.Tuple) else None
    names = (
        _only_name(first, annotated) if listed is None else {part.id for part in listed if isinstance(part, ast.Name)}
    )
    names &= unclear
    if not names or calls.of(call.func) is not Kind.TENSOR:
        return set(), False
    name = calls.scope.dotted(call.func)
    name = name.removeprefix("torch.") if name.count(".") == 1 else ""
    if name in TAKES_TENSORS:
        is_list = isinstance(first, ast.Name)
        return (names, is_list) if listed is not None or is_list else (set(), False)
    return (set(), False) if listed is not None or name in TAKES_NUMBERS else (names, False)


def _only_name(node: ast.expr, annotated: frozenset[str]) -> set[str]:
    """Return the single name that arithmetic, methods that arrays share, and masks are applied to. If their result is a
    tensor, so is the name. An annotated parameter is no mask."""
    found: set[str] = set()
    parts = [node]
    while parts:
        match parts.pop():
            case ast.Name(id=name):
                found.add(name)
            case ast.BinOp(left=left, right=right):
                parts += [left, right]
            case ast.UnaryOp(operand=operand):
                parts.append(operand)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in ARRAY_LIKE_NAMES:
                parts.append(value)
            case ast.Subscript(value=value, slice=ast.Name(id=index)) if index not in annotated and NAMES_MASK.search(
                index
            ):
                parts.append(value)
            case ast.Constant():
                pass
            case _:
                return set()
    return found if len(found) == 1 else set()
