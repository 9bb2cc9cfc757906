"""KL150 to KL169: misused or deprecated PyTorch features."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.declare import (
    ERROR,
    INFORMATION,
    WARNING,
    declare,
    hit,
    rewrite,
    unsafe_rewrite,
)
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.scopes import Scope
from kernel_lsp.rules.pytorch.program.trained import calls_model
from kernel_lsp.rules.rule import Hit, words

_NO_GRADIENT = ("no_grad", "inference_mode", "set_grad_enabled")
_RENAMED = {
    "torch.ger": "torch.outer",
}
"""Deprecated names whose replacements take the same arguments."""
_REPLACED = {
    "torch.autograd.Variable": "a tensor; `requires_grad_()` where it needs a gradient",
    "torch.symeig": "`torch.linalg.eigh`",
    "torch.eig": "`torch.linalg.eig`",
    "torch.qr": "`torch.linalg.qr`",
    "torch.svd": "`torch.linalg.svd`, which gives the transposed V",
    "torch.cholesky": "`torch.linalg.cholesky`",
    "torch.lstsq": "`torch.linalg.lstsq`",
    "torch.norm": "`torch.linalg.vector_norm` or `torch.linalg.matrix_norm`",
    "torch.range": "`torch.arange`, whose end is exclusive",
    "torch.cuda.amp.autocast": '`torch.amp.autocast("cuda")`',
    "torch.cuda.amp.GradScaler": '`torch.amp.GradScaler("cuda")`',
    "torch.nn.functional.upsample": "`torch.nn.functional.interpolate`",
    "torch.nn.functional.upsample_bilinear": "`torch.nn.functional.interpolate`",
    "torch.set_default_tensor_type": "`torch.set_default_dtype` and `torch.set_default_device`",
}
_NO_FORWARD = words(
    """
    eval train to cuda cpu half float bfloat16 double type apply requires_grad_ parameters named_parameters buffers
    named_buffers modules named_modules children named_children state_dict load_state_dict register_buffer
    register_module register_parameter add_module get_submodule get_parameter zero_grad generate save_pretrained
    compile register_forward_hook register_forward_pre_hook set_adapter load_adapter share_memory predict sample fit
    """
)
"""Methods of a module that compute nothing, or that turn gradients off themselves."""
_KEEPS_MODE = ("to", "cuda", "cpu", "half", "float", "bfloat16", "requires_grad_")
"""Methods that return the module itself."""


@declare(
    "KL150",
    "missing-no-grad",
    INFORMATION,
    summary="A model in evaluation mode runs with gradients recorded",
    why="""
    `model.eval()` changes dropout and batch norm; it does not turn autograd off. Without `torch.inference_mode()` or
    `torch.no_grad()` every activation is kept for a backward that never comes.
    """,
    bad="""
    import torch

    def predict(model, x):
        model.eval()
        return model(x)
    """,
    good="""
    import torch

    def predict(model, x):
        model.eval()
        with torch.inference_mode():
            return model(x)
    """,
)
def missing_no_grad(scope: Scope) -> Iterator[Hit]:
    is_named = bool(_EVALUATES.match(getattr(scope.node, "name", "")))
    if not is_named and not scope.module.mentions("eval"):
        return
    used = flow.uses(scope.node, scope)
    if _records_nothing(scope) or not used.isdisjoint(_TRAINS):
        return
    evaluated = {ast.dump(found) for call in scope.calls if (found := _evaluated(call)) is not None}
    evaluated |= {ast.dump(ast.Name(name, ast.Load())) for name in scope.assigned if _is_made_evaluated(name, scope)}
    seen: set[str] = set()
    for call in scope.calls:
        model = _model_of(call) if isinstance(call.func, ast.Name | ast.Attribute) and call.args else None
        name = "" if model is None else ast.dump(model)
        if model is None or name in seen:
            continue
        made = flow.origins(model, scope) if runs_module(call, scope) else []
        if name in evaluated or (any(_is_evaluated(*each) for each in made) and not _is_part_of_a_step(scope)):
            seen.add(name)
            yield hit(scope, call, _RECORDS)
    if (evaluated or is_named) and not seen and not used.isdisjoint(_READ_ONLY) and used.isdisjoint(_NO_GRADIENT):
        first = next((call for call in scope.calls if _runs_inside(call, scope)), None)
        if first is not None:
            yield hit(scope, next((c for c in scope.calls if _evaluated(c) is not None), first), _RECORDS)


_RECORDS = "autograd records in inference code: use `torch.inference_mode()`"
_EVALUATES = re.compile(r"_?(?:eval|valid|predict|infer|embed_|encode_all|score|recall|accuracy|sample$)")
_READ_ONLY = ("item", "cpu", "tolist", "numpy", "argmax", "topk", "multinomial")
"""Methods that cut the graph of what a model gives."""


def runs_module(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call runs a model: a module of the file, or what is named one."""
    return calls_model(call.func, scope) or any(each.name == "forward" for each in flow.callees(call, scope))


def _runs_inside(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call runs a model, directly or in functions of the file."""
    return runs_module(call, scope) or any(
        _runs_model(scope.program.scope_of(each)) for each in flow.callees(call, scope)
    )


def _runs_model(scope: Scope) -> bool:
    return flow.once(scope, ("runs model",), lambda: any(_runs_inside(each, scope) for each in scope.calls), False)


def _records_nothing(scope: Scope) -> bool:
    """Return whether gradients are off here, or where a function of the file calls this one."""
    return turns_gradients_off(scope) or _is_called_so(scope)


_TRAINS = ("backward", "zero_grad")


def _is_part_of_a_step(scope: Scope) -> bool:
    """Return whether a function of the file that calls this one also runs a backward."""
    return any(not flow.uses(caller.node, caller).isdisjoint(_TRAINS) for _, caller in flow.callers(scope))


def _is_called_so(scope: Scope) -> bool:
    """Return whether a function of the file calls this one, directly or through others, with gradients off."""

    def read() -> bool:
        return any(_is_without_gradients(*each) or _is_called_so(each[1]) for each in flow.callers(scope))

    return flow.once(scope, ("called without gradients",), read, False)


def _is_without_gradients(call: ast.Call, scope: Scope) -> bool:
    """Return whether a decorator of the function, a block around the call or a call before it turns gradients off."""
    around = [item.context_expr for n in scope.around(call) if isinstance(n, ast.With) for item in n.items]
    around += getattr(scope.node, "decorator_list", [])
    around += [each for each in scope.calls if flow.called_name(each) == "set_grad_enabled"]
    names = {scope.dotted(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2] for each in around}
    return not names.isdisjoint(_NO_GRADIENT)


@declare(
    "KL152",
    "deprecated",
    WARNING,
    needs=(" ".join(name.rpartition(".")[2] for name in (*_RENAMED, *_REPLACED)),),
    summary="A function that PyTorch has deprecated or removed",
    why="It warns, or is gone in the current version. The message names what took its place.",
    bad="""
    import torch

    def outer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ger(a, b)
    """,
    good="""
    import torch

    def outer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.outer(a, b)
    """,
)
def deprecated(scope: Scope) -> Iterator[Hit]:
    for call in scope.calls:
        dotted = scope.dotted(call.func)
        if dotted in _RENAMED:
            new_name = scope.names.spelled(_RENAMED[dotted])
            yield hit(scope, call.func, f"deprecated: use `{_RENAMED[dotted]}`", rewrite(scope, call.func, new_name))
        elif dotted in _REPLACED:
            yield hit(scope, call.func, f"deprecated: use {_REPLACED[dotted]}")


@declare(
    "KL154",
    "missing-super-init",
    ERROR,
    needs=("__init__",),
    summary="A module's `__init__` does not call `super().__init__()`",
    why="Without it the first module or parameter that is assigned raises AttributeError.",
    bad="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(4, 4)
    """,
    good="""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
    """,
)
def missing_super_init(scope: Scope) -> Iterator[Hit]:
    if not _is_init(scope) or _calls_base_init(scope):
        return
    for statement in scope.statements:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"))], value=ast.Call(func=function) as value
            ) if scope.dotted(function).startswith("torch.nn."):
                yield hit(scope, value, "`super().__init__()` must come first: this line raises AttributeError")
                return


@declare(
    "KL155",
    "modules-in-list",
    WARNING,
    needs=("__init__", "["),
    summary="Modules in a plain Python list are not part of the module",
    why="""
    `parameters()`, `.to()`, `state_dict()` and `train()` do not see them: they are not trained, moved or saved. Use
    `nn.ModuleList` or `nn.ModuleDict`.
    """,
    bad="""
    import torch
    from torch import nn

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 4) for _ in range(3)]
    """,
    good="""
    import torch
    from torch import nn

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    """,
)
def modules_in_list(scope: Scope) -> Iterator[Hit]:
    if not _is_init(scope):
        return
    for statement in scope.statements:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                value=(ast.List() | ast.ListComp()) as made,
            ) if _holds_modules(made, scope) and not _is_wrapped_later(name, scope):
                module_list = scope.names.spelled("torch.nn.ModuleList")
                text = f"{module_list}({scope.module.source(made)})"
                message = "the model does not see modules in a list: use `nn.ModuleList`"
                yield hit(scope, made, message, unsafe_rewrite(scope, made, text))


def turns_gradients_off(scope: Scope) -> bool:
    decorators = getattr(scope.node, "decorator_list", [])
    made = [(call.func, call) for call in scope.calls]
    called = [*((each.func if isinstance(each, ast.Call) else each, None) for each in decorators), *made]
    off = [call for function, call in called if scope.dotted(function).rpartition(".")[2] in _NO_GRADIENT]
    return any(call is None or not _is_decorator(call, scope) for call in off)


def _is_decorator(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call decorates a function that the scope defines, and so affects only that function."""
    parent = scope.parents.get(id(call))
    return isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and call in parent.decorator_list


def _is_method(call: ast.Call, name: str) -> bool:
    return _object_of(call, name) is not None


def _object_of(call: ast.Call, method: str) -> ast.expr | None:
    """Return the object whose method a call is; None for another call."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == method else None


def _model_of(call: ast.Call) -> ast.expr:
    """Return the model that a call runs: ``model(x)``, or a method of it that may be a part of its forward."""
    called = call.func
    owner = called.value if isinstance(called, ast.Attribute) else None
    is_part = isinstance(called, ast.Attribute) and called.attr not in _NO_FORWARD
    if is_part and isinstance(owner, ast.Name) and owner.id != "self":
        return owner
    return called


def _evaluated(call: ast.Call) -> ast.expr | None:
    """Return the model of ``model.eval()`` or ``model.train(False)``, a name or an attribute; None for another call."""
    model = _object_of(call, flow.called_name(call)) if flow.mode_set(call) == "eval" else None
    return model if isinstance(model, ast.Name | ast.Attribute) else None


def _is_made_evaluated(name: str, scope: Scope) -> bool:
    """Return whether the name's single value is in evaluation mode: ``model = Net().eval().cuda()``."""
    values = scope.assigned[name]
    return len(values) == 1 and _is_evaluated(values[0], scope)


def _is_evaluated(made: ast.expr, scope: Scope) -> bool:
    """Return whether the module that the expression makes or names is set to evaluation where it is made."""
    node: ast.expr | None = made
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "eval" and not node.args:
            return True
        node = node.func.value if node.func.attr in _KEEPS_MODE else None
    set_ = [ast.unparse(model) for call in scope.calls if (model := _evaluated(call)) is not None]
    return node is not made and isinstance(node, ast.Name) and node.id in set_


def _is_init(scope: Scope) -> bool:
    return scope.owner is not None and getattr(scope.node, "name", "") == "__init__"


def _calls_base_init(scope: Scope) -> bool:
    """Return whether the scope calls `super().__init__()` or `nn.Module.__init__(self)`. Intermediate classes of the
    file are not followed."""
    owner = scope.owner
    if owner is None or any(base != "torch.nn.Module" for base in owner.base_names):
        return True
    return any(_is_method(call, "__init__") for call in scope.calls)


def _holds_modules(made: ast.List | ast.ListComp, scope: Scope) -> bool:
    elements = [made.elt] if isinstance(made, ast.ListComp) else made.elts
    return bool(elements) and all(_is_module_call(element, scope) for element in elements)


def _is_module_call(node: ast.expr, scope: Scope) -> bool:
    if not isinstance(node, ast.Call):
        return False
    dotted = scope.dotted(node.func)
    is_layer = dotted.startswith("torch.nn.") and dotted.count(".") == 2 and dotted.rpartition(".")[2] != "Parameter"
    return dotted in scope.names.classes or (is_layer and dotted.rpartition(".")[2][:1].isupper())


def _is_wrapped_later(name: str, scope: Scope) -> bool:
    """Return whether later code registers the layers: ``nn.Sequential(*self.layers)`` or similar."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == name
        for call in scope.calls
        for argument in call.args
        for node in [argument.value if isinstance(argument, ast.Starred) else argument]
    )
