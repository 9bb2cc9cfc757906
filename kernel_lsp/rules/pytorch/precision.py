"""KL132 to KL149: formulas that lose accuracy or overflow."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.pytorch.declare import (
    ERROR,
    INFORMATION,
    WARNING,
    declare,
    hit,
    integer,
    is_number,
    rewrite,
)
from kernel_lsp.rules.pytorch.losses import activation_before, loss_name
from kernel_lsp.rules.pytorch.program.parsing import nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword, same
from kernel_lsp.rules.rule import Hit

_MAX_DEFINITIONS = 10
"""Maximum names that are resolved to their definitions. It ends cyclic definitions."""


@declare(
    "KL132",
    "log-of-softmax",
    WARNING,
    needs=("log", "softmax"),
    summary="`log(softmax(x))` gives -inf where `log_softmax` is exact",
    why="Probabilities below 1e-38 are 0 in float32, and their logarithm is -inf, with NaN gradients.",
    bad="""
    import torch

    def log_probabilities(x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.softmax(x, dim=-1))
    """,
    good="""
    import torch

    def log_probabilities(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1)
    """,
)
def log_of_softmax(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        argument = _argument_of(call, "log", scope)
        inner = None if argument is None else scope.definition(argument)
        if isinstance(inner, ast.BinOp | ast.Subscript):
            inner = scope.definition(inner.left if isinstance(inner, ast.BinOp) else inner.value)
        if isinstance(inner, ast.Call) and scope.function_name(inner) == "softmax":
            fixes = [rewrite(scope, call, _renamed(inner, "log_softmax", scope))] if inner is argument else []
            yield hit(scope, call, "-inf for small probabilities: use `log_softmax`", *fixes)


@declare(
    "KL133",
    "softmax-without-maximum",
    WARNING,
    needs=("exp", "sum", "/"),
    summary="A softmax written by hand overflows",
    why="""
    `exp(x)` is infinite in float32 from x = 89 on, and inf / inf is NaN. `torch.softmax` subtracts the maximum first,
    and is one kernel instead of three.
    """,
    bad="""
    import torch

    def softmax(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x)
        return e / e.sum(dim=-1, keepdim=True)
    """,
    good="""
    import torch

    def softmax(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True)
    """,
)
def softmax_without_maximum(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        if not isinstance(node.op, ast.Div) or scope.function_name(scope.definition(node.right)) != "sum":
            continue
        total = scope.definition(node.right)
        summed = scope.operand(total)  # type: ignore[arg-type]  # a call: it has a name
        if summed is None or not same(summed, node.left):
            continue
        exponential = scope.definition(node.left)
        argument = _argument_of(exponential, "exp", scope)
        if argument is not None and not _is_shifted(argument, scope):
            fixes = _softmax_fix(node, argument, total, scope)
            yield hit(scope, node, "overflows for x > 88: use `torch.softmax`", *fixes)


@declare(
    "KL134",
    "log-of-one-plus",
    WARNING,
    needs=("log", "+"),
    summary="`log(1 + x)` loses small `x`",
    why="""
    1 + x is 1 in float32 for |x| below 6e-8, and the result 0. `torch.log1p(x)` keeps full accuracy.
    `log(1 + exp(x))` also overflows: `softplus` does not.
    """,
    bad="""
    import torch

    def entropy_term(x: torch.Tensor) -> torch.Tensor:
        return torch.log(1 + x)
    """,
    good="""
    import torch

    def entropy_term(x: torch.Tensor) -> torch.Tensor:
        return torch.log1p(x)
    """,
)
def log_of_one_plus(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        argument = _argument_of(call, "log", scope)
        if not isinstance(argument, ast.BinOp) or not isinstance(argument.op, ast.Add) or len(call.args) > 1:
            continue
        other = argument.right if is_number(argument.left, 1) else argument.left
        if not (is_number(argument.left, 1) or is_number(argument.right, 1)) or not scope.is_tensor(other):
            continue
        inner = _argument_of(other, "exp", scope)
        if inner is None:
            text = f"{scope.names.spelled('torch.log1p')}({scope.module.source(other)})"
            yield hit(scope, call, "small values are lost in `1 + x`: use `log1p`", rewrite(scope, call, text))
        else:
            text = f"{scope.names.spelled('torch.nn.functional.softplus')}({scope.module.source(inner)})"
            yield hit(scope, call, "overflows for x > 88: use `softplus`", rewrite(scope, call, text))


@declare(
    "KL135",
    "exp-minus-one",
    WARNING,
    needs=("exp", "-"),
    summary="`exp(x) - 1` loses small `x`",
    why="For small x, exp(x) is 1 + x rounded, and the difference has few right digits. `torch.expm1(x)` has all.",
    bad="""
    import torch

    def elu_part(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) - 1
    """,
    good="""
    import torch

    def elu_part(x: torch.Tensor) -> torch.Tensor:
        return torch.expm1(x)
    """,
)
def exp_minus_one(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        if isinstance(node.op, ast.Sub) and is_number(node.right, 1):
            argument = _argument_of(node.left, "exp", scope)
            if argument is not None:
                text = f"{scope.names.spelled('torch.expm1')}({scope.module.source(argument)})"
                yield hit(scope, node, "digits cancel for small x: use `expm1`", rewrite(scope, node, text))


@declare(
    "KL137",
    "log-of-sigmoid",
    WARNING,
    needs=("log", "sigmoid"),
    summary="`log(sigmoid(x))` gives -inf where `logsigmoid` is exact",
    why="`sigmoid` is 0 in float32 below x = -104, and its logarithm -inf. `logsigmoid` stays exact.",
    bad="""
    import torch

    def loss(x: torch.Tensor) -> torch.Tensor:
        return -torch.log(torch.sigmoid(x)).mean()
    """,
    good="""
    import torch

    def loss(x: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.logsigmoid(x).mean()
    """,
)
def log_of_sigmoid(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        argument = _argument_of(call, "log", scope)
        inner = None if argument is None else _argument_of(scope.definition(argument), "sigmoid", scope)
        if inner is None:
            continue
        text = f"{scope.names.spelled('torch.nn.functional.logsigmoid')}({scope.module.source(inner)})"
        fixes = [rewrite(scope, call, text)] if isinstance(argument, ast.Call) else []
        yield hit(scope, call, "-inf for very negative x: use `logsigmoid`", *fixes)


@declare(
    "KL138",
    "log-of-sum-of-exp",
    WARNING,
    needs=("log", "sum", "exp"),
    summary="`log(sum(exp(x)))` overflows where `logsumexp` does not",
    why="`exp(x)` is infinite in float32 from x = 89 on. `torch.logsumexp` subtracts the maximum first.",
    bad="""
    import torch

    def energy(x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.exp(x).sum(dim=-1))
    """,
    good="""
    import torch

    def energy(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, dim=-1)
    """,
)
def log_of_sum_of_exp(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        total = _argument_of(call, "log", scope)
        if not isinstance(total, ast.Call) or scope.function_name(total) != "sum":
            continue
        summed = scope.operand(total)
        argument = None if summed is None else _argument_of(summed, "exp", scope)
        if argument is None or _is_shifted(argument, scope):
            continue
        rest = [*scope.arguments(total), *(k.value for k in total.keywords)]
        fixes = []
        if rest and len(rest) <= 2 and all(k.arg in ("dim", "keepdim") for k in total.keywords):
            arguments = [scope.module.source(argument), *(scope.module.source(n) for n in scope.arguments(total))]
            arguments += [f"{k.arg}={scope.module.source(k.value)}" for k in total.keywords]
            fixes = [rewrite(scope, call, f"{scope.names.spelled('torch.logsumexp')}({', '.join(arguments)})")]
        yield hit(scope, call, "overflows for x > 88: use `torch.logsumexp`", *fixes)


@declare(
    "KL139",
    "compared-with-nan",
    ERROR,
    needs=("nan naN nAn nAN Nan NaN NAn NAN",),
    summary="A comparison with NaN is always false",
    why="NaN is not equal to anything, itself included. Ask with `torch.isnan`.",
    bad="""
    import torch

    def clean(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == float("nan"), 0.0, x)
    """,
    good="""
    import torch

    def clean(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.isnan(x), 0.0, x)
    """,
)
def compared_with_nan(scope: Scope) -> Iterator[Hit]:
    for compare in scope.compares:
        if len(compare.ops) != 1 or not scope.is_tensor(compare.left):
            continue
        if isinstance(compare.ops[0], ast.Eq | ast.NotEq) and _is_nan(compare.comparators[0], scope):
            sign = "~" if isinstance(compare.ops[0], ast.NotEq) else ""
            text = f"{sign}{scope.names.spelled('torch.isnan')}({scope.module.source(compare.left)})"
            fix = QuickFix("Use `torch.isnan`", (scope.module.replace(compare, text),), False)
            yield hit(scope, compare, "nothing equals NaN: use `torch.isnan`", fix)


@declare(
    "KL140",
    "loss-of-activated",
    WARNING,
    needs=(
        "cross_entropy binary_cross_entropy binary_cross_entropy_with_logits CrossEntropyLoss BCEWithLogitsLoss "
        "criterion loss_fn loss_func loss_function",
    ),
    summary="A loss that activates its input gets one that is activated already",
    why="""
    `cross_entropy` takes logits, and so does `nn.CrossEntropyLoss`: after a `softmax`, also one at the end of the
    model, it normalizes twice and trains badly. `binary_cross_entropy` after a
    `sigmoid` saturates; `binary_cross_entropy_with_logits` does both in one, without losing digits.
    """,
    bad="""
    import torch
    from torch.nn import functional as F

    def loss(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.softmax(x, dim=-1), label)
    """,
    good="""
    import torch
    from torch.nn import functional as F

    def loss(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, label)
    """,
)
def loss_of_activated(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name = loss_name(call, scope)
        if not name or not call.args:
            continue
        activated, module = activation_before(call.args[0], scope)
        if name == "binary_cross_entropy" and activated == "sigmoid" and not module:
            yield hit(scope, call, "use `binary_cross_entropy_with_logits` on what `sigmoid` takes")
        elif activated in _APPLIED_BY.get(name, ()):
            source = f"`{module}` returns the result of" if module else "gets the result of"
            yield hit(scope, call, f"`{name}` takes logits, and {source} `{activated}`")


_APPLIED_BY = {"cross_entropy": ("softmax", "log_softmax"), "binary_cross_entropy_with_logits": ("sigmoid",)}
"""The activations that a loss applies by itself."""


@declare(
    "KL141",
    "variance-by-difference",
    INFORMATION,
    needs=("mean", "-"),
    summary="`mean(x²) - mean(x)²` cancels",
    why="""
    Both terms are large and nearly equal when the mean is far from 0; the difference can even be negative, and its root
    NaN. `torch.var` (or Welford's method in a kernel) has no such loss.
    """,
    bad="""
    import torch

    def variance(x: torch.Tensor) -> torch.Tensor:
        return (x ** 2).mean(-1) - x.mean(-1) ** 2
    """,
    good="""
    import torch

    def variance(x: torch.Tensor) -> torch.Tensor:
        return x.var(-1, correction=0)
    """,
)
def variance_by_difference(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        if not isinstance(node.op, ast.Sub):
            continue
        mean_of_square = scope.definition(node.left)
        square_of_mean = _squared(scope.definition(node.right), scope)
        if square_of_mean is None or scope.function_name(mean_of_square) != "mean":
            continue
        first = _squared(scope.operand(mean_of_square), scope)  # type: ignore[arg-type]  # a call: it has a name
        mean = scope.definition(square_of_mean)
        second = scope.operand(mean) if isinstance(mean, ast.Call) and scope.function_name(mean) == "mean" else None
        if first is not None and second is not None and same(first, second):
            yield hit(scope, node, "digits cancel when the mean is large: use `torch.var`")


@declare(
    "KL142",
    "product-with-inverse",
    WARNING,
    needs=("inv", "@ matmul mm"),
    summary="A system of equations is solved by inverting its matrix",
    why="""
    `inv(a) @ b` takes about three times the work of `torch.linalg.solve(a, b)` and loses digits where `a` is close to
    singular. For several right sides factor once: `torch.linalg.lu_factor`, `cholesky_solve`.
    """,
    bad="""
    import torch

    def fit(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(a) @ b
    """,
    good="""
    import torch

    def fit(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(a, b)
    """,
)
def product_with_inverse(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        for side, solved in ((node.left, "solve(a, b)"), (node.right, "solve(a, b, left=False)")):
            made = scope.definition(side)
            if isinstance(node.op, ast.MatMult) and scope.dotted(getattr(made, "func", made)) in _INVERSES:
                yield hit(scope, node, f"inverse of a matrix in a product: use `torch.linalg.{solved}`")
                break


_INVERSES = ("torch.linalg.inv", "torch.inverse")


def _argument_of(node: ast.expr | None, function: str, scope: Scope) -> ast.expr | None:
    """Return the operand of a call of `function` (of torch, of its functions or as a method); None for other nodes."""
    if not isinstance(node, ast.Call) or scope.function_name(node) != function:
        return None
    return scope.operand(node)


def _renamed(call: ast.Call, name: str, scope: Scope) -> str:
    """Return the call's text with the last component of its function's name replaced."""
    module = scope.module
    function = call.func
    if isinstance(function, ast.Attribute):
        head = f"{module.source(function.value)}.{name}"
    else:
        head = scope.names.spelled(f"{scope.dotted(function).rpartition('.')[0]}.{name}")
    arguments = [module.source(argument) for argument in call.args]
    arguments += [
        f"{k.arg}={module.source(k.value)}" if k.arg else f"**{module.source(k.value)}" for k in call.keywords
    ]
    return f"{head}({', '.join(arguments)})"


def _is_shifted(argument: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Return whether the exponent is shifted, as by its maximum, or bounded above."""
    if depth > _MAX_DEFINITIONS:
        return True
    argument = scope.definition(argument)
    if isinstance(argument, ast.BinOp):
        sides = (argument.left, argument.right)
        return isinstance(argument.op, ast.Sub) or any(_is_shifted(side, scope, depth + 1) for side in sides)
    if isinstance(argument, ast.UnaryOp):
        return True
    return scope.function_name(argument) in ("clamp", "clamp_max", "sub", "minimum", "log_softmax", "neg", "abs")


def _softmax_fix(node: ast.BinOp, argument: ast.expr, total: ast.expr, scope: Scope) -> tuple[QuickFix, ...]:
    """Return the fix ``torch.softmax(x, dim=d)``, if the sum keeps one literal dim."""
    if not isinstance(total, ast.Call) or not _is_true(keyword(total, "keepdim")):
        return ()
    dims = [keyword(total, "dim"), *scope.arguments(total)[:1]]
    dim = next((integer(node) for node in dims if node is not None), None)
    if dim is None or not _keeps_its_value(argument, scope):
        return ()
    text = f"{scope.names.spelled('torch.softmax')}({scope.module.source(argument)}, dim={dim})"
    return (rewrite(scope, node, text),)


def _keeps_its_value(node: ast.expr, scope: Scope) -> bool:
    """Return whether every name in the expression is assigned at most once. The expression then has the same value
    later."""
    names = {name.id for name in nodes_of(node, ast.Name)}
    return all(len(scope.assigned.get(name, ())) + (name in scope.parameters) <= 1 for name in names)


def _is_true(node: ast.expr | None) -> bool:
    """Return whether the node is the literal True."""
    return isinstance(node, ast.Constant) and node.value is True


def _squared(node: ast.expr | None, scope: Scope) -> ast.expr | None:
    """Return x of ``x ** 2``, ``x * x``, ``x.pow(2)`` or ``x.square()``."""
    if node is None:
        return None
    match node:
        case ast.BinOp(left=left, op=ast.Pow(), right=right) if is_number(right, 2) and scope.is_tensor(left):
            return left
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if same(left, right) and scope.is_tensor(left):
            return left
        case ast.Call() if scope.function_name(node) == "square":
            return scope.operand(node)
        case ast.Call() if scope.function_name(node) == "pow":
            arguments = scope.arguments(node)
            return scope.operand(node) if len(arguments) == 1 and is_number(arguments[0], 2) else None
    return None


def _is_nan(node: ast.expr, scope: Scope) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            return text.strip().lower() == "nan"
    return scope.dotted(node) in ("math.nan", "numpy.nan", "np.nan", "torch.nan")
