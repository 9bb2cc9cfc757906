"""KL120 to KL129: what a forward allocates, copies to the device or builds anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.finding import QuickFix, TextEdit, TextRange
from kernel_lsp.rules.pytorch.declare import CALLED, ERROR, INFORMATION, WARNING, declare, hit
from kernel_lsp.rules.pytorch.kinds import TENSOR_KINDS
from kernel_lsp.rules.pytorch.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit
from kernel_lsp.rules.words import words

_CREATORS = words(
    """
    zeros ones empty full arange eye linspace logspace rand randn randint randperm tril_indices triu_indices
    """
)
_VIEWS = ("expand", "expand_as", "broadcast_to")
_NOT_LAYERS = ("functional", "init", "utils", "Parameter", "ParameterList", "Module", "Identity")


@declare(
    "KL120",
    "allocation-without-device",
    WARNING,
    on="forward",
    needs=(" ".join(sorted(_CREATORS)),),
    summary="A forward creates a tensor without saying on which device",
    why="""
    Without `device=` the tensor is made on the CPU: with a model on a GPU the next operation fails, or each forward
    copies it over and waits. Say `device=x.device`, or use `x.new_zeros(...)`, `torch.zeros_like(x)`.
    """,
    bad="""
    import torch

    def positions(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[1])
    """,
    good="""
    import torch

    def positions(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[1], device=x.device)
    """,
)
def allocation_without_device(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name = scope.dotted(call.func).removeprefix("torch.")
        has_device = any(k.arg in (None, "device", "out") for k in call.keywords)
        if name not in _CREATORS or scope.dotted(call.func) != f"torch.{name}" or has_device:
            continue
        if not _is_moved(call, scope) and not scope.names.sets_device:
            message = f"`torch.{name}` without `device=` is on the CPU: say `device=...` of the input"
            yield hit(scope, call, message, *_device_fix(call, scope))


@declare(
    "KL121",
    "created-then-moved",
    WARNING,
    needs=(" ".join(sorted(_CREATORS)), "to cuda"),
    summary="A tensor is created on the CPU and then moved",
    why="""
    `torch.zeros(n).to(device)` fills memory on the CPU and copies it, which waits for the GPU. With `device=` the
    tensor is made where it is needed.
    """,
    bad="""
    import torch

    def mask(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(x.shape[1]).to(x.device)
    """,
    good="""
    import torch

    def mask(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(x.shape[1], device=x.device)
    """,
)
def created_then_moved(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        name = scope.dotted(call.func).removeprefix("torch.")
        if name not in _CREATORS or scope.dotted(call.func) != f"torch.{name}" or keyword(call, "device") is not None:
            continue
        outer = _moving_call(call, scope)
        if outer is None:
            continue
        fixes: tuple[QuickFix, ...] = ()
        match outer:
            case ast.Call(args=[target], keywords=[]) if _is_device(target, scope) and not _is_random(name):
                fixes = (_create_there(call, outer, scope.module.source(target), scope),)
            case ast.Call(func=ast.Attribute(attr="cuda"), args=[], keywords=[]) if not _is_random(name):
                fixes = (_create_there(call, outer, '"cuda"', scope),)
        yield hit(scope, outer, f"`torch.{name}` fills CPU memory that is then copied: create it there", *fixes)


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
        if is_copy and call.args and not scope.is_tensor(call.args[0]) and _is_constant_copy(call, scope):
            yield hit(scope, call, "this copies from the CPU at each forward: keep it as a buffer")


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
        is_layer = is_layer and not parts[-1].endswith("Loss")  # has nothing to train or to save
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
        if scope.dotted(call.func) == "torch.tensor" and len(call.args) == 1 and scope.is_tensor(call.args[0]):
            fixes: tuple[QuickFix, ...] = ()
            if not call.keywords:
                text = f"{scope.module.operand(call.args[0])}.detach().clone()"
                edit = scope.module.replace(call, text)
                fixes = (QuickFix("Replace with `.detach().clone()`", (edit,), True),)
            yield hit(scope, call, "a tensor is copied through `torch.tensor`, without its gradient", *fixes)


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
            if is_set_once and any(_is_expanded(value, scope) for value in values):
                yield hit(scope, statement, f"`{written.id}` is expanded: several of its elements are one place")


@declare(
    "KL126",
    "hard-coded-cuda",
    INFORMATION,
    on="forward",
    patterns=("cuda",),
    summary="A forward names the device `cuda`",
    why="""
    The model then fails on the CPU, on a second GPU and on other accelerators. Take the device of an input or a
    parameter.
    """,
    bad="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            return x + torch.ones(4, device="cuda")
    """,
    good="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            return x + torch.ones(4, device=x.device)
    """,
)
def hard_coded_cuda(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        is_cuda_method = isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not call.args
        if is_cuda_method and scope.is_tensor(call.func.value):  # type: ignore[attr-defined]
            yield hit(scope, call, "`.cuda()` names the device: use that of an input")
            continue
        device = keyword(call, "device")
        is_to = isinstance(call.func, ast.Attribute) and call.func.attr == "to" and scope.is_tensor(call.func.value)
        candidates = [device, *(call.args if is_to else [])]
        for node in candidates:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda"):
                yield hit(scope, node, "this names the device: use that of an input")


# --- below: what the rules ask


def _moving_call(call: ast.Call, scope: Scope) -> ast.Call | None:
    """The `.to(device)` or `.cuda()` that takes what `call` creates."""
    attribute = scope.parents.get(id(call))
    outer = scope.parents.get(id(attribute))
    if not isinstance(attribute, ast.Attribute) or not isinstance(outer, ast.Call) or outer.func is not attribute:
        return None
    if attribute.attr == "cuda":
        return outer
    names_device = any(_is_device(argument, scope) for argument in outer.args) or keyword(outer, "device") is not None
    return outer if attribute.attr == "to" and names_device else None


def _is_moved(call: ast.Call, scope: Scope) -> bool:
    """Whether the tensor is moved at once, which KL121 reports, or made like another one with `.to(x)`, `.type_as`."""
    attribute = scope.parents.get(id(call))
    if isinstance(attribute, ast.Attribute):
        return attribute.attr in ("to", "cuda", "type_as", "shape", "size", "tolist", "item", "numpy")
    return False


def _is_device(node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.split(":")[0] in ("cuda", "cpu", "mps", "xpu")
    if isinstance(node, ast.Attribute):
        return node.attr == "device"
    return isinstance(node, ast.Name) and (node.id == "device" or node.id.endswith("_device"))


def _is_random(name: str) -> bool:
    """Random numbers differ between devices for the same seed: moving where they are made is not safe."""
    return name.startswith("rand")


def _create_there(call: ast.Call, outer: ast.Call, device: str, scope: Scope) -> QuickFix:
    title = f"Create it with `device={device}`"
    removed = TextEdit(scope.module.after(call, outer), "")
    return QuickFix(title, (_added_argument(call, f"device={device}", scope), removed), True)


def _added_argument(call: ast.Call, text: str, scope: Scope) -> TextEdit:
    """Puts a keyword argument in front of the closing bracket of the call."""
    place = scope.module.range(call)
    source = scope.module.source(call)
    has_arguments = bool(call.args or call.keywords)
    comma = "" if not has_arguments else " " if source[:-1].rstrip().endswith(",") else ", "
    at = TextRange(place.end_line, place.end_column - 1, place.end_line, place.end_column - 1)
    return TextEdit(at, comma + text)


def _is_constant_copy(call: ast.Call, scope: Scope) -> bool:
    """Not of a number that stays on the CPU, which kernels get as an argument, and not of what a loop goes over."""
    value = call.args[0]
    is_number = isinstance(value, ast.BinOp) or (isinstance(value, ast.Constant) and not isinstance(value.value, str))
    if is_number and keyword(call, "device") is None and not _is_moved(call, scope):
        return False
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return names.isdisjoint(_counted_around(call, scope))


def _counted_around(node: ast.AST, scope: Scope) -> set[str]:
    """The names that loops and comprehensions around the node go over."""
    targets: list[ast.expr] = []
    for parent in scope.around(node):
        if isinstance(parent, ast.For | ast.AsyncFor):
            targets.append(parent.target)
        elif isinstance(parent, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            targets += [generator.target for generator in parent.generators]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _device_fix(call: ast.Call, scope: Scope) -> tuple[QuickFix, ...]:
    """``device=x.device`` of the first tensor parameter."""
    if isinstance(scope.node, ast.Module):
        return ()
    for argument in scope.node.args.args:
        if _is_tensor_parameter(argument.arg, scope):
            text = f"device={argument.arg}.device"
            return (QuickFix(f"Add `{text}`", (_added_argument(call, text, scope),), False),)
    return ()


def _is_tensor_parameter(name: str, scope: Scope) -> bool:
    return name not in scope.assigned and any(
        isinstance(node, ast.Name) and node.id == name and scope.kinds.get(id(node)) in TENSOR_KINDS
        for attribute in (*scope.attributes, *scope.subscripts, *scope.calls)
        for node in _direct_names(attribute)
    )


def _direct_names(node: ast.expr) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else [node.value]  # type: ignore[attr-defined]


def _written_in_place(statement: ast.stmt, scope: Scope) -> ast.expr | None:
    """What the statement writes into: ``y += ..``, ``y[..] = ..``, ``y.add_(..)``."""
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
    is_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    return is_method and value.func.attr in _VIEWS and scope.is_tensor(value)  # type: ignore[attr-defined]
