"""KL122 to KL125, KL127, KL128 and KL143: allocations and constants that nothing needs, or not each time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.pytorch.declare import CALLED, ERROR, INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.devices import is_moved
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.kinds import Kind
from kernel_lsp.rules.pytorch.program.parsing import nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit, words

_FILLERS = words("ones full arange eye linspace logspace tril_indices triu_indices hann_window hamming_window")
"""Functions whose result depends on their arguments alone. `zeros` is excluded, because it is often an initial value
that is overwritten."""
_NUMBERS = ("size", "start", "end", "step", "steps", "n", "m", "fill_value", "row", "col", "offset", "window_length")
"""Names of arguments that determine sizes and values."""
_MAX_DEFINITIONS = 10
"""Maximum names that are resolved to their definitions. It ends cyclic definitions."""
_VIEWS = ("expand", "expand_as", "broadcast_to")
_NOT_LAYERS = ("functional", "init", "utils", "Parameter", "ParameterList", "Module", "Identity")
_CASTS = ("float", "half", "bfloat16", "to", "type_as", "type")


@declare(
    "KL122",
    "constant-in-forward",
    WARNING,
    on="forward",
    needs=("tensor as_tensor from_numpy",),
    summary="A forward copies Python numbers into a new tensor each time",
    why="""
    `torch.tensor([...])` builds the tensor on the CPU from Python objects and copies it to the device at every call.
    Register it once as a buffer, or use plain Python numbers.
    """,
    bad="""
    import torch
    from torch import nn

    class Normalize(nn.Module):
        def forward(self, x):
            mean = torch.tensor([0.485, 0.456, 0.406], device=x.device)
            return x - mean[:, None, None]
    """,
    good="""
    import torch
    from torch import nn

    class Normalize(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))

        def forward(self, x):
            return x - self.mean[:, None, None]
    """,
)
def constant_in_forward(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        is_copy = scope.dotted(call.func) in ("torch.tensor", "torch.as_tensor", "torch.from_numpy")
        if not is_copy or not call.args or scope.is_tensor(call.args[0]) or not _is_constant_copy(call, scope):
            continue
        given = _given_names(call.args[0], scope)
        made = scope.definition(call.args[0])
        if isinstance(made, ast.Call) and scope.dotted(made.func).startswith("numpy."):
            yield hit(scope, call, "this copies from NumPy at each forward: compute it with torch on the device")
        elif not given:
            yield hit(scope, call, "this copies from the CPU at each forward: keep it as a buffer")
        elif all(scope.kind(node) is Kind.SIZE for node in given):
            yield hit(scope, call, "this copies sizes from the CPU at each forward: use them as plain numbers")


@declare(
    "KL123",
    "module-in-forward",
    WARNING,
    on="forward",
    patterns=(rf"[A-Z]\w*{CALLED}",),
    summary="A module or parameter is made in a forward",
    why="""
    Its parameters are new at every call: they are never trained, never saved, and allocated and initialized each time.
    Make it in `__init__`, or use the function of `torch.nn.functional`.
    """,
    bad="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            return nn.Linear(x.shape[-1], 64)(x)
    """,
    good="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.linear = nn.Linear(dim, 64)

        def forward(self, x):
            return self.linear(x)
    """,
)
def module_in_forward(scope: Scope) -> Iterator[Hit]:
    if scope.owner is None:
        return
    for call in scope.calls:
        dotted = scope.dotted(call.func)
        parts = dotted.removeprefix("torch.nn.").split(".")
        is_layer = dotted.startswith("torch.nn.") and parts[-1][:1].isupper() and parts[0] not in _NOT_LAYERS
        is_layer = is_layer and not parts[-1].endswith("Loss")  # a loss has no parameters or buffers
        if is_layer or dotted == "torch.nn.Parameter":
            yield hit(scope, call, f"`{parts[-1]}` is new at each forward: make it in `__init__`")


@declare(
    "KL124",
    "tensor-of-tensor",
    WARNING,
    needs=("tensor",),
    summary="`torch.tensor(x)` of a tensor",
    why="""
    It copies, cuts the gradient and warns at each call. `x.clone()` keeps the gradient; `x.detach().clone()` says
    that it is cut.
    """,
    bad="""
    import torch

    def copy(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x)
    """,
    good="""
    import torch

    def copy(x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone()
    """,
)
def tensor_of_tensor(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        is_copy = scope.dotted(call.func) == "torch.tensor" and len(call.args) == 1 and scope.is_tensor(call.args[0])
        if is_copy and not _is_asked_for_kind(call.args[0], scope):
            fixes: tuple[QuickFix, ...] = ()
            if not call.keywords:
                text = f"{scope.module.operand(call.args[0])}.detach().clone()"
                edit = scope.module.replace(call, text)
                fixes = (QuickFix("Replace with `.detach().clone()`", (edit,), True),)
            yield hit(scope, call, "a tensor is copied through `torch.tensor`, without its gradient", *fixes)


def _is_asked_for_kind(node: ast.expr, scope: Scope) -> bool:
    """Return whether the code around asks if the value is a tensor: ``x if is_tensor(x) else torch.tensor(x)``."""
    tests = [each.test for each in scope.around(node) if isinstance(each, ast.If | ast.IfExp)]
    return any(
        ast.unparse(call.args[0]) == ast.unparse(node)
        for test in tests
        for call in nodes_of(test, ast.Call)
        if call.args and flow.called_name(call) in ("isinstance", "is_tensor")
    )


@declare(
    "KL125",
    "write-to-expanded",
    ERROR,
    needs=(" ".join(_VIEWS),),
    summary="A view made by `expand` is written in place",
    why="""
    In an expanded dim all elements are the same memory: writing in place writes one place several times. PyTorch
    refuses it, or gives a result that depends on the order. Clone it first.
    """,
    bad="""
    import torch

    def shift(x: torch.Tensor) -> torch.Tensor:
        y = x.expand(8, -1)
        y += 1
        return y
    """,
    good="""
    import torch

    def shift(x: torch.Tensor) -> torch.Tensor:
        y = x.expand(8, -1)
        return y + 1
    """,
)
def write_to_expanded(scope: Scope) -> Iterator[Hit]:
    for statement in scope.statements:
        written = _written_in_place(statement, scope)
        if isinstance(written, ast.Name):
            values = scope.assigned.get(written.id, ())
            is_set_once = len(values) - isinstance(statement, ast.AugAssign) == 1
            by = statement.value if isinstance(statement, ast.AugAssign) else None
            if is_set_once and any(_is_expanded(value, scope) for value in values if value is not by):
                yield hit(scope, statement, f"`{written.id}` is expanded: several of its elements are one place")


@declare(
    "KL127",
    "same-tensor-each-forward",
    INFORMATION,
    on="forward",
    needs=(f"{' '.join(sorted(_FILLERS))} device",),
    summary="A forward makes a tensor that is the same each time",
    why="""
    Its size and its numbers depend on nothing that the forward gets: each call allocates it and launches a kernel to
    fill it. Register it once as a buffer, which moves with the module.
    """,
    bad="""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.n = n

        def forward(self, scores):
            mask = torch.triu(torch.ones(self.n, self.n, device=scores.device), 1)
            return scores.masked_fill(mask > 0, float("-inf"))
    """,
    good="""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("mask", torch.triu(torch.ones(n, n), 1) > 0)

        def forward(self, scores):
            return scores.masked_fill(self.mask, float("-inf"))
    """,
)
def same_tensor_each_forward(scope: Scope) -> Iterator[Hit]:
    if scope.owner is None:
        return
    for call in scope.calls:
        if flow.callees(call, scope) and all(_is_size(each, scope) for each in call.args) and _makes_mask(call, scope):
            yield hit(scope, call, "a mask of sizes alone is made at each forward: keep it as a buffer, and slice it")
    for call in scope.calls:
        name = scope.dotted(call.func).removeprefix("torch.")
        if name not in _FILLERS or scope.dotted(call.func) != f"torch.{name}" or keyword(call, "device") is None:
            continue
        numbers = [*call.args, *(k.value for k in call.keywords if k.arg in _NUMBERS)]
        if all(_is_fixed(node, scope) for node in numbers) and not _is_written(call, scope):
            yield hit(scope, call, "this makes the same tensor at each forward: keep it as a buffer")
    for call in scope.calls:
        if scope.function_name(call) in ("tril", "triu") and _is_of_ones(scope.operand(call), scope):
            yield hit(scope, call, "a mask of sizes alone is made at each forward: keep it as a buffer, and slice it")
            break


@declare(
    "KL128",
    "one-hot-product",
    WARNING,
    needs=("one_hot", "@ matmul mm"),
    summary="A product with a one-hot matrix, where indexing reads the rows",
    why="""
    `one_hot(ids, n).float() @ weight` writes a matrix of n numbers for each index and multiplies it, to select rows of
    `weight`. `F.embedding(ids, weight)` reads those rows alone.
    """,
    bad="""
    import torch
    from torch.nn import functional as F

    def lookup(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.one_hot(ids, 512).float() @ weight
    """,
    good="""
    import torch
    from torch.nn import functional as F

    def lookup(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, weight)
    """,
)
def one_hot_product(scope: Scope) -> Iterator[Hit]:
    products: list[tuple[ast.expr, ast.expr]] = [
        (node, node.left) for node in scope.binaries if isinstance(node.op, ast.MatMult)
    ]
    products += [(c, o) for c in scope.calls if scope.function_name(c) in ("matmul", "mm") and (o := scope.operand(c))]
    for node, left in products:
        made = scope.definition(left)
        while isinstance(made, ast.Call) and scope.function_name(made) in _CASTS:
            operand = scope.operand(made)
            made = scope.definition(operand) if operand is not None else made.func
        if scope.function_name(made) == "one_hot":
            yield hit(scope, node, "product with a one-hot matrix: `F.embedding(ids, weight)` reads the rows alone")


@declare(
    "KL143",
    "product-with-diagonal",
    WARNING,
    needs=("diag diagonal trace diag_embed",),
    summary="A product with a diagonal matrix, or of which only the diagonal is read",
    why="""
    `a @ torch.diag(s)` is `a * s`, and the diagonal of `a @ b` is `(a * b.mT).sum(-1)`: n times fewer operations, and
    no matrix in between.
    """,
    bad="""
    import torch

    def scale_columns(a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return a @ torch.diag(s)
    """,
    good="""
    import torch

    def scale_columns(a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return a * s
    """,
)
def product_with_diagonal(scope: Scope) -> Iterator[Hit]:
    for node in scope.binaries:
        if isinstance(node.op, ast.MatMult):
            sides = [scope.definition(side) for side in (node.left, node.right)]
            if any(scope.function_name(side) in ("diag", "diag_embed") for side in sides):
                yield hit(scope, node, "product with a diagonal matrix: multiply rows or columns instead")
    for call in scope.calls:
        operand = scope.operand(call) if scope.function_name(call) in ("trace", "diag", "diagonal") else None
        made = None if operand is None else scope.definition(operand)
        is_product = isinstance(made, ast.BinOp) and isinstance(made.op, ast.MatMult)
        if made is not None and (is_product or scope.function_name(made) in ("matmul", "mm")):
            yield hit(scope, call, "diagonal of a product: `(a * b.mT).sum(-1)` computes it alone")


def _is_of_ones(node: ast.expr | None, scope: Scope) -> bool:
    """Return whether the value is a square of one number, of a size and a device alone."""
    made = None if node is None else scope.definition(node)
    return isinstance(made, ast.Call) and scope.dotted(made.func) in ("torch.ones", "torch.full")


def _is_size(node: ast.expr, scope: Scope) -> bool:
    """Return whether an argument is a size, a fixed number or a device."""
    is_device = isinstance(node, ast.Attribute) and node.attr in ("device", "dtype")
    return is_device or scope.kind(node) is Kind.SIZE or _is_fixed(node, scope)


def _makes_mask(call: ast.Call, scope: Scope) -> bool:
    """Return whether a function of the file, which caches nothing, returns a comparison of tensors or a triangle."""
    is_cached = any("cache" in ast.unparse(d) for f in flow.callees(call, scope) for d in _decorators(f.node))
    for each, where in flow.origins(call, scope) if call.args and not is_cached else ():
        is_joined = isinstance(each, ast.BinOp) and isinstance(each.op, ast.BitAnd | ast.BitOr)
        is_compared = isinstance(each, ast.Compare) and where.is_tensor(each)
        is_triangle = isinstance(each, ast.Call) and where.function_name(each) in ("tril", "triu")
        if where is not scope and (is_joined or is_triangle or is_compared):
            return True
    return False


def _decorators(node: ast.AST) -> list[ast.expr]:
    found: list[ast.expr] = getattr(node, "decorator_list", [])
    return found


def _is_constant_copy(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call copies a constant to the device. Numbers that stay on the CPU are excluded, because
    kernels take them as arguments. Loop variables are excluded, too."""
    value = call.args[0]
    is_number = isinstance(value, ast.BinOp) or (isinstance(value, ast.Constant) and not isinstance(value.value, str))
    if is_number and keyword(call, "device") is None and not is_moved(call, scope):
        return False
    names = {node.id for node in nodes_of(value, ast.Name)}
    return names.isdisjoint(_counted_around(call, scope))


def _given_names(value: ast.expr, scope: Scope) -> list[ast.Name]:
    """Return the names in the value that the forward receives or computes. Copies of these differ between calls."""
    known = scope.parameters | scope.assigned.keys()
    names = [node for node in nodes_of(value, ast.Name) if node.id in known - {"self"}]
    return [node for node in names if _changes(node, scope, 0)]


def _changes(name: ast.Name, scope: Scope, depth: int) -> bool:
    """Return whether the name's value may differ between calls. A name defined by constants alone does not."""
    value = scope.definition(name)
    if value is name or depth > _MAX_DEFINITIONS:
        return True
    known = scope.parameters | scope.assigned.keys()
    names = [node for node in nodes_of(value, ast.Name) if node.id in known - {"self"}]
    return any(_changes(node, scope, depth + 1) for node in names)


def _counted_around(node: ast.AST, scope: Scope) -> set[str]:
    """Return the loop variables of all loops and comprehensions around the node."""
    targets: list[ast.expr] = []
    for parent in scope.around(node):
        if isinstance(parent, ast.For | ast.AsyncFor):
            targets.append(parent.target)
        elif isinstance(parent, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            targets += [generator.target for generator in parent.generators]
    return {name.id for target in targets for name in nodes_of(target, ast.Name)}


def _written_in_place(statement: ast.stmt, scope: Scope) -> ast.expr | None:
    """Return the target that the statement modifies in place: ``y += ..``, ``y[..] = ..``, ``y.add_(..)``."""
    match statement:
        case ast.AugAssign(target=ast.Name() as name):
            return name
        case ast.AugAssign(target=ast.Subscript(value=value)) | ast.Assign(targets=[ast.Subscript(value=value)]):
            return value
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=method))):
            is_in_place = method.endswith("_") and not method.startswith("_") and method != "requires_grad_"
            return value if is_in_place and scope.is_tensor(value) else None
    return None


def _is_expanded(value: ast.expr, scope: Scope) -> bool:
    method = value.func if isinstance(value, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr in _VIEWS and scope.is_tensor(value)


def _is_fixed(node: ast.expr, scope: Scope) -> bool:
    """Return whether the expression depends only on numbers and on non-tensor attributes of the module."""
    match node:
        case ast.Constant():
            return True
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return scope.owner is not None and attribute not in scope.owner.tensor_attributes
        case ast.BinOp(left=left, right=right):
            return _is_fixed(left, scope) and _is_fixed(right, scope)
        case ast.UnaryOp(operand=operand):
            return _is_fixed(operand, scope)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_is_fixed(part, scope) for part in parts)
    return False


def _is_written(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call's result is modified in place under its assigned name."""
    parent = scope.parents.get(id(call))
    names = {t.id for t in parent.targets if isinstance(t, ast.Name)} if isinstance(parent, ast.Assign) else set()
    written = (_written_in_place(statement, scope) for statement in scope.statements) if names else ()
    return any(isinstance(node, ast.Name) and node.id in names for node in written)
