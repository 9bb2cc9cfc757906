"""KL107: loops of Python over a dimension of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.cost import calls_module, is_recurrence
from kernel_lsp.rules.pytorch.declare import INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.kinds import NOT_TENSOR_FUNCTIONS, Kind
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.pytorch.program.trained import is_for_inference, runs_model
from kernel_lsp.rules.rule import Hit

_LOOP_MESSAGE = "this loop launches kernels for each index of a dimension: use one operation over all of it"


@declare(
    "KL107",
    "loop-over-tensor",
    WARNING,
    needs=("for",),
    summary="A Python loop over a dimension of a tensor",
    why="""
    Each round launches its own small kernels, at several microseconds each, and an unrolled graph grows with the size.
    Write the loop as one operation over the dimension (broadcasting, `einsum`, `cumsum`, `scatter`, `vmap`). Where each
    round needs the one before, one kernel can go over the dimension by itself.
    """,
    bad="""
    import torch

    def scale_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * scale[i]
        return out
    """,
    good="""
    import torch

    def scale_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale[:, None]
    """,
)
def loop_over_tensor(scope: Scope) -> Iterator[Hit]:
    for counted in _over_given_tensors(scope):
        yield hit(scope, counted, _LOOP_MESSAGE)
    for counted in _stacked_products(scope):
        message = "a matrix product per element of a batch: use `torch.bmm` or `@` of the whole batches"
        yield Hit(scope.module.range(counted), message, (), INFORMATION)
    for loop in scope.loops if scope.is_forward else ():
        goes_over = isinstance(loop, ast.For) and (_iterates_tensor(loop.iter, scope) or _counts_size(loop, scope))
        if isinstance(loop, ast.For) and goes_over and not (scope.owner is None and runs_model(loop, scope)):
            if not is_recurrence(loop):
                yield hit(scope, loop.iter, _LOOP_MESSAGE)
            elif not calls_module(loop) and not is_for_inference(scope):
                message = "loop-carried dependency: each iteration launches its own kernels, one kernel can do all"
                yield Hit(scope.module.range(loop.iter), message, (), INFORMATION)
    for comprehension in scope.comprehensions if scope.is_forward else ():
        generator = comprehension.generators[0]
        if isinstance(comprehension.elt, ast.Call | ast.BinOp) and _iterates_tensor(generator.iter, scope):
            yield hit(scope, generator.iter, _LOOP_MESSAGE)
        elif _picks_rows(comprehension, scope):
            yield Hit(scope.module.range(generator.iter), _LOOP_MESSAGE, (), INFORMATION)


def _over_given_tensors(scope: Scope) -> Iterator[ast.expr]:
    """Yield what loops go over that is a tensor in the forward that calls this function: ``for cloud in points``. Each
    iteration must give a row of it to a function of torch, and need no result of the one before."""
    loops = [loop for loop in scope.loops if isinstance(loop, ast.For) and not is_recurrence(loop)]
    parts: list[tuple[ast.expr, ast.expr, list[ast.AST]]] = [(each.target, each.iter, [*each.body]) for each in loops]
    parts += [(each.generators[0].target, each.generators[0].iter, [each.elt]) for each in scope.comprehensions]
    for target, counted, body in parts:
        name, row = _rows_of(target, counted)
        calls = (call for part in body for call in nodes_of(part, ast.Call))
        taken = (ast.unparse(given) for call in calls if _is_of_torch(call, scope) for given in call.args)
        if name in scope.parameters and not _is_known(name, scope) and row in taken and _is_given_tensor(name, scope):
            yield counted


def _stacked_products(scope: Scope) -> Iterator[ast.expr]:
    """Yield what loops go over whose results, products of the rows of two arrays, are stacked: they have one shape."""
    stacked = [call.args[0] for call in scope.calls if scope.function_name(call) == "stack" and call.args]
    names = {each.id for each in stacked if isinstance(each, ast.Name)}
    for each in stacked:
        if isinstance(each, ast.ListComp | ast.GeneratorExp) and len(each.generators) == 1:
            generator = each.generators[0]
            if not generator.ifs and _multiplies_rows(each.elt, generator.target, generator.iter):
                yield generator.iter
    for loop in scope.loops if names else ():
        for statement in loop.body if isinstance(loop, ast.For) else ():
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[row])):
                    if name in names and isinstance(loop, ast.For) and _multiplies_rows(row, loop.target, loop.iter):
                        yield loop.iter


def _multiplies_rows(value: ast.expr, target: ast.expr, counted: ast.expr) -> bool:
    """Return whether a value is a matrix product of one row of each of two names."""
    match counted, target:
        case ast.Call(func=ast.Name(id="zip"), args=[ast.Name(), ast.Name()]), ast.Tuple(elts=[ast.Name(), ast.Name()]):
            rows = {each.id for each in nodes_of(target, ast.Name)}
        case _:
            return False
    products = [(n.left, n.right) for n in nodes_of(value, ast.BinOp) if isinstance(n.op, ast.MatMult)]
    calls = [call for call in nodes_of(value, ast.Call) if flow.called_name(call) in ("matmul", "mm")]
    products += [(call.args[0], call.args[1]) for call in calls if len(call.args) == 2]
    return any({n.id for side in sides for n in nodes_of(side, ast.Name)} == rows for sides in products)


def _rows_of(target: ast.expr, counted: ast.expr) -> tuple[str, str]:
    """Return the name that a loop goes over and the code of its row: ``points``, ``points[i]``."""
    match target, counted:
        case ast.Name(id=row), ast.Name(id=name):
            return name, row
        case ast.Name(id=index), ast.Call(func=ast.Name(id="range"), args=[count]):
            match count:
                case (
                    ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)])
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"))
                    | ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"))
                ):
                    return name, f"{name}[{index}]"
    return "", ""


def _is_of_torch(call: ast.Call, scope: Scope) -> bool:
    name = scope.dotted(call.func).removeprefix("torch.").removeprefix("nn.functional.").removeprefix("linalg.")
    return name != scope.dotted(call.func) and "." not in name and name not in NOT_TENSOR_FUNCTIONS


def _is_known(name: str, scope: Scope) -> bool:
    """Return whether the function's own code says what a parameter is, which the rule has then asked for."""
    reads = [each for each in nodes_of(scope.node, ast.Name) if each.id == name]
    return name in scope.assigned or (scope.is_forward and any(scope.is_tensor(each) for each in reads))


def _is_given_tensor(name: str, scope: Scope) -> bool:
    """Return whether all calls of the function are in a forward that gives a tensor for the parameter."""
    given = flow.given(name, scope)
    return bool(given) and all(where.is_forward and where.is_tensor(value) for value, where in given)


def _iterates_tensor(iterated: ast.expr, scope: Scope) -> bool:
    match iterated:
        case ast.Call(func=ast.Name(id="enumerate" | "zip" | "reversed"), args=arguments):
            return any(_iterates_tensor(argument, scope) for argument in arguments)
        case ast.Call() if scope.function_name(iterated) == "unbind":
            return True
    return scope.is_tensor(iterated)


def _counts_size(loop: ast.For, scope: Scope) -> bool:
    """Return whether the loop is ``for i in range(x.shape[0])`` with ``y[i]`` of a tensor in its body."""
    counted = loop.iter
    match counted:
        case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
            counted = inner
    match counted, loop.target:
        case ast.Call(func=ast.Name(id="range"), args=arguments), ast.Name(id=index):
            pass
        case _:
            return False
    is_compared = isinstance(loop, ast.For) and not calls_module(loop) and _compares_with(loop, index, scope)
    if not any(scope.kind(argument) is Kind.SIZE for argument in arguments):
        return is_compared or _writes_rows(loop, index, scope)
    return any(
        scope.is_tensor(subscript.value) and _indexes_with(subscript.slice, index, len(arguments) < 3)
        for statement in loop.body
        for subscript in nodes_in(statement)
        if isinstance(subscript, ast.Subscript)
    )


def _picks_rows(node: ast.ListComp | ast.GeneratorExp | ast.SetComp, scope: Scope) -> bool:
    """Return whether each element is computed from one row of a tensor: ``[f(x[i]) for i in range(x.shape[0])]``."""
    counted, target = node.generators[0].iter, node.generators[0].target
    is_size = flow.called_name(counted) == "range" and scope.kind(getattr(counted, "args", [node])[-1]) is Kind.SIZE
    rows = [each for each in nodes_of(node.elt, ast.Subscript) if scope.is_tensor(each.value)]
    is_computed = isinstance(node.elt, ast.Call | ast.BinOp) and is_size
    return is_computed and isinstance(target, ast.Name) and any(_indexes_with(e.slice, target.id, False) for e in rows)


def _writes_rows(loop: ast.For, index: str, scope: Scope) -> bool:
    """Return whether each iteration computes one row of a tensor from parts of others: ``out[i] = x[a[i]].mean(0)``."""
    count = loop.iter.args[-1] if isinstance(loop.iter, ast.Call) and loop.iter.args else None
    if calls_module(loop) or is_recurrence(loop) or isinstance(count, ast.Constant):
        return False
    for node in nodes_in(loop):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=out, slice=ast.Name(id=row))], value=ast.Call() as value):
                if row == index and scope.is_tensor(out) and scope.is_tensor(value):
                    return True
    return False


def _compares_with(loop: ast.For, index: str, scope: Scope) -> bool:
    """Return whether each iteration selects its part of a batch by a comparison of a tensor: ``x[batch == i]``."""
    compares = [node for statement in loop.body for node in nodes_of(statement, ast.Compare)]
    return any(
        isinstance(each.ops[0], ast.Eq)
        and isinstance(each.comparators[0], ast.Name)
        and each.comparators[0].id == index
        and scope.is_tensor(each.left)
        for each in compares
    )


def _indexes_with(node: ast.expr, name: str, by_one: bool) -> bool:
    """Return whether the index is the counter. A slice up to it counts where the loop counts by one: with a step it is
    a chunk."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    bounds = [bound for part in parts if isinstance(part, ast.Slice) and by_one for bound in (part.lower, part.upper)]
    return any(isinstance(part, ast.Name) and part.id == name for part in parts) or any(
        inner.id == name for bound in bounds if bound for inner in nodes_of(bound, ast.Name)
    )
