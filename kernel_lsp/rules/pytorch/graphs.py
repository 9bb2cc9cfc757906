"""KL157: values of a training that are kept with their graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import WARNING, declare, hit, rewrite
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.pytorch.usage import runs_module, turns_gradients_off
from kernel_lsp.rules.rule import Hit

Term = tuple[int, str]
"""The id of a scope, and a name in it."""


@declare(
    "KL157",
    "kept-graph",
    WARNING,
    needs=("backward append appendleft +",),
    summary="A running sum or a list of losses keeps every graph alive",
    why="""
    `total += loss` and `losses.append(loss)` keep the graph of each round until `total` or `losses` is gone: memory
    grows with every step. Keep `loss.detach()`.
    """,
    bad="""
    import torch

    def run(model, batches, optimizer):
        total = 0.0
        for x, y in batches:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss
        return total
    """,
    good="""
    import torch

    def run(model, batches, optimizer):
        total = 0.0
        for x, y in batches:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        return total
    """,
)
def kept_graph(scope: Scope) -> Iterator[Hit]:
    for statement in scope.statements:
        target, kept = _kept(statement)
        loop = scope.loop_around(statement)
        is_repeated = target.startswith("self.") or (loop is not None and flow.is_step(loop, scope))
        if not is_repeated or target in scope.backward_values:
            continue
        loss = next((each for each in kept if _has_graph(each, scope)), None)
        if loss is not None and not _is_given_by_others(loss, scope):
            source = scope.module.source(loss)
            fix = (rewrite(scope, loss, f"{source}.detach()"),) if isinstance(loss, ast.Name) else ()
            yield hit(scope, statement, f"`{source}` keeps its graph alive: keep `{source}.detach()`", *fix)
    own = None if scope.function is None else scope.function.owner
    for call in scope.calls if "backward" in flow.uses(scope.node, scope) else ():
        for function in flow.callees(call, scope):
            if function.owner is None or function.owner is own:
                continue  # the statement that keeps it is reported
            kept_names = _kept_parameters(scope.program.scope_of(function))
            given = [each for name, each in flow.bound(call, function) if name in kept_names]
            loss = next((each for each in given if _has_graph(each, scope)), None)
            if loss is not None:
                source = scope.module.source(loss)
                yield hit(scope, loss, f"`{source}` keeps its graph alive: give `{source}.detach()`")
    for call in scope.calls:
        retained = next((k.value for k in call.keywords if k.arg == "retain_graph"), None)
        loop = scope.loop_around(call) if isinstance(retained, ast.Constant) and retained.value is True else None
        passes = [c for c in scope.calls if flow.called_name(c) == "backward"] if loop is not None else []
        if sum(scope.loop_around(c) is loop for c in passes) == 1:
            yield hit(scope, call, "`retain_graph=True` keeps the graph of each iteration, which nothing uses again")


def _is_given_by_others(node: ast.expr, scope: Scope) -> bool:
    """Return whether the value is a parameter that functions outside of the class give, where it is reported."""
    own = None if scope.function is None else scope.function.owner
    callers = [caller.function for _, caller in flow.callers(scope)]
    is_parameter = any(isinstance(part, ast.Name) and part.id in scope.parameters for part in _summands(node))
    return is_parameter and any(each is None or each.owner is not own for each in callers)


def _kept(statement: ast.stmt) -> tuple[str, list[ast.expr]]:
    """Return the name or attribute that keeps values, and the values: ``total += loss``, ``losses.append(loss)``."""
    match statement:
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=ast.BinOp() as value):
            parts = _summands(value)
            is_sum = ast.unparse(target) in map(ast.unparse, parts)
            return (ast.unparse(target), parts) if is_sum else ("", [])
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            return ast.unparse(target), [value]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="append" | "appendleft"), args=[value])):
            return ast.unparse(owner), getattr(value, "elts", [value])
    return "", []


def _summands(node: ast.expr) -> list[ast.expr]:
    """Return the terms and factors of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _kept_parameters(scope: Scope) -> set[str]:
    """Return the parameters that a method keeps in an attribute of its object, as they are."""
    taken = {name: name for name in scope.parameters if name != "self"}
    for loop in scope.loops:
        if isinstance(loop, ast.For):
            source = {n.id for n in nodes_of(loop.iter, ast.Name)} & taken.keys()
            taken |= {n.id: taken[name] for name in source for n in nodes_in(loop.target) if isinstance(n, ast.Name)}
    kept = [each for target, values in map(_kept, scope.statements) if target.startswith("self.") for each in values]
    names = [part.id for each in kept for part in _summands(each) if isinstance(part, ast.Name)]
    return {taken[name] for name in names if name in taken}


def _has_graph(node: ast.expr, scope: Scope, terms: frozenset[Term] = frozenset(), depth: int = 0) -> bool:
    """Return whether the value is a loss that a backward runs through, a term of one, or the result of a model."""
    if depth > flow.MAX_HOPS or turns_gradients_off(scope):
        return False
    terms |= _terms(scope)
    match node:
        case ast.BinOp():
            return any(_has_graph(each, scope, terms, depth + 1) for each in _summands(node) if each is not node)
        case ast.Call(func=ast.Attribute(value=inner, attr="mean" | "sum")):
            return _has_graph(inner, scope, terms, depth + 1)
        case ast.Name(id=name) if (id(scope), name) in terms:
            return True
        case ast.Name() | ast.Subscript() | ast.Attribute() | ast.Call():
            found = flow.values(node, scope)
            trains = "backward" in flow.uses(scope.node, scope)
            if trains and any(isinstance(each, ast.Call) and runs_module(each, where) for each, where in found):
                return isinstance(node, ast.Name)
            return any(_has_graph(each, where, terms, depth + 1) for each, where in found)
    return False


def _terms(scope: Scope) -> frozenset[Term]:
    """Return the names of the losses of a scope, of what it calls and is called by, and of what they are sums of."""
    return flow.once(scope, ("terms",), lambda: frozenset(_read_terms(scope)), frozenset())


def _read_terms(scope: Scope) -> Iterator[Term]:
    waiting: list[flow.Value] = [(ast.Name(name, lineno=1 << 30), scope) for name in scope.backward_values]
    for call in scope.calls:
        for function in flow.callees(call, scope):
            inner = scope.program.scope_of(function)
            yield from _terms(inner)
            given = flow.bound(call, function)
            waiting += [(each, scope) for name, each in given if name in inner.backward_values]
    seen: set[Term] = set()
    while waiting:
        node, where = waiting.pop()
        if isinstance(node, ast.BinOp):
            waiting += [(each, where) for each in _summands(node) if each is not node]
        elif isinstance(node, ast.Call) and flow.called_name(node) in ("mean", "sum"):
            waiting += [(node.func.value, where)] if isinstance(node.func, ast.Attribute) else []
        elif not isinstance(node, ast.Name):
            waiting += flow.values(node, where)
        elif (id(where), node.id) not in seen:
            seen.add((id(where), node.id))
            found = flow.values(node, where)
            if any(not isinstance(each, ast.Constant) for each, _ in found):
                yield id(where), node.id
                waiting += found
