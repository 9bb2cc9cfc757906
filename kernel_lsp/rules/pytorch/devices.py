"""KL120, KL121, KL126 and KL176: devices of the tensors that code creates, and copies between them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.finding import QuickFix, TextEdit, TextRange
from kernel_lsp.rules.pytorch.declare import INFORMATION, LOOP_WORDS, WARNING, declare, hit
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.kinds import TENSOR_KINDS
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword
from kernel_lsp.rules.rule import Hit, words

_CREATORS = words(
    """
    zeros ones empty full arange eye linspace logspace rand randn randint randperm tril_indices triu_indices
    """
)


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
        if not is_moved(call, scope) and not scope.names.sets_device:
            message = f"`torch.{name}` without `device=` is on the CPU: say `device=...` of the input"
            yield hit(scope, call, message, *_device_fix(call, scope))


@declare(
    "KL121",
    "created-then-moved",
    WARNING,
    needs=("to cuda",),
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
        name = _made_on_cpu(call, scope)
        outer = _moving_call(call, scope) if name else None
        if outer is None:
            continue
        fixes: tuple[QuickFix, ...] = ()
        match outer:
            case ast.Call(args=[target], keywords=[]) if _is_device(target, scope) and not _is_random(name):
                fixes = (_create_there(call, outer, scope.module.source(target), scope),)
            case ast.Call(func=ast.Attribute(attr="cuda"), args=[], keywords=[]) if not _is_random(name):
                fixes = (_create_there(call, outer, '"cuda"', scope),)
        message = f"`torch.{name}` fills CPU memory that is then copied: create it there"
        yield Hit(scope.module.range(outer), message, fixes, WARNING if scope.is_forward else INFORMATION)
    for call in scope.calls:
        moved = call.func.value if isinstance(call.func, ast.Attribute) and _moves(call, scope) else None
        if moved is None or not (scope.is_forward or scope.loop_around(call) or flow.runs_each_step(scope)):
            continue
        found = flow.origins(moved, scope) if _is_only_moved(moved, scope) else []
        names = {
            name for each, where in found if _base(each) is not moved and (name := _made_on_cpu(_base(each), where))
        }
        if found and len(names) == 1:
            message = f"`torch.{names.pop()}` fills CPU memory that is then copied: create it there"
            yield Hit(scope.module.range(call), message, (), INFORMATION)


@declare(
    "KL176",
    "same-copy-each-iteration",
    INFORMATION,
    needs=("to cuda", LOOP_WORDS),
    summary="A loop copies the same tensor to the device in each iteration",
    why="""
    Nothing in the loop changes the tensor or the device, so that each iteration after the first copies the same bytes
    over again, and waits for memory that is not pinned. Copy it once, before the loop.
    """,
    bad="""
    import torch

    @torch.inference_mode()
    def mean_of_passes(model, x: torch.Tensor, passes: int, device: str) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for _ in range(passes):
            total += model(x.to(device)).mean()
        return total / passes
    """,
    good="""
    import torch

    @torch.inference_mode()
    def mean_of_passes(model, x: torch.Tensor, passes: int, device: str) -> torch.Tensor:
        total = torch.zeros((), device=device)
        x = x.to(device)
        for _ in range(passes):
            total += model(x).mean()
        return total / passes
    """,
)
def same_copy_each_iteration(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        moved = call.func.value if isinstance(call.func, ast.Attribute) and _moves(call, scope) else None
        loop = _repeating(call, scope) if isinstance(moved, ast.Name) else None
        if loop is None or not isinstance(moved, ast.Name) or not _goes_to_device(call, scope):
            continue
        is_same = _is_only_moved_in(moved.id, loop, scope) and _is_unchanged(call, loop)
        is_same = is_same and not _is_changed_in_place(scope.parents.get(id(call)), loop)
        if is_same and _is_used_as_tensor(call, scope) and _may_be_on_cpu(moved, scope):
            copied = scope.module.source(call)
            yield hit(scope, call, f"`{copied}` is the same in each iteration: copy it once, before the loop")


def _repeating(call: ast.Call, scope: Scope) -> ast.AST | None:
    """Return the loop or comprehension that runs a call in each iteration, None where it may run in some alone."""
    child: ast.AST = call
    for parent in scope.around(call):
        if isinstance(parent, ast.If | ast.IfExp | ast.Try | ast.Return | ast.Lambda | ast.BoolOp):
            return None
        if isinstance(parent, ast.For | ast.While):
            return None if isinstance(parent, ast.For) and child is parent.iter else parent
        if isinstance(parent, ast.ListComp | ast.GeneratorExp) and child is parent.elt:
            return parent if len(parent.generators) == 1 else None
        child = parent
    return None


def _goes_to_device(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call copies to a device of its own choice: not to the CPU, nor to where another tensor is."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg == "device")]
    devices = [each for each in given if _is_device(each, scope)]
    is_named = all(
        isinstance(each, ast.Name) or (isinstance(each, ast.Constant) and each.value != "cpu") for each in devices
    )
    return is_named and (bool(devices) or (flow.called_name(call) == "cuda" and not call.args))


def _is_only_moved_in(name: str, loop: ast.AST, scope: Scope) -> bool:
    """Return whether a loop only moves a tensor, and asks for its shape: nothing there can change its elements."""
    for each in nodes_of(loop, ast.Name):
        if each.id == name:
            used = scope.parents.get(id(each))
            is_harmless = isinstance(used, ast.Attribute) and used.attr in (
                "to",
                "cuda",
                "shape",
                "size",
                "dtype",
                "ndim",
            )
            if not isinstance(each.ctx, ast.Load) or not is_harmless:
                return False
    return True


def _is_unchanged(call: ast.Call, loop: ast.AST) -> bool:
    """Return whether no name in the arguments of a call is assigned in the loop."""
    read = {each.id for each in nodes_of(call, ast.Name)}
    return not any(isinstance(each.ctx, ast.Store) and each.id in read for each in nodes_of(loop, ast.Name))


def _is_changed_in_place(parent: ast.AST | None, loop: ast.AST) -> bool:
    """Return whether a loop changes the copy that it assigns, and so needs a new one in each iteration."""
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    names = {each.id for each in targets if isinstance(each, ast.Name)}
    changed: list[ast.expr] = [each.target for each in nodes_of(loop, ast.AugAssign)]
    changed += [each.value for each in nodes_of(loop, ast.Subscript) if isinstance(each.ctx, ast.Store)]
    changed += [each.value for each in nodes_of(loop, ast.Attribute) if each.attr.endswith("_")]
    return any(isinstance(each, ast.Name) and each.id in names for each in changed)


def _is_used_as_tensor(call: ast.Call, scope: Scope) -> bool:
    """Return whether the result goes to a call or into arithmetic, and the value is neither called nor trained."""
    moved = call.func.value if isinstance(call.func, ast.Attribute) else call
    name = moved.id if isinstance(moved, ast.Name) else ""
    parent = scope.parents.get(id(call))
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    names = {name, *((target.id,) if isinstance(target, ast.Name) else ())}
    is_called = any(isinstance(each.func, ast.Name) and each.func.id in names for each in scope.calls)
    is_module = any(
        isinstance(each.value, ast.Name) and each.value.id in names and each.attr in _OF_MODULES
        for each in scope.attributes
    )
    is_value = isinstance(parent, ast.Call | ast.BinOp | ast.keyword | ast.Subscript) or isinstance(target, ast.Name)
    return is_value and not is_called and not is_module and _MODULE_NAME.search(name) is None


_OF_MODULES = words("train eval parameters named_parameters state_dict load_state_dict zero_grad modules forward numpy")
"""Attributes of modules, and the one by which an array that shares a tensor's memory may change it."""
_MODULE_NAME = re.compile(r"(?:model|net|module|encoder|decoder|layer|block|head|backbone|criterion|loss_fn)s?\d*$")


def _may_be_on_cpu(node: ast.Name, scope: Scope) -> bool:
    """Return whether nothing shows that a tensor is on the device already."""
    texts = [ast.unparse(value) for value, _ in flow.origins(node, scope)]
    return scope.is_tensor(node) and not any(_ON_DEVICE.search(text) for text in texts)


_ON_DEVICE = re.compile(r"\.cuda\(|\.to\(|device|_like\(|\.new_")


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
            return x + torch.ones(x.shape[-1], device="cuda")
    """,
    good="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            return x + torch.ones(x.shape[-1], device=x.device)
    """,
)
def hard_coded_cuda(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        if keyword(call, "non_blocking") is not None:
            continue  # an input that is copied from pinned memory: its own device is the CPU
        method = call.func if isinstance(call.func, ast.Attribute) and scope.is_tensor(call.func.value) else None
        if method and method.attr == "cuda" and not call.args:
            yield hit(scope, call, "`.cuda()` names the device: use that of an input")
            continue
        device = keyword(call, "device")
        candidates = [device, *(call.args if method and method.attr == "to" else [])]
        for node in candidates:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda"):
                yield hit(scope, node, "this names the device: use that of an input")


def is_moved(call: ast.Call, scope: Scope) -> bool:
    """Return whether the new tensor is moved immediately, which KL121 reports, or converted to match another tensor
    by `.to(x)` or `.type_as`."""
    attribute = scope.parents.get(id(call))
    if isinstance(attribute, ast.Attribute):
        return attribute.attr in ("to", "cuda", "type_as", "shape", "size", "tolist", "item", "numpy")
    return False


def _moving_call(call: ast.Call, scope: Scope) -> ast.Call | None:
    """Return the `.to(device)` or `.cuda()` call on the result of `call`."""
    attribute = scope.parents.get(id(call))
    outer = scope.parents.get(id(attribute))
    if not isinstance(attribute, ast.Attribute) or not isinstance(outer, ast.Call) or outer.func is not attribute:
        return None
    return outer if _moves(outer, scope) else None


def _moves(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call is ``x.cuda()`` or ``x.to(device)``."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    names_device = any(_is_device(argument, scope) or scope.is_tensor(argument) for argument in call.args)
    names_device |= keyword(call, "device") is not None
    return method == "cuda" or (method == "to" and names_device)


def _made_on_cpu(node: ast.expr, scope: Scope) -> str:
    """Return ``zeros`` for a call of `torch.zeros` that names no device, "" for others."""
    dotted = scope.dotted(node.func) if isinstance(node, ast.Call) else ""
    name = dotted.removeprefix("torch.")
    is_made = isinstance(node, ast.Call) and name in _CREATORS and dotted != name and keyword(node, "device") is None
    return "" if scope.names.sets_device or not is_made else name


def _base(node: ast.expr) -> ast.expr:
    """Return what methods, and triangles of it, are made of: ``torch.ones(n, n)`` of ``torch.ones(n, n).triu(1)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_triangle = node.func.attr in ("tril", "triu") and bool(node.args) and isinstance(node.args[0], ast.Call)
        inner = node.args[0] if is_triangle else node.func.value
        if not isinstance(inner, ast.Call):
            break
        node = inner
    return node


def _is_only_moved(node: ast.expr, scope: Scope) -> bool:
    """Return whether the value is a call's of the file, or a name that is read only to be moved."""
    if isinstance(node, ast.Call):
        return True
    if not isinstance(node, ast.Name) or len(scope.assigned.get(node.id, ())) != 1:
        return False
    reads = [each for each in nodes_in(scope.node) if isinstance(each, ast.Name) and each.id == node.id]
    methods = [scope.parents.get(id(each)) for each in reads if isinstance(each.ctx, ast.Load)]
    return all(isinstance(each, ast.Attribute) and each.attr in ("to", "cuda") for each in methods)


def _is_device(node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.split(":")[0] in ("cuda", "cpu", "mps", "xpu")
    if isinstance(node, ast.Attribute):
        return node.attr == "device"
    if not isinstance(node, ast.Name):
        return False
    made = scope.definition(node)
    if made is not node and not isinstance(made, ast.Name):
        is_made = isinstance(made, ast.Call) and scope.dotted(made.func) == "torch.device"
        return is_made or _is_device(made, scope) or isinstance(made, ast.IfExp)
    return node.id.lower() in ("device", "dev") or node.id.endswith("_device")


def _is_random(name: str) -> bool:
    """Return whether the function draws random numbers. They differ between devices for the same seed, so creating
    them on another device is not safe."""
    return name.startswith("rand")


def _create_there(call: ast.Call, outer: ast.Call, device: str, scope: Scope) -> QuickFix:
    title = f"Create it with `device={device}`"
    removed = TextEdit(scope.module.after(call, outer), "")
    return QuickFix(title, (_added_argument(call, f"device={device}", scope), removed), True)


def _added_argument(call: ast.Call, text: str, scope: Scope) -> TextEdit:
    """Return the edit that inserts a keyword argument before the closing bracket of the call."""
    place = scope.module.range(call)
    source = scope.module.source(call)
    has_arguments = bool(call.args or call.keywords)
    comma = "" if not has_arguments else " " if source[:-1].rstrip().endswith(",") else ", "
    at = TextRange(place.end_line, place.end_column - 1, place.end_line, place.end_column - 1)
    return TextEdit(at, comma + text)


def _device_fix(call: ast.Call, scope: Scope) -> tuple[QuickFix, ...]:
    """Return the fix ``device=x.device`` with the first tensor parameter."""
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
        for node in _used_directly(scope)
    )


def _used_directly(scope: Scope) -> Iterator[ast.expr]:
    yield from (each.value for each in scope.attributes)
    yield from (each.value for each in scope.subscripts)
    for call in scope.calls:
        yield from call.args
