"""KL110, KL113, KL114 and KL160: work that one kernel could do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.chains import chains_of
from kernel_lsp.rules.pytorch.declare import INFORMATION, LOOP_WORDS, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.kinds import POINTWISE_FUNCTIONS, REDUCTIONS
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.pytorch.program.trained import has_pragma, is_for_inference, runs_model
from kernel_lsp.rules.rule import Hit

MIN_CHAIN, MIN_CHAIN_OUTSIDE = 4, 8
"""Minimum pointwise operations in a chain that is reported, in a forward and in other functions. Below this, launches
of other kernels dominate."""
MAX_STEPS = 8
"""Maximum names and operations that attention scores are traced through."""
_PASSED = ("dropout", "masked_fill", "to", "type_as", "float", "half", "bfloat16", "contiguous", "where", "type")
_SCALES = ("mul", "div", "mul_", "div_")
_TRANSPOSES = ("transpose", "permute", "swapaxes", "t")
_PRODUCTS = ("matmul", "bmm")
_CONCATENATIONS = ("torch.cat", "torch.concat", "torch.vstack", "torch.hstack")


@declare(
    "KL110",
    "pointwise-chain",
    INFORMATION,
    on="forward",
    summary="A chain of pointwise operations launches many kernels",
    why="""
    In eager mode each pointwise operation is a kernel of its own that reads its operands from memory and writes its
    result back. One fused kernel reads the inputs once and writes the result once. The gain that the message gives
    compares these tensors moved, all taken as equally large; it is an upper bound, since smaller operands cost less.
    """,
    bad="""
    import torch

    def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
        inner = 0.79788456 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + torch.tanh(inner))
    """,
    good="""
    import torch
    from torch.nn import functional as F

    def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")
    """,
)
def pointwise_chain(scope: Scope) -> Iterator[Hit]:
    if _is_compiled(scope):
        return
    is_inside = has_pragma(scope.module, scope.node) or (scope.owner is not None and not is_for_inference(scope))
    minimum = MIN_CHAIN if is_inside else MIN_CHAIN_OUTSIDE
    for chain in chains_of(scope):
        loop = scope.loop_around(chain.first)
        is_beside_model = loop is not None and runs_model(loop, scope)
        if chain.n_operations >= minimum and not is_beside_model:
            gain = chain.n_moved / (len(chain.inputs) + 1)
            message = (
                f"{chain.n_operations} pointwise operations launch {chain.n_operations} kernels and move about "
                f"{chain.n_moved} tensors through memory; one fused kernel moves {len(chain.inputs) + 1}: "
                f"up to {gain:.1f}x less time here"
            )
            yield Hit(scope.module.between(chain.first, chain.last), message)


@declare(
    "KL113",
    "hidden-broadcast",
    WARNING,
    needs=("None unsqueeze", " ".join(sorted(REDUCTIONS))),
    summary="Two tensors are broadcast against each other into a large temporary that is then reduced",
    why="""
    `x[:, None] - y[None]` of (N, D) and (M, D) is a tensor of N·M·D elements in memory before it is reduced to N·M.
    `torch.cdist`, a matrix product or a fused kernel gives the same without the temporary.
    """,
    bad="""
    import torch

    def squared_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x[:, None] - y[None]) ** 2).sum(-1)
    """,
    good="""
    import torch

    def squared_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, y).square()
    """,
)
def hidden_broadcast(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        if not isinstance(node.op, ast.Sub | ast.Mult | ast.Add) or not scope.is_tensor(node):
            continue
        left, right = _new_dim(node.left, scope), _new_dim(node.right, scope)
        if left is not None and right is not None and left != right and _is_reduced(node, scope):
            message = "this makes a tensor as large as the product of both sizes, only to reduce it: "
            yield hit(scope, node, message + "use `torch.cdist`, a matrix product or a fused kernel")


@declare(
    "KL114",
    "cat-in-loop",
    WARNING,
    needs=(f"{LOOP_WORDS} past cache self",),
    summary="`torch.cat` grows a tensor in a loop",
    why="""
    Each round copies everything so far: the cost is quadratic in the number of rounds. Collect the parts in a list and
    concatenate once, or write into a tensor of the final size.
    """,
    bad="""
    import torch

    def collect(model, batches):
        out = torch.empty(0)
        for batch in batches:
            out = torch.cat([out, model(batch)])
        return out
    """,
    good="""
    import torch

    def collect(model, batches):
        parts = []
        for batch in batches:
            parts.append(model(batch))
        return torch.cat(parts)
    """,
)
def cat_in_loop(scope: Scope) -> Iterator[Hit]:
    for each in scope.statements:
        grown, loop = _grown_by_callee(each, scope), scope.loop_around(each)
        if grown and loop is not None and not _is_read_besides(grown, loop, each):
            message = f"`{grown}` is copied whole in each round: collect in a list, concatenate once"
            yield Hit(scope.module.range(each), message, (), INFORMATION)
    for call in scope.calls:
        if scope.dotted(call.func) not in _CONCATENATIONS or not call.args:
            continue
        parts: list[ast.expr] = getattr(call.args[0], "elts", [])
        statement = next((n for n in scope.around(call) if isinstance(n, ast.stmt)), None)
        if not isinstance(statement, ast.Assign) or not isinstance(call.args[0], ast.List | ast.Tuple):
            continue
        attribute = _grown_attribute(parts, statement)
        if attribute and scope.loop_around(statement) is None and _is_cache(attribute, scope):
            message = f"`{attribute}` is copied whole in each call: allocate it once, and write at the position"
            yield Hit(scope.module.range(call), message, (), INFORMATION)
        name, loop = ast.unparse(statement.targets[0]), scope.loop_around(statement)
        cache = _cache_of(parts[0], scope) if len(parts) == 2 else ""
        if cache and loop is None:
            message = f"`{cache}` is copied whole for each token: allocate it once, and write at the position"
            yield Hit(scope.module.range(call), message, (), INFORMATION)
        grows = any(isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) == name for part in parts)
        if not grows or loop is None:
            continue
        if not _is_read_besides(name, loop, statement):
            yield hit(scope, call, f"`{name}` is copied whole in each round: collect in a list, concatenate once")
        elif _is_given_besides_input(name, loop):
            message = f"`{name}` is copied whole in each round: allocate it once, and write at the position"
            yield Hit(scope.module.range(call), message, (), INFORMATION)


@declare(
    "KL160",
    "handwritten-attention",
    INFORMATION,
    needs=("matmul bmm @ einsum",),
    summary="An attention that writes its scores to memory",
    why="""
    `softmax(q @ k.T * scale) @ v` writes and reads a matrix of all pairs of positions several times over.
    `torch.nn.functional.scaled_dot_product_attention` computes the same without it, in one kernel.
    """,
    bad="""
    import torch

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) * 0.125
        return torch.softmax(scores, dim=-1) @ v
    """,
    good="""
    import torch
    from torch.nn import functional as F

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=0.125)
    """,
)
def handwritten_attention(scope: Scope) -> Iterator[Hit]:
    products: list[tuple[ast.expr, ast.expr]] = [(b, b.left) for b in scope.binaries if isinstance(b.op, ast.MatMult)]
    products += [(c, o) for c in scope.calls if scope.function_name(c) in _PRODUCTS and (o := scope.operand(c))]
    products += [(c, a) for c in scope.calls if scope.function_name(c) in _PRODUCTS for a in scope.arguments(c)]
    sums = [call for call in scope.calls if scope.function_name(call) == "einsum" and len(call.args) == 3]
    products += [(call, operand) for call in sums for operand in call.args[1:]]
    is_fallback = any(flow.called_name(call) == "scaled_dot_product_attention" for call in scope.calls)
    for node, weights in products if not is_fallback else ():
        softmax = _behind(weights, scope, "softmax")
        scores = None if softmax is None else _operand(*softmax)
        product = None if softmax is None or scores is None else _product(scores, softmax[1])
        if product is not None and not _is_used_besides(weights, node, scope):
            made, where = product
            yield hit(scope, made if where is scope else node, _HANDWRITTEN)


_HANDWRITTEN = "hand-written attention: use `F.scaled_dot_product_attention`"


def _is_used_besides(weights: ast.expr, product: ast.expr, scope: Scope) -> bool:
    """Return whether the function returns, keeps or reads the weights, which a fused attention does not give."""
    name = weights.id if isinstance(weights, ast.Name) else ""
    own = {id(each) for each in nodes_of(product, ast.Name)}
    for each in nodes_of(scope.node, ast.Name) if name else ():
        if each.id != name or id(each) in own or not isinstance(each.ctx, ast.Load):
            continue
        parent = scope.parents.get(id(each))
        is_named_again = any(
            isinstance(statement, ast.Assign | ast.AnnAssign)
            and name in {n.id for n in nodes_of(statement, ast.Name) if isinstance(n.ctx, ast.Store)}
            for statement in scope.around(each)
        )
        is_shape = isinstance(parent, ast.Attribute) and parent.attr in ("shape", "dtype", "device", "size", "dim")
        if not is_named_again and not is_shape:
            return True
    return False


def _is_compiled(scope: Scope) -> bool:
    decorators = getattr(scope.node, "decorator_list", [])
    called = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in decorators]
    return any(scope.dotted(node) in ("torch.compile", "torch.jit.script") for node in called)


def _new_dim(node: ast.expr, scope: Scope) -> int | None:
    """Return the dim that the operand adds with None or `unsqueeze`. None if it adds no dim or is provably small."""
    match node:
        case ast.Subscript(value=value, slice=ast.Tuple(elts=parts)) if scope.is_tensor(value):
            at = [i for i, part in enumerate(parts) if isinstance(part, ast.Constant) and part.value is None]
            return at[0] if len(at) == 1 else None
        case ast.Subscript(value=value, slice=ast.Constant(value=None)) if scope.is_tensor(value):
            return 0
        case ast.Call(func=ast.Attribute(value=value, attr="unsqueeze"), args=[ast.Constant(value=int(dim))]):
            return dim if scope.is_tensor(value) and dim >= 0 else None
        case ast.Call(func=ast.Attribute(value=value, attr="expand" | "expand_as" | "broadcast_to")):
            return _new_dim(value, scope)
    return None


def _cache_of(node: ast.expr, scope: Scope) -> str:
    """Return the parameter of a cache that ``torch.cat((past[0], k))`` extends, which a caller passes back."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    is_cache = isinstance(node, ast.Name) and node.id in scope.parameters and re.search(r"past|cache", node.id)
    return node.id if is_cache and isinstance(node, ast.Name) else ""


def _grown_attribute(parts: list[ast.expr], statement: ast.Assign) -> str:
    """Return the attribute of the object that ``self.k = torch.cat([self.k, k])`` extends."""
    targets = [each for target in statement.targets for each in getattr(target, "elts", [target])]
    found = {ast.unparse(each) for each in targets if isinstance(each, ast.Attribute | ast.Subscript)}
    grown = [text for part in parts if (text := ast.unparse(part)) in found]
    return grown[0] if grown else ""


def _grown_by_callee(statement: ast.stmt, scope: Scope) -> str:
    """Return the name that a function of the file extends: ``x = grow(x, y)`` that returns ``torch.cat((x, y))``."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
            for function in flow.callees(call, scope):
                own = {p for p, each in flow.bound(call, function) if isinstance(each, ast.Name) and each.id == name}
                for each, where in flow.origins(call, scope):
                    is_cat = isinstance(each, ast.Call) and where.dotted(each.func) in _CONCATENATIONS and each.args
                    parts = getattr(each.args[0], "elts", []) if is_cat and isinstance(each, ast.Call) else []
                    if any(isinstance(part, ast.Name) and part.id in own for part in parts):
                        return name
    return ""


def _is_cache(attribute: str, scope: Scope) -> bool:
    """Return whether the method runs in a loop of the file, or is named after a cache of keys and values."""
    owner = "" if scope.function is None or scope.function.owner is None else scope.function.owner.name
    is_looped = any(caller.loop_around(call) is not None for call, caller in flow.callers(scope))
    return "self" in scope.parameters and (is_looped or bool(re.search(r"(?i)past|cache|\bkv", f"{owner} {attribute}")))


def _is_read_besides(name: str, loop: ast.stmt, statement: ast.stmt) -> bool:
    """Return whether the loop reads the value besides extending it, as a model reads the tokens it has generated."""
    concatenations = [n for n in nodes_in(statement) if isinstance(n, ast.List | ast.Tuple)]
    own = {id(part) for each in concatenations for part in each.elts}
    own |= {id(part) for part in getattr(getattr(statement, "value", None), "args", [])}
    tests = {id(node) for each in nodes_of(loop, ast.If) for node in nodes_in(each.test)}
    tests |= {id(each.left) for each in nodes_of(statement, ast.Compare)}
    reads = (n for n in nodes_in(loop) if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load))
    return any(id(n) not in own | tests and ast.unparse(n) == name for n in reads)


def _is_given_besides_input(name: str, loop: ast.stmt) -> bool:
    """Return whether the loop gives the value to a model beside its input, as a cache: ``model(x, memory)``."""
    calls = nodes_of(loop, ast.Call)
    given = [each for call in calls for each in (*call.args[1:], *(k.value for k in call.keywords))]
    first = {ast.unparse(call.args[0]) for call in calls if call.args}
    return name not in first and any(ast.unparse(each) == name for each in given)


def _is_reduced(node: ast.expr, scope: Scope) -> bool:
    """Return whether a reduction consumes the value, through pointwise operations, directly or by its name."""
    child: ast.AST = node
    for parent in scope.around(node):
        if isinstance(parent, ast.Call) and scope.function_name(parent) in REDUCTIONS:
            return True
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            name = parent.targets[0].id
            return _name_is_reduced(name, scope) and not _is_written_by_parts(name, scope)
        if isinstance(parent, ast.stmt):
            return False
        is_argument = isinstance(parent, ast.Call) and child is not parent.func
        if is_argument and scope.function_name(parent) not in POINTWISE_FUNCTIONS:  # type: ignore[arg-type]  # a call
            return False
        child = parent
    return False


def _name_is_reduced(name: str, scope: Scope) -> bool:
    """Return whether a reduction in this scope consumes an expression with the name."""
    if scope.reduced_names is None:
        calls = [call for call in scope.calls if scope.function_name(call) in REDUCTIONS]
        operands = [operand for call in calls if (operand := scope.operand(call)) is not None]
        names = (node for operand in operands for node in nodes_of(operand, ast.Name))
        scope.reduced_names = frozenset(node.id for node in names)
    return name in scope.reduced_names


def _is_written_by_parts(name: str, scope: Scope) -> bool:
    """Return whether elements of the name's value are assigned. The value must then be materialised."""
    targets = (
        target
        for statement in scope.statements
        if isinstance(statement, ast.Assign | ast.AugAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    )
    return any(isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name) and t.value.id == name for t in targets)


def value_above(node: ast.expr, scope: Scope) -> ast.expr:
    """Return the value that a name has at its use: that of the last assignment in a line above."""
    if not isinstance(node, ast.Name):
        return node
    above = [value for value in scope.assigned.get(node.id, ()) if value.lineno < node.lineno]
    return max(above, key=lambda value: value.lineno, default=scope.definition(node))


def _behind(node: ast.expr | None, scope: Scope, name: str, depth: int = 0) -> tuple[ast.Call, Scope] | None:
    """Return the call of a function that produces a value, traced through masks, dropout, casts and the functions of
    the file."""
    for each, where in flow.origins(node, scope) if node is not None and depth < MAX_STEPS else ():
        if not isinstance(each, ast.Call):
            continue
        found = _called(each, where)
        if found == name:
            return each, where
        is_module = isinstance(each.func, ast.Attribute) and "drop" in each.func.attr and len(each.args) == 1
        if found in (*_PASSED, *_TRANSPOSES) or is_module:
            inner = _behind(each.args[0] if is_module else _operand(each, where), where, name, depth + 1)
            if inner is not None:
                return inner
    return None


def _called(node: ast.Call, scope: Scope) -> str:
    """Return the function's name, also where it is a method of a value that nothing says to be a tensor, or a
    submodule named after it."""
    is_method = isinstance(node.func, ast.Attribute) and not scope.dotted(node.func).startswith("torch.")
    return scope.function_name(node) or (node.func.attr if is_method and isinstance(node.func, ast.Attribute) else "")


def _operand(node: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the operand of a function, method or submodule."""
    match node.func:
        case ast.Attribute(value=ast.Name(id="self")):
            return node.args[0] if node.args else None
    return scope.operand(node)


def _product(node: ast.expr, scope: Scope, depth: int = 0) -> tuple[ast.expr, Scope] | None:
    """Return the product with a transposed operand that the scores are, scaled, masked or cast, and its scope."""
    found = (_scores(*each, depth + 1) for each in flow.origins(node, scope)) if depth < MAX_STEPS else ()
    return next((each for each in found if each is not None), None)


def _scores(node: ast.expr, scope: Scope, depth: int) -> tuple[ast.expr, Scope] | None:
    is_scores = False
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, ast.MatMult):
            return _product(node.left, scope, depth)
        is_scores = _is_transposed(node.right, scope)
    elif not isinstance(node, ast.Call):
        return None
    elif scope.function_name(node) == "einsum":
        is_scores = True
    elif scope.dotted(node.func) == "torch.baddbmm" and len(node.args) > 2:
        is_scores = _is_transposed(node.args[2], scope)
    elif scope.function_name(node) in _PRODUCTS:
        first = _operand(node, scope)
        is_scores = any(_is_transposed(given, scope) for given in (*scope.arguments(node), first) if given is not None)
    elif _called(node, scope) in (*_PASSED, *_SCALES):
        operand = _operand(node, scope)
        return None if operand is None else _product(operand, scope, depth)
    return (node, scope) if is_scores else None


def _is_transposed(node: ast.expr, scope: Scope) -> bool:
    for each, _ in flow.origins(node, scope):
        if isinstance(each, ast.Attribute) and each.attr in ("T", "mT"):
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _TRANSPOSES:
            return True
    return False


def is_recurrence(loop: ast.For) -> bool:
    """Return whether an iteration depends on the result of the previous one, as in ``h = cell(x[t], h)``.
    Accumulation does not count."""
    for node in nodes_in(loop):
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if any(_needs_the_last(name, node, loop) for name in names):
                return True
    return False


def calls_module(loop: ast.For) -> bool:
    """Return whether an iteration runs a layer of the module, as in a recurrent network."""
    calls = (node.func for node in nodes_of(loop, ast.Call))
    owners = (f.value for f in calls if isinstance(f, ast.Attribute))
    return any(isinstance(owner, ast.Name) and owner.id == "self" for owner in owners)


def _needs_the_last(name: str, node: ast.Assign, loop: ast.For) -> bool:
    """Return whether the name's new value depends on its value from the previous iteration."""
    is_needed = any(each.id == name for each in nodes_of(node.value, ast.Name))
    return is_needed and not _adds_to(name, node.value) and not _is_read_first(name, loop, node)


def _adds_to(name: str, value: ast.expr) -> bool:
    """Return whether the value is an accumulation: ``total + ...``."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add | ast.Sub):
        return False
    return any(isinstance(side, ast.Name) and side.id == name for side in (value.left, value.right))


def _is_read_first(name: str, loop: ast.For, statement: ast.Assign) -> bool:
    """Return whether the same iteration assigns the name earlier: ``y = x[i]``, then ``y = y * 2``."""
    targets = [loop.target]
    for node in nodes_in(loop):
        if isinstance(node, ast.Assign) and node.lineno < statement.lineno:
            targets += node.targets
    return any(n.id == name for target in targets for n in nodes_of(target, ast.Name))
