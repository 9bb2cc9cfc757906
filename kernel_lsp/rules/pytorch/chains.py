"""Find chains of dependent pointwise operations, each a kernel of its own in eager mode."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernel_lsp.rules.pytorch.program.kinds import POINTWISE_FUNCTIONS, POINTWISE_MODULES, Kind
from kernel_lsp.rules.pytorch.program.scopes import Scope


@dataclass(slots=True)
class Chain:
    """A chain of dependent pointwise operations. `inputs` are the distinct tensors from outside, as source code."""

    first: ast.expr
    last: ast.expr
    n_operations: int = 0
    n_moved: int = 0
    """Tensors that the separate kernels read or write."""
    inputs: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Variables that hold results of the chain."""


def chains_of(scope: Scope) -> Iterator[Chain]:
    """Yield the chains in runs of plain statements. A branch, a loop or another operation ends a chain."""
    open_chain: Chain | None = None
    for statement in scope.statements:
        value = getattr(statement, "value", None)
        is_plain = isinstance(statement, ast.Assign | ast.Return | ast.AnnAssign | ast.AugAssign)
        chain = _chain_at(value, scope) if is_plain and isinstance(value, ast.expr) else None
        if chain is None:
            if open_chain is not None:
                yield open_chain
            open_chain = None
            continue
        if open_chain is not None and chain.inputs & open_chain.names:
            _extend(open_chain, chain)
        else:
            if open_chain is not None:
                yield open_chain
            open_chain = chain
        if isinstance(statement, ast.Assign):
            open_chain.names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if open_chain is not None:
        yield open_chain


def _extend(chain: Chain, more: Chain) -> None:
    chain.last = more.last
    chain.n_operations += more.n_operations
    chain.n_moved += more.n_moved
    chain.inputs |= more.inputs - chain.names


def _chain_at(root: ast.expr, scope: Scope) -> Chain | None:
    """Return the largest chain at the root of an expression, through pointwise operations only."""
    operands = _pointwise_operands(root, scope)
    if not operands:
        return None
    chain = Chain(root, root)
    waiting = [operands]
    while waiting:
        n_inner = len(waiting)
        leaves = set()
        for tensor in waiting.pop():
            inner = _pointwise_operands(tensor, scope)
            if inner:
                waiting.append(inner)
            elif scope.is_tensor(tensor) or _may_be_tensor(tensor, scope):
                leaves.add(_code(tensor, scope))
        n_inner = len(waiting) + 1 - n_inner
        chain.n_operations += 1
        chain.n_moved += 1 + n_inner + len(leaves)
        chain.inputs |= leaves
    return chain


def _may_be_tensor(node: ast.expr, scope: Scope) -> bool:
    """Return whether the node is a name, or arithmetic with one, whose type the text does not determine. It counts
    as a tensor that both the separate kernels and the fused kernel move."""
    if isinstance(node, ast.BinOp) and scope.kind(node) is Kind.OTHER:
        return _may_be_tensor(node.left, scope) or _may_be_tensor(node.right, scope)
    if not isinstance(node, ast.Name) or scope.kind(node) is not Kind.OTHER:
        return False
    if node.id in scope.assigned:
        return not all(isinstance(value, ast.Constant) for value in scope.assigned[node.id])
    arguments = getattr(scope.node, "args", None)
    declared = () if arguments is None else (*arguments.posonlyargs, *arguments.args)[: _n_without_default(arguments)]
    return any(each.arg == node.id and each.annotation is None for each in declared)


def _n_without_default(arguments: ast.arguments) -> int:
    return len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)


def _code(tensor: ast.expr, scope: Scope) -> str:
    """Return the source code of a tensor without white space, so that equal code compares equal."""
    return tensor.id if isinstance(tensor, ast.Name) else "".join(scope.module.source(tensor).split())


def _pointwise_operands(node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return the operands of a pointwise operation on tensors; empty for anything else."""
    if not scope.is_tensor(node):
        return []
    if isinstance(node, ast.Call):
        return _operands_of_call(node, scope)
    match node:
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Compare(left=left, comparators=[right]):
            return [left, right]
    return []


def _operands_of_call(node: ast.Call, scope: Scope) -> list[ast.expr]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[argument]):
            constructor = "" if scope.owner is None else scope.owner.submodules.get(name, "")
            return [argument] if constructor.rpartition(".")[2] in POINTWISE_MODULES else []
    if scope.function_name(node) not in POINTWISE_FUNCTIONS:
        return []
    first = scope.operand(node)
    return [] if first is None else [first, *scope.arguments(node)]
