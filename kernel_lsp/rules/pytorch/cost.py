"""KL110 to KL119: work that one kernel, or none, could do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from kernel_lsp.rules.finding import QuickFix, TextEdit
from kernel_lsp.rules.pytorch.chains import chains_of
from kernel_lsp.rules.pytorch.declare import HINT, INFORMATION, LOOP_WORDS, WARNING, declare, hit, rewrite
from kernel_lsp.rules.pytorch.kinds import (
    CAST_DTYPES,
    CASTS,
    POINTWISE_FUNCTIONS,
    REDUCTIONS,
)
from kernel_lsp.rules.pytorch.scopes import Scope, same
from kernel_lsp.rules.rule import Hit

MIN_CHAIN = 4
"""Pointwise operations in a row from which fusing is worth a word: below, launches of the rest dominate."""
_SAME_AGAIN = ("contiguous", "detach", "cpu", "cuda", "clone", *CASTS)
_FLOATING_CASTS = ("float", "half", "bfloat16", "double")
"""Casts to integers truncate, which is often meant."""
_TRANSPOSING = ("permute", "transpose", "t", "movedim", "swapaxes", "mT", "T")


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
    for chain in chains_of(scope):
        if chain.n_operations >= MIN_CHAIN:
            gain = chain.n_moved / (len(chain.inputs) + 1)
            message = (
                f"{chain.n_operations} pointwise operations launch {chain.n_operations} kernels and move about "
                f"{chain.n_moved} tensors through memory; one fused kernel moves {len(chain.inputs) + 1}: "
                f"up to {gain:.1f}x less time here"
            )
            yield Hit(scope.module.between(chain.first, chain.last), message)


@declare(
    "KL111",
    "repeated-conversion",
    WARNING,
    needs=(" ".join(("to", *_SAME_AGAIN)),),
    summary="The same copy or cast twice in a row",
    why="The second does nothing, or copies once more. Remove it.",
    bad="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().contiguous().float().float()
    """,
    good="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().float()
    """,
)
def repeated_conversion(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        inner = _receiver(call)
        if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Attribute):
            continue
        if _is_same_conversion(inner, call, scope):
            method = call.func.attr  # type: ignore[attr-defined]
            place = scope.module.after(inner, call)
            fix = QuickFix("Remove the second one", (TextEdit(place, ""),), True)
            yield Hit(place, f"`.{method}(...)` was just done: remove it", (fix,))


@declare(
    "KL112",
    "conversion-to-itself",
    WARNING,
    needs=("to type", "dtype device"),
    summary="A tensor is converted to its own dtype or device",
    why="It does nothing, and hides what was meant.",
    bad="""
    import torch

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.to(x.dtype) + y.to(y.device)
    """,
    good="""
    import torch

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y.to(x.dtype)
    """,
)
def conversion_to_itself(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(value=tensor, attr="to" | "type"),
                args=[ast.Attribute(value=other, attr="dtype" | "device")],
                keywords=[],
            ) if isinstance(tensor, ast.Name | ast.Attribute) and same(tensor, other):
                source = scope.module.source(tensor)
                yield hit(scope, call, f"`{source}` has this already", rewrite(scope, call, source))


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
    needs=("cat concat vstack hstack", LOOP_WORDS),
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
    for statement in scope.statements:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=function, args=[ast.List(elts=parts) | ast.Tuple(elts=parts), *_]) as call,
            ) if scope.dotted(function) in ("torch.cat", "torch.concat", "torch.vstack", "torch.hstack"):
                grows = any(isinstance(part, ast.Name) and part.id == name for part in parts)
                loop = scope.loop_around(statement)
                if grows and loop is not None and not _is_read_besides(name, loop, call):
                    message = f"`{name}` is copied whole in each round: collect in a list, concatenate once"
                    yield hit(scope, call, message)


@declare(
    "KL115",
    "repeat-instead-of-expand",
    INFORMATION,
    needs=("repeat", "unsqueeze"),
    summary="`repeat` copies a dimension of size 1 that `expand` would only view",
    why="""
    `repeat` writes every copy to memory; `expand` gives a view with stride 0, which every operation can read. Only if
    the result is written in place is a copy needed.
    """,
    bad="""
    import torch

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ k.unsqueeze(1).repeat(1, 8, 1, 1).transpose(-1, -2)
    """,
    good="""
    import torch

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q @ k.unsqueeze(1).expand(-1, 8, -1, -1).transpose(-1, -2)
    """,
)
def repeat_instead_of_expand(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[dim]) as inner, attr="repeat"
                ),
                args=counts,
                keywords=[],
            ) if isinstance(dim, ast.Constant) and type(dim.value) is int and scope.is_tensor(inner):
                if 0 <= dim.value < len(counts) and _only_repeats(counts, dim.value):
                    sizes = ", ".join(
                        scope.module.source(count) if i == dim.value else "-1" for i, count in enumerate(counts)
                    )
                    text = f"{scope.module.source(inner)}.expand({sizes})"
                    edit = scope.module.replace(call, text)
                    fix = QuickFix("Use `expand`, a view that must not be written in place", (edit,), False)
                    yield hit(scope, call, "`repeat` copies; `expand` gives a view of the same shape", fix)


@declare(
    "KL116",
    "transposed-twice",
    INFORMATION,
    needs=("contiguous",),
    summary="Two transposing copies in one chain",
    why="""
    `x.permute(...).contiguous()` rewrites the whole tensor in another order. A chain with two such copies moves it
    twice; usually one of the layouts in between is not needed, or the operation takes a `dim`.
    """,
    bad="""
    import torch

    def shuffle(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().view(8, 64, 64).transpose(0, 1).contiguous()
    """,
    good="""
    import torch

    def shuffle(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(8, 64, 64).transpose(0, 1)
    """,
)
def transposed_twice(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "contiguous":
            methods = _methods_before(call)
            if _transposing_copies(methods) >= 2 and not _is_inside_longer_chain(call, scope):
                yield hit(scope, call, "this chain copies the whole tensor into another layout more than once")


@declare(
    "KL117",
    "contiguous-view",
    HINT,
    needs=("contiguous", "view"),
    summary="`.contiguous().view(...)` where `.reshape(...)` copies only if it must",
    why="`reshape` is a view whenever the layout allows one; `contiguous` copies whatever is not row-major.",
    bad="""
    import torch

    def flatten_heads(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().view(8, -1)
    """,
    good="""
    import torch

    def flatten_heads(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(8, -1)
    """,
)
def contiguous_view(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Attribute(value=tensor, attr="contiguous"), args=[], keywords=[]) as inner,
                    attr="view",
                ) as view
            ) if scope.is_tensor(inner) and call.args and not _is_dtype(call.args[0], scope):
                edit = TextEdit(scope.module.after(tensor, view), ".reshape")
                fix = QuickFix("Use `reshape`, which may give a view", (edit,), False)
                yield Hit(scope.module.after(tensor, view), "`reshape` copies only if it must", (fix,))


@declare(
    "KL118",
    "reciprocal-square-root",
    INFORMATION,
    needs=("sqrt", "/"),
    summary="`1 / sqrt(x)` takes two kernels and a division",
    why="`torch.rsqrt` is one kernel, and one instruction in it. Results differ in the last bits.",
    bad="""
    import torch

    def rms_norm(x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    """,
    good="""
    import torch

    def rms_norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    """,
)
def reciprocal_square_root(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        is_reciprocal = isinstance(node.op, ast.Div) and _is_one(node.left)
        if is_reciprocal and scope.function_name(node.right) == "sqrt":
            argument = scope.operand(node.right)  # type: ignore[arg-type]
            if argument is not None and scope.is_tensor(argument):
                text = f"{scope.names.spelled('torch.rsqrt')}({scope.module.source(argument)})"
                yield hit(scope, node, "`torch.rsqrt` does this in one kernel", rewrite(scope, node, text))


@declare(
    "KL119",
    "cast-there-and-back",
    INFORMATION,
    needs=("float half bfloat16 double",),
    summary="A tensor is cast and cast again, with nothing in between",
    why="""
    Two kernels, and the value is rounded to the narrower dtype on the way. If the rounding is meant, say so in a
    comment; otherwise cast once.
    """,
    bad="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.float().half()
    """,
    good="""
    import torch

    def prepare(x: torch.Tensor) -> torch.Tensor:
        return x.half()
    """,
)
def cast_there_and_back(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        inner = _receiver(call)
        if not isinstance(inner, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        outer_name, inner_name = call.func.attr, getattr(inner.func, "attr", "")
        both = outer_name in _FLOATING_CASTS and inner_name in _FLOATING_CASTS and outer_name != inner_name
        if both and scope.is_tensor(inner) and not inner.args and not call.args:
            yield hit(scope, call, f"`.{inner_name}()` is undone by `.{outer_name}()` at once: cast once")


# --- below: what the rules ask


def _is_compiled(scope: Scope) -> bool:
    decorators = getattr(scope.node, "decorator_list", [])
    called = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in decorators]
    return any(scope.dotted(node) in ("torch.compile", "torch.jit.script") for node in called)


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_same_conversion(inner: ast.Call, outer: ast.Call, scope: Scope) -> bool:
    first, second = inner.func.attr, outer.func.attr  # type: ignore[attr-defined]
    if not scope.is_tensor(inner):
        return False
    if first == second and (first == "to" or first in _SAME_AGAIN):
        return _arguments(inner) == _arguments(outer)
    dtype = _cast_dtype(inner, scope)
    return bool(dtype) and dtype == _cast_dtype(outer, scope)


def _arguments(call: ast.Call) -> list[str]:
    return [ast.dump(node) for node in (*call.args, *call.keywords)]


def _cast_dtype(call: ast.Call, scope: Scope) -> str:
    """The dtype that a cast gives, in its first spelling; "" for other calls."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in CAST_DTYPES and not call.args and not call.keywords:
        return CAST_DTYPES[name][0]
    if name == "to" and len(call.args) == 1 and not call.keywords:
        dtype = scope.dotted(call.args[0]).removeprefix("torch.")
        return next((names[0] for names in CAST_DTYPES.values() if dtype in names), "")
    return ""


def _new_dim(node: ast.expr, scope: Scope) -> int | None:
    """The dim that the operand adds with None or `unsqueeze`, None when it adds none or is small for sure."""
    match node:
        case ast.Subscript(value=value, slice=ast.Tuple(elts=parts)) if scope.is_tensor(value):
            at = [i for i, part in enumerate(parts) if isinstance(part, ast.Constant) and part.value is None]
            return at[0] if len(at) == 1 else None
        case ast.Subscript(value=value, slice=ast.Constant(value=None)) if scope.is_tensor(value):
            return 0
        case ast.Call(func=ast.Attribute(value=value, attr="unsqueeze"), args=[ast.Constant(value=int(dim))]):
            return dim if scope.is_tensor(value) and dim >= 0 else None
    return None


def _is_read_besides(name: str, loop: ast.stmt, call: ast.Call) -> bool:
    """Whether the loop needs the value so far, as a model needs the tokens that it wrote."""
    reads = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    own = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(call))
    return len(reads) > own


def _is_reduced(node: ast.expr, scope: Scope) -> bool:
    """Whether a reduction takes the value, through pointwise operations, here or through the one name it is given."""
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
        if is_argument and scope.function_name(parent) not in POINTWISE_FUNCTIONS:  # type: ignore[arg-type]
            return False
        child = parent
    return False


def _name_is_reduced(name: str, scope: Scope) -> bool:
    """Whether a reduction in this scope takes something with the name in it."""
    if scope.reduced_names is None:
        calls = [call for call in scope.calls if scope.function_name(call) in REDUCTIONS]
        operands = [operand for call in calls if (operand := scope.operand(call)) is not None]
        names = (node for operand in operands for node in ast.walk(operand) if isinstance(node, ast.Name))
        scope.reduced_names = frozenset(node.id for node in names)
    return name in scope.reduced_names


def _is_written_by_parts(name: str, scope: Scope) -> bool:
    """Whether parts of what the name stands for are set: then it has to be there."""
    targets = (
        target
        for statement in scope.statements
        if isinstance(statement, ast.Assign | ast.AugAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    )
    return any(isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name) and t.value.id == name for t in targets)


def _only_repeats(counts: list[ast.expr], dim: int) -> bool:
    return all(i == dim or _is_one(count) for i, count in enumerate(counts)) and not _is_one(counts[dim])


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 1


def _methods_before(call: ast.Call) -> list[str]:
    """The methods of a chain, the last one first."""
    methods: list[str] = []
    node: ast.expr = call
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            methods.append(node.func.attr)
            node = node.func.value
        elif isinstance(node, ast.Attribute):
            methods.append(node.attr)
            node = node.value
        else:
            return methods


def _transposing_copies(methods: list[str]) -> int:
    """How many `contiguous` directly follow a transposition."""
    return sum(after == "contiguous" and before in _TRANSPOSING for after, before in pairwise(methods))


def _is_inside_longer_chain(call: ast.Call, scope: Scope) -> bool:
    child: ast.AST = call
    for parent in scope.around(call):
        is_receiver = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is child)
        if not is_receiver:
            return False
        if isinstance(parent, ast.Attribute) and parent.attr == "contiguous":
            return True
        child = parent
    return False


def _is_dtype(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Attribute) and (node.attr == "dtype" or scope.dotted(node).startswith("torch."))
