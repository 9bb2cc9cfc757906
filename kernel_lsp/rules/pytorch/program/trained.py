"""Find what exists only in training, such as losses, gradients and loops over epochs, and the functions that run at
each step of a model."""

from __future__ import annotations

import ast
import re

from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.file_names import ModuleClass
from kernel_lsp.rules.pytorch.program.functions import FunctionNode
from kernel_lsp.rules.pytorch.program.kinds import NOT_TENSOR_METHODS
from kernel_lsp.rules.pytorch.program.parsing import ParsedModule, nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, first_line, keyword
from kernel_lsp.rules.rule import words


def item_of_training(call: ast.Call, scope: Scope) -> str:
    """Return ``.item()`` for a call that reads back a value which exists only on a device: a gradient, a loss, or what
    is computed from the result of a model; and ``.cpu()`` where `numpy()` or `tolist()` follows, which only tensors
    have."""
    function = call.func
    if isinstance(function, ast.Name):
        if function.id in ("float", "int", "bool") and len(call.args) == 1:
            return f"{function.id}()" if is_on_device(call.args[0], scope) else ""
        return function.id if function.id == "print" and _shows(call, scope) else ""
    if not isinstance(function, ast.Attribute):
        return ""
    if function.attr == "cpu" and not call.args:
        read = scope.parents.get(id(call))
        is_read = isinstance(read, ast.Attribute) and read.attr in ("numpy", "tolist", "item")
        return ".cpu()" if is_read or is_on_device(function.value, scope) else ""
    if function.attr in ("tolist", "item", "numpy") and not call.args:
        return f".{function.attr}()" if is_on_device(function.value, scope) else ""
    is_logger = function.attr in _LOGGING and not scope.dotted(function).startswith("torch.")
    return f"{function.attr}()" if is_logger and _shows(call, scope) else ""


def is_on_host(node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Return whether the value is computed from one that was copied to the CPU, or made there, or by a model that was
    moved there: ``ranks.cpu().double() < k``."""
    while depth < _MAX_STEPS:
        match node:
            case ast.Call(func=ast.Attribute(attr="cpu")):
                return True
            case ast.Call(func=made) if scope.dotted(made) in _ON_CPU:
                device = keyword(node, "device")
                return not _SETS_DEVICE.search(scope.module.text) if device is None else _is_cpu(device, scope)
            case ast.Call(func=ast.Attribute(value=inner)) if not scope.dotted(node.func).startswith("torch."):
                device = keyword(node, "device") or (node.args[0] if node.args else None)
                if device is not None and _is_cpu(device, scope):
                    return True
                if flow.called_name(node) in ("cuda", "to", "type_as"):
                    return False
                node = inner
            case ast.Compare(left=inner) | ast.BinOp(left=inner) | ast.Subscript(value=inner):
                node = inner
            case ast.Call(func=ast.Name() as called):
                # a model of the CPU, by `model = model.to("cpu")` or by what it is given
                if node.args and is_on_host(node.args[0], scope, depth + 1):
                    return True
                node = called
            case ast.Name():
                found = flow.values(node, scope)
                return bool(found) and all(is_on_host(each, where, depth + 1) for each, where in found)
            case _:
                return False
    return False


def _is_cpu(device: ast.expr, scope: Scope) -> bool:
    """Return whether a device is the CPU: ``"cpu"``, ``torch.device("cpu")``, or a name of one."""
    match device:
        case ast.Constant(value=name):
            return name == "cpu"
        case ast.Call(func=function, args=[first, *_]):
            return scope.dotted(function) == "torch.device" and _is_cpu(first, scope)
        case ast.Name():
            found = flow.values(device, scope)
            return bool(found) and all(not isinstance(e, ast.Name) and _is_cpu(e, where) for e, where in found)
        case _:
            return False


def is_on_device(node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Return whether the value is a tensor that a training or an evaluation computes: a loss, a gradient, the result of
    a model, or what methods, arithmetic and comparisons make of one."""
    if depth > _MAX_STEPS or is_on_host(node, scope):
        return False
    known = scope.on_device.get(id(node))
    if known is None:
        scope.on_device[id(node)] = False  # what depends on itself is no evidence
        known = scope.on_device[id(node)] = _is_on_device(node, scope, depth)
    return known


def _is_made_on_device(name: str, scope: Scope, depth: int) -> bool:
    """Return whether a value of the name is on the device, and none on the host."""
    values = [flow.iterated(value, name, scope) or value for value in scope.assigned.get(name, [])]
    return any(is_on_device(each, scope, depth + 1) for each in values) and not any(map(_is_host, values))


def _is_on_device(node: ast.expr, scope: Scope, depth: int) -> bool:
    match node:
        case ast.Name(id=name):
            return (
                flow.once(scope, ("on device", name), lambda: _is_made_on_device(name, scope, depth), False)
                or _is_followed_to_device(node, scope, depth)
                or name in scope.backward_values
                or _is_term_of_loss(name, scope)
                or _is_loss_of_model(name, scope)
            )
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _ON_HOST | NOT_TENSOR_METHODS:
            return False
        case ast.Call(func=function) if _trains(function, scope) or _is_followed_to_device(node, scope, depth):
            return True
        case ast.Call(func=function) if calls_model(function, scope) or _calls_loss(function, scope):
            return True
        case ast.Dict(values=parts) | ast.Call(func=ast.Name(), args=parts) if _is_record(node, scope):
            return any(is_on_device(each, scope, depth + 1) for each in parts)
        case ast.Call(func=function) if scope.dotted(function).endswith(_NORMS) or _computes(node, scope, depth + 1):
            return True
        case ast.Call(args=[first, *_]) if scope.dotted(node.func).startswith("torch."):
            return is_on_device(first, scope, depth + 1)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)):
            is_count = method in ("eq", "ne") and len(node.args) == 1
            is_read = method in _COUNTS and _is_count_of_equal(inner)
            return is_count or is_read or is_on_device(inner, scope, depth + 1) or scope.is_tensor(inner)
        case ast.Attribute(value=inner, attr=attribute):
            return (
                attribute == "grad"
                or _is_followed_to_device(node, scope, depth)
                or ast.unparse(node) in scope.backward_values
                or (attribute in _RESULTS and is_on_device(inner, scope, depth + 1))
            )
        case ast.Subscript(value=inner):
            return ast.unparse(node) in scope.backward_values or is_on_device(inner, scope, depth + 1)
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=inner):
            return is_on_device(inner, scope, depth + 1)
        case ast.Compare(left=left, comparators=[right], ops=[operator]):
            is_of_values = not isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn)
            return is_of_values and any(is_on_device(side, scope, depth + 1) for side in (left, right))
        case ast.BinOp(left=left, right=right):
            return any(is_on_device(side, scope, depth + 1) for side in (left, right))
    return False


def _is_record(node: ast.expr, scope: Scope) -> bool:
    """Return whether the node makes a dict, a named tuple or an object of a data class."""
    return isinstance(node, ast.Dict) or bool(flow.record_fields(flow.called_name(node), scope))


def _is_followed_to_device(node: ast.expr, scope: Scope, depth: int) -> bool:
    """Return whether what other functions of the file compute or give for a value is on the device."""
    found = [(each, where) for each, where in flow.values(node, scope) if where is not scope or each is not node]
    is_known = any(is_on_device(each, where, depth + 1) for each, where in found)
    return is_known and not any(_is_host(each) for each, _ in found)


def _is_host(node: ast.expr) -> bool:
    """Return whether a name's value is read back or a number of Python's: ``loss = loss.item()``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ON_HOST


def _shows(call: ast.Call, scope: Scope) -> bool:
    """Return whether a text that is printed or logged holds such a value."""
    given = [*call.args, *(each.value for each in call.keywords)]
    shown = [part.value if isinstance(part, ast.FormattedValue) else part for each in given for part in _parts(each)]
    return any(is_on_device(each, scope) for each in shown)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return what an f-string or `format` formats, what a dict holds, or the expression alone."""
    match node:
        case ast.JoinedStr(values=values) | ast.Dict(values=values):
            return list(values)
        case ast.Call(func=ast.Attribute(attr="format"), args=given):
            return list(given)
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod(), right=right):
            return list(right.elts) if isinstance(right, ast.Tuple) else [right]
    return [node]


def holds_steps(loop: ast.stmt, scope: Scope) -> bool:
    """Return whether each iteration is an epoch. An inner loop, also one of a function that it calls, runs the steps,
    and its cost outweighs one synchronization."""
    if flow.IN_LOOP + "backward" in flow.uses(loop, scope):
        return True
    inner = (node for node in nodes_in(loop) if isinstance(node, ast.For | ast.While) and node is not loop)
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("backward", "step")
        for each in inner
        for node in nodes_in(each)
    )


def is_occasional(call: ast.expr, loop: ast.stmt, scope: Scope, may_leave: bool = True) -> bool:
    """Return whether a condition with `%` (every n steps) guards the call, or one whose body may leave the loop."""
    for parent in scope.around(call):
        if parent is loop:
            return False
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And) and _has_remainder(parent.values[0]):
            return True
        if isinstance(parent, ast.If):
            leaves = may_leave and any(isinstance(n, ast.Break | ast.Return | ast.Raise) for n in parent.body)
            if leaves or _has_remainder(parent.test) or _is_full(parent.test, loop):
                return True
    return False


def _is_full(test: ast.expr, loop: ast.stmt) -> bool:
    """Return whether a counter that the loop raises has reached a bound: ``filled == window``."""
    raised = {ast.unparse(each.target) for each in nodes_of(loop, ast.AugAssign)}
    is_bound = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.GtE)
    return is_bound and isinstance(test, ast.Compare) and ast.unparse(test.left) in raised


def _has_remainder(test: ast.expr) -> bool:
    return any(isinstance(n.op, ast.Mod) for n in nodes_of(test, ast.BinOp))


def _is_count_of_equal(node: ast.expr) -> bool:
    """Return whether the node is ``(prediction == label).sum()`` or ``prediction.eq(label).sum()``, whose result has an
    `item` only as a tensor's."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COUNTS:
        node = node.func.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("eq", "ne") and len(node.args) == 1
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)


_COUNTS = ("sum", "mean", "float", "all", "any", "double")
_ON_HOST = words(
    """
    item tolist numpy cpu size stride dim numel __len__ parameters backward shape keys items split startswith endswith
    """
)
_READS = frozenset(("item", "tolist", "numpy", "cpu"))
"""Methods that bring a value to the CPU."""
_RESULTS = ("loss", "logits", "T", "data", "values")
_ON_CPU = frozenset(
    f"torch.{name}"
    for name in words("rand randn randint randperm arange linspace tensor from_numpy zeros ones full empty eye")
)
"""Functions whose result is on the CPU where no device is stated."""
_SETS_DEVICE = re.compile(r"set_default_(?:device|tensor_type)|with torch\.device")
_NORMS = ("clip_grad_norm_", "get_total_norm")
_LOGGING = ("info", "debug", "write", "log", "add_scalar", "set_postfix", "set_postfix_str", "set_description")
"""Methods of loggers and progress bars, which turn their arguments into text."""
_MODELS = ("model", "net", "backbone", "encoder", "decoder")
_PASSES = ("encode", "decode", "forward", "extract", "get_image_features", "get_text_features")
"""Beginnings of methods of a model that run it."""
_LOSSES = ("loss", "criterion", "crit")
_MAX_STEPS = 8


def calls_model(function: ast.expr, scope: Scope) -> bool:
    """Return whether a model is called: a name of one, that no import explains."""
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    is_model = name.endswith(_MODELS) or (name.startswith(_PASSES) and (_root(function) or "").endswith(_MODELS))
    return is_model and _root(function) not in scope.names.imported


def runs_model(loop: ast.stmt, scope: Scope) -> bool:
    """Return whether each iteration calls a model."""
    return any(calls_model(node.func, scope) for node in nodes_of(loop, ast.Call))


def is_for_inference(scope: Scope) -> bool:
    """Return whether gradients are off by a decorator."""
    decorators = [d.func if isinstance(d, ast.Call) else d for d in getattr(scope.node, "decorator_list", [])]
    return any(scope.dotted(each) in ("torch.no_grad", "torch.inference_mode") for each in decorators)


def _trains(function: ast.expr, scope: Scope) -> bool:
    """Return whether the one function of the file with this name does a step and returns values of the device."""
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    found = scope.module.functions_named(name)
    read = {n.attr for n in nodes_of(found[0], ast.Attribute)} if len(found) == 1 else set()
    if "backward" not in read or not read.isdisjoint(_READS):
        return False
    return any("loss" in ast.unparse(n) for n in nodes_of(found[0], ast.Return))


def _computes(call: ast.Call, scope: Scope, depth: int) -> bool:
    """Return whether a function of the file that reads nothing back is given a value of the device."""
    functions = scope.module.functions_named(call.func.id) if isinstance(call.func, ast.Name) else []
    reads = {node.attr for each in functions for node in nodes_of(each, ast.Attribute)}
    return bool(functions) and reads.isdisjoint(_ON_HOST) and any(is_on_device(a, scope, depth) for a in call.args)


def _calls_loss(function: ast.expr, scope: Scope) -> bool:
    """Return whether a loss is called: a name of one, or a function of torch with such a name."""
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    is_loss = any(word in name.lower() for word in _LOSSES) and not name.startswith(("get_", "log_", "print"))
    root = _root(function)
    is_of_torch = scope.dotted(function).startswith("torch.")
    return (is_of_torch and is_loss and name.islower()) or (is_loss and root not in (None, *scope.names.imported))


def _is_term_of_loss(name: str, scope: Scope) -> bool:
    """Return whether the name stands for the mean or sum of a tensor, and a loss is a sum with it: ``a + 0.5 * b``."""
    values = scope.assigned.get(name, ())
    if name in scope.parameters or not any(_is_reduced(value, scope) for value in values):
        return False
    terms = (term for each in scope.backward_values for value in scope.assigned.get(each, ()) for term in _terms(value))
    return name in terms


def _terms(node: ast.expr) -> list[str]:
    """Return the names in a sum of products."""
    if isinstance(node, ast.BinOp):
        return [*_terms(node.left), *_terms(node.right)]
    return [node.id] if isinstance(node, ast.Name) else _terms(node.operand) if isinstance(node, ast.UnaryOp) else []


def _is_reduced(node: ast.expr, scope: Scope) -> bool:
    match node:
        case ast.UnaryOp(operand=inner):
            return _is_reduced(inner, scope)
        case ast.BinOp(left=left, right=right):
            return _is_reduced(left, scope) or _is_reduced(right, scope)
        case ast.Call(func=ast.Attribute(value=inner, attr="mean" | "sum")):
            return scope.dotted(inner).partition(".")[0] not in ("numpy", "statistics", "math")
        case ast.Call(func=function):
            return scope.dotted(function).startswith("torch.nn.functional.")
    return False


def _is_loss_of_model(name: str, scope: Scope) -> bool:
    """Return whether the name contains "loss" and all its values are calls of functions that are not imported."""
    values = scope.assigned.get(name, [])
    if any(map(_is_host, values)):
        return False
    roots = [_root(value.func) for value in values if isinstance(value, ast.Call)]
    called = [value.func.id for value in values if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)]
    own = [function for name_ in called for function in scope.module.functions_named(name_)]
    if any(n.attr in _READS for function in own for n in nodes_of(function, ast.Attribute)):
        return False
    is_local = len(roots) == len(values) > 0 and not any(root in (None, *scope.names.imported) for root in roots)
    return "loss" in name and is_local


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


_NOT_HOT = (
    "__",
    "test",
    "train",
    "eval",
    "main",
    "bench",
    "plot",
    "save",
    "load",
    "collate",
    "preprocess",
    "log_",
    "get_",
)
"""Prefixes of names of functions that a model does not call at each step."""
_TRAINING_METHODS = frozenset(("backward", "zero_grad"))


def may_be_forward(node: FunctionNode | ast.Module, owner: ModuleClass | None, module: ParsedModule) -> bool:
    """Return whether the code may run at each step of a model, as far as is known before it is read."""
    if isinstance(node, ast.Module):
        return False
    if owner is not None:
        return node.name in owner.forward_methods
    return has_pragma(module, node) or not (node.name.startswith(_NOT_HOT) or node.name.endswith("_loop"))


def is_forward(scope: Scope, has_tensor_parameter: bool, returns_tensor: bool) -> bool:
    """Return whether the code runs at each step of a model."""
    node = scope.node
    if isinstance(node, ast.Module) or not may_be_forward(node, scope.owner, scope.module):
        return False
    if scope.owner is not None or has_pragma(scope.module, node):
        return True
    if not has_tensor_parameter:
        return False
    if any(isinstance(c.func, ast.Attribute) and c.func.attr in _TRAINING_METHODS for c in scope.calls):
        return False
    return returns_tensor or scope.names.is_tensor_annotation(node.returns)


def is_hot(scope: Scope) -> bool:
    """Return whether a function that may be part of a model runs at each step, as far as its calls in the file say."""
    if scope.owner is not None or has_pragma(scope.module, scope.node):
        return True
    callers = flow.callers(scope)
    return not callers or any(_is_hot_call(call, caller) for call, caller in callers)


def _is_hot_call(call: ast.Call, caller: Scope) -> bool:
    loop = caller.loop_around(call)
    if caller.is_forward or (loop is not None and (runs_model(loop, caller) or flow.is_step(loop, caller))):
        return True
    return flow.runs_each_step(caller)


def has_pragma(module: ParsedModule, node: FunctionNode | ast.Module) -> bool:
    """Return whether a comment ``# kernel-lsp: x=f32[...]`` precedes the function."""
    first = 0 if isinstance(node, ast.Module) else first_line(node)
    return first >= 2 and module.lines[first - 2].lstrip().startswith("# kernel-lsp:")
