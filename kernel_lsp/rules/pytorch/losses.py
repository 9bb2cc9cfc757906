"""Find what a loss gets: an activation that it applies by itself, and the number of classes of its logits."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.rules.pytorch.cost import MAX_STEPS, value_above
from kernel_lsp.rules.pytorch.program import flow
from kernel_lsp.rules.pytorch.program.file_names import LOSSES_OF_LOGITS, activation_of, activation_of_class, last_layer
from kernel_lsp.rules.pytorch.program.parsing import nodes_in, nodes_of
from kernel_lsp.rules.pytorch.program.scopes import Scope, keyword

Activated = tuple[str, str]
"""An activation, and the module of the file that applies it (empty for a call)."""


def loss_name(call: ast.Call, scope: Scope) -> str:
    """Return ``cross_entropy`` for `F.cross_entropy`, and for a call of an `nn.CrossEntropyLoss`; else ""."""
    name = scope.function_name(call)
    if name:
        return name if name in ("binary_cross_entropy", *LOSSES_OF_LOGITS.values()) else ""
    return LOSSES_OF_LOGITS.get(_constructor(call.func, scope).rpartition(".")[2], "")


def activation_before(node: ast.expr, scope: Scope) -> Activated:
    """Return the activation whose result the expression is."""
    made = scope.definition(node)
    if not isinstance(made, ast.Call):
        return "", ""
    name = scope.function_name(made) or activation_of(made, scope.names, scope.owner.submodules if scope.owner else {})
    if name:
        return name, ""
    constructor = _constructor(made.func, scope)
    is_given = isinstance(made.func, ast.Name) and made.func.id in scope.parameters
    if is_given and not constructor:
        constructor = scope.names.only_model or ""
    activation = scope.names.activations.get(constructor, "")
    return (activation, constructor) if activation else (activation_of_class(constructor), "")


def is_upcast_head(logits: ast.expr, scope: Scope) -> bool:
    """Return whether the logits are a language model's, cast to f32 as a whole."""
    is_upcast, node = False, logits
    for _ in range(MAX_STEPS):
        node = value_above(node, scope)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if "lm_head" in node.func.attr or "vocab" in node.func.attr:
            return is_upcast
        is_upcast = is_upcast or node.func.attr == "float"
        node = node.func.value
    return False


def logits_of(call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return what a `log_softmax` is computed of, also as a method of a value of unknown type."""
    if scope.function_name(call) == "log_softmax":
        return scope.operand(call)
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "log_softmax"
    return (
        call.func.value
        if is_method and isinstance(call.func, ast.Attribute) and not scope.dotted(call.func).startswith("torch.")
        else None
    )


def is_gathered(call: ast.Call, scope: Scope) -> bool:
    """Return whether single elements of the result are read alone: ``table.gather(-1, labels)``."""
    parent = scope.parents.get(id(call))
    names = {t.id for t in parent.targets if isinstance(t, ast.Name)} if isinstance(parent, ast.Assign) else set()
    for each in scope.calls:
        is_method = isinstance(each.func, ast.Attribute) and each.func.attr in ("gather", "take_along_dim")
        operand = scope.operand(each) if is_method else None
        if is_method and operand is None and isinstance(each.func, ast.Attribute):
            operand = each.func.value
        if operand is call or (isinstance(operand, ast.Name) and operand.id in names):
            return True
    return False


def is_of_language_model(logits: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Return whether the logits are computed by a language model's head, which a caller may give, or are those of a
    pretrained one: ``policy.lm_head(hidden)`` or ``model(ids).logits``."""
    for each, where in flow.origins(logits, scope) if depth < MAX_STEPS else ():
        match each:
            case ast.Attribute(attr="logits"):
                found = "CausalLM" in scope.module.text
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _KEEPS_CLASSES:
                found = is_of_language_model(inner, where, depth + 1)
            case ast.Call(func=function):
                heads = [function, *(made for made, _ in flow.origins(function, where))]
                found = any(isinstance(head, ast.Attribute) and "lm_head" in head.attr for head in heads)
            case ast.Subscript(value=inner) | ast.BinOp(left=inner):
                found = is_of_language_model(inner, where, depth + 1)
            case _:
                found = False
        if found:
            return True
    return False


_KEEPS_CLASSES = ("float", "to", "view", "reshape", "flatten", "div", "contiguous", "masked_fill")


def is_upcast_of_logits(call: ast.Call, scope: Scope) -> bool:
    """Return whether the call's operand is made of ``logits.float()``."""
    operand = scope.operand(call)
    for node in nodes_in(operand) if operand is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="float")) if "logit" in name:
                return True
    return False


def vocabulary_of_file(scope: Scope) -> int:
    """Return the largest number that the file names a vocabulary, or that a linear layer has outputs."""
    numbers = [
        node.value.value
        for node in nodes_of(scope.module.tree, ast.Assign)
        if isinstance(node.value, ast.Constant) and type(node.value.value) is int
        if any("vocab" in ast.unparse(target).lower() for target in node.targets)
    ]
    return max(numbers, default=0)


def classes_of_view(logits: ast.expr, scope: Scope) -> int:
    """Return the last size of ``logits.view(-1, VOCABULARY)``, a number or a name of the file; 0 if it is unknown."""
    match scope.definition(logits):
        case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[_, last]):
            return largest_number(last) or _number_of_file(last, scope)
    return 0


def head_size(logits: ast.expr, scope: Scope, depth: int = 0) -> int:
    """Return the number of outputs of the layer that computes the logits; 0 if the file does not say it."""
    found = flow.origins(logits, scope) if depth < MAX_STEPS else []
    sizes = [_head_size(each, where, depth + 1) for each, where in found]
    given = (value for each, where in found for value in _given_to_module(each, where))
    return max((*sizes, *(head_size(each, where, depth + 1) for each, where in given)), default=0)


def _given_to_module(node: ast.expr, scope: Scope) -> Iterator[flow.Value]:
    """Yield what calls of a module of the file, by the names that hold it, give for a parameter of its forward."""
    function = scope.function
    is_given = isinstance(node, ast.Name) and node.id in scope.parameters and node.id not in scope.assigned
    if function is None or function.owner is None or function.name != "forward" or not is_given:
        return
    held: set[str] = set()
    for each in nodes_of(scope.module.tree, ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=ast.Call(func=made)):
                held |= {name} if isinstance(made, ast.Name) and made.id == function.owner.name else set()
    callers = [scope.program.scope_of(each) for name in held for each in scope.functions.calling.get(name, [])]
    for caller, call in ((each, call) for each in callers for call in each.calls):
        if flow.called_name(call) in held and function in flow.callees(call, caller):
            given = flow.bound(call, function)
            yield from ((value, caller) for taker, value in given if isinstance(node, ast.Name) and taker == node.id)


def _head_size(node: ast.expr, scope: Scope, depth: int) -> int:
    match node:
        case (
            ast.BinOp(op=ast.MatMult(), right=weight)
            | ast.Call(func=ast.Attribute(attr="matmul" | "linear"), args=[_, weight, *_])
        ):
            return _rows_of(weight, scope) or _rows_behind(weight, scope)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attribute)):
            return _outputs_of(attribute, scope)
        case ast.Call(func=ast.Attribute(value=owner)) | ast.Subscript(value=owner):
            return head_size(owner, scope, depth)
    return 0


def outputs_of_layer(logits: ast.expr, scope: Scope) -> int:
    """Return the outputs of a layer that no module owns: ``head(h)`` or ``model.head(h)``, of a name in the file."""
    node = logits
    for _ in range(MAX_STEPS):
        node = value_above(node, scope)
        while isinstance(node, ast.Subscript):  # shifted logits: ``logits[:, :-1]``
            node = value_above(node.value, scope)
        if not isinstance(node, ast.Call):
            return 0
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        sizes = []
        for each in nodes_of(scope.module.tree, ast.Assign):
            match each:
                case ast.Assign(targets=[ast.Name(id=said) | ast.Attribute(attr=said)], value=ast.Call() as made):
                    if said == name and scope.dotted(made.func).endswith("nn.Linear") and len(made.args) > 1:
                        sizes.append(largest_number(made.args[1]) or _number_of_file(made.args[1], scope))
        if sizes:
            return min(sizes)
        if not isinstance(node.func, ast.Attribute):
            return 0
        node = node.func.value
    return 0


def _number_of_file(node: ast.expr, scope: Scope) -> int:
    """Return the value of a name that the file, or this function, sets to a number, or of a field of a class."""
    if isinstance(node, ast.Attribute):
        return _value_of_field(node.attr, scope)
    value = scope.definition(node)
    values = _values_of_file(node.id, scope) if isinstance(value, ast.Name) and isinstance(node, ast.Name) else [value]
    return largest_number(*values[:1])


def _rows_of(weight: ast.expr, scope: Scope) -> int:
    """Return the rows of an embedding whose weight is the head: ``h @ self.embed.weight.T``."""
    tables = {ast.unparse(n.value) for n in nodes_of(weight, ast.Attribute) if n.attr == "weight"}
    init = None if scope.owner is None else scope.owner.methods.get("__init__")
    for node in nodes_in(init) if init is not None else ():
        match node:
            case ast.Assign(targets=[ast.Attribute() as target], value=ast.Call(args=[rows, *_]) as made):
                if ast.unparse(target) in tables and scope.dotted(made.func).endswith("nn.Embedding") and init:
                    return _number(rows, init, scope)
    return 0


def _rows_behind(weight: ast.expr, scope: Scope) -> int:
    """Return the rows of the weight of an embedding or layer, which other classes of the file may have made."""
    sizes = [0]
    for found, where in flow.origins(_untransposed(weight), scope):
        each = _untransposed(found)
        owners = flow.origins(each.value, where) if isinstance(each, ast.Attribute) and each.attr == "weight" else []
        for made, there in owners:
            kind = there.dotted(made.func).rpartition(".")[2] if isinstance(made, ast.Call) else ""
            place = {"Embedding": 0, "Linear": 1}.get(kind)
            if place is not None and isinstance(made, ast.Call) and len(made.args) > place:
                sizes.append(_number_of_file(made.args[place], there))
    return max(sizes)


def _untransposed(node: ast.expr) -> ast.expr:
    """Return w of ``w.T`` or ``w.t()``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) | ast.Attribute(value=inner, attr=attr) if (
                attr in _TRANSPOSES
            ):
                node = inner
            case _:
                return node


_TRANSPOSES = ("T", "t", "mT", "transpose", "detach", "to")


def _outputs_of(attribute: str, scope: Scope) -> int:
    """Return the outputs of ``self.head = nn.Linear(dim, vocab_size)``, where they are a number or a default."""
    init = None if scope.owner is None else scope.owner.methods.get("__init__")
    for node in nodes_in(init) if init is not None else ():
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call() as made):
                outputs = made.args[1] if len(made.args) > 1 else keyword(made, "out_features")
                is_head = name == attribute and scope.dotted(made.func).endswith("nn.Linear")
                if is_head and init is not None and outputs is not None:
                    return _number(outputs, init, scope)
    return 0


def _number(node: ast.expr, init: ast.FunctionDef, scope: Scope) -> int:
    """Return the value of a number, of a parameter's default, or of a field's in a class of the file; 0 if unknown."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            parameters = [*init.args.posonlyargs, *init.args.args]
            defaults = init.args.defaults
            known = dict(
                zip([each.arg for each in parameters[len(parameters) - len(defaults) :]], defaults, strict=True)
            )
            values = [known[name]] if name in known else _values_of_file(name, scope)
            if not values and name in {each.arg for each in parameters}:
                values = _given_to_class(name, parameters, scope)
            is_known = bool(values) and (isinstance(values[0], ast.Constant) or name not in ast.unparse(values[0]))
            return _number(values[0], init, scope) if is_known else 0
        case ast.Attribute(attr=name):
            return _value_of_field(name, scope)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _number(left, init, scope) * _number(right, init, scope)
        case ast.BinOp(left=left, op=ast.LShift(), right=ast.Constant(value=int(shift))):
            return _number(left, init, scope) << min(shift, 30)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=_):
            return _number(left, init, scope)
    return 0


def _value_of_field(name: str, scope: Scope) -> int:
    """Return the least number that a class of the file sets a field to; 0 if none does."""
    values = []
    classes = [each for each in scope.module.tree.body if isinstance(each, ast.ClassDef)]
    for field in (field for each in classes for field in each.body):
        match field:
            case (
                ast.AnnAssign(target=ast.Name(id=said), value=ast.Constant(value=int(value)))
                | ast.Assign(targets=[ast.Name(id=said)], value=ast.Constant(value=int(value)))
            ) if said == name:
                values.append(value)
    return min(values, default=0)


def _given_to_class(name: str, parameters: list[ast.arg], scope: Scope) -> list[ast.expr]:
    """Return what the file's calls of the class give for a parameter of its `__init__`."""
    owner = "" if scope.owner is None else scope.owner.node.name
    position = [each.arg for each in parameters].index(name) - 1
    found: list[ast.expr] = []
    for call in nodes_of(scope.module.tree, ast.Call):
        if isinstance(call.func, ast.Name) and call.func.id == owner:
            given = keyword(call, name) or (call.args[position] if 0 <= position < len(call.args) else None)
            found += [] if given is None else [given]
    return found


def _values_of_file(name: str, scope: Scope) -> list[ast.expr]:
    """Return the values that the top level of the file assigns to a name."""
    return [
        node.value
        for node in scope.module.tree.body
        if isinstance(node, ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def largest_number(*nodes: ast.expr) -> int:
    return max(
        (
            part.value
            for node in nodes
            for part in nodes_in(node)
            if isinstance(part, ast.Constant) and type(part.value) is int
        ),
        default=0,
    )


def _constructor(function: ast.expr, scope: Scope) -> str:
    """Return the class whose object is called: of `self.loss`, of a name of this scope or of the file."""
    match function:
        case ast.Call(func=made):
            return scope.dotted(made)
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute) if scope.owner is not None:
            return scope.owner.submodules.get(attribute, "")
        case ast.Name(id=name):
            value = scope.definition(function)
            if isinstance(value, ast.Call):
                return last_layer(value, scope.names)
            return "" if name in scope.parameters or name in scope.assigned else scope.names.made.get(name, "")
    return ""
