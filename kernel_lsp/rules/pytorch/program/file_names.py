"""Resolve the names of a file: ``F.softmax`` -> ``torch.nn.functional.softmax``."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from kernel_lsp.rules.pytorch.program.parsing import ParsedModule, nodes_of

_MODULE = "torch.nn.Module"
LOSSES_OF_LOGITS = {"CrossEntropyLoss": "cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits"}
"""Loss modules that activate their input, and their functions."""
_ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """An `nn.Module` subclass in the file. `submodules` maps attributes to the modules that `__init__` constructs."""

    node: ast.ClassDef
    methods: dict[str, ast.FunctionDef]
    submodules: dict[str, str]
    tensor_attributes: frozenset[str]
    """Names of parameters and buffers."""
    forward_methods: frozenset[str]
    """`forward` and the methods that it reaches through `self`."""
    returns_tensor: bool
    """True if the annotation of `forward` returns a tensor."""
    base_names: tuple[str, ...]
    activation: str = ""
    """``softmax`` if `forward` returns the result of one, "" for others."""

    @property
    def context(self) -> tuple:
        """Everything that a method can see of its class."""
        submodules = frozenset(self.submodules.items())
        return self.base_names, submodules, self.tensor_attributes, self.forward_methods, self.returns_tensor


@dataclass
class Names:
    """Imports and module classes of one file."""

    imported: dict[str, str] = field(default_factory=dict)
    classes: dict[str, ModuleClass] = field(default_factory=dict)
    tensor_functions: set[str] = field(default_factory=set)
    """Functions of the file that are annotated to return a tensor."""
    made: dict[str, str] = field(default_factory=dict)
    """The names at the file's top level that a call of a class is assigned to, with the class."""
    sets_device: bool = False
    """True if the file sets a device, by `with torch.device(...)` or as a default."""

    @cached_property
    def context(self) -> tuple:
        """Everything that a function can see of its file."""
        classes = frozenset((name, known.returns_tensor) for name, known in self.classes.items())
        models = frozenset(self.activations.items()), frozenset(self.made.items()), self.only_model
        return frozenset(self.imported.items()), classes, frozenset(self.tensor_functions), self.sets_device, models

    @cached_property
    def activations(self) -> dict[str, str]:
        """The module classes whose `forward` returns the result of an activation."""
        return {name: known.activation for name, known in self.classes.items() if known.activation}

    @cached_property
    def only_model(self) -> str | None:
        """The one module class of the file that is no part of another, None where there are several."""
        parts = {made for known in self.classes.values() for made in known.submodules.values()}
        whole = [name for name in self.classes if name not in parts]
        return whole[0] if len(whole) == 1 else None

    @property
    def has_torch(self) -> bool:
        return any(target == "torch" or target.startswith("torch.") for target in self.imported.values())

    def dotted(self, node: ast.expr) -> str:
        """Return the full dotted name that `node` spells, "" for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imported.get(node.id, node.id))
        return ".".join(reversed(parts))

    def spelled(self, dotted: str) -> str:
        """Return the spelling of a name under torch in this file, with its shortest alias."""
        best = dotted
        for alias, target in self.imported.items():
            if dotted == target:
                return alias
            if dotted.startswith(f"{target}."):
                best = min(best, alias + dotted[len(target) :], key=len)
        return best

    def is_tensor_annotation(self, node: ast.expr | None) -> bool:
        """Return whether the annotation is a single tensor, possibly optional."""
        match node:
            case ast.Constant(value=str(text)):
                return text.split(".")[-1].split("[")[0] == "Tensor" or "Tensor | None" in text
            case ast.Name() | ast.Attribute():
                return self.dotted(node).rpartition(".")[2] in ("Tensor", "Parameter", "FloatTensor", "LongTensor")
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                sides = [node for node in (left, right) if not _is_none(node)]
                return all(self.is_tensor_annotation(side) for side in sides)
            case ast.Subscript(value=value, slice=inner):
                if self.dotted(value).rpartition(".")[2] in ("Optional", "Annotated"):
                    return self.is_tensor_annotation(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
                if not isinstance(inner, ast.Tuple) or len(inner.elts) != 2:
                    return False
                return self.is_tensor_annotation(inner.elts[0]) and _is_text(inner.elts[1])
        return False


def read_names(module: ParsedModule) -> Names:
    """Read the imports anywhere in the file, and the classes and functions at its top level."""
    text = module.text
    names = Names(sets_device="set_default_device" in text or "with torch.device" in text)
    for node in module.statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.imported[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    _shorten_known(names.imported)
    if names.has_torch:
        _read_definitions(module, names)
    return names


def functions_of(node: ast.AST) -> dict[str, ast.FunctionDef]:
    """Return the functions that the body of a module or class defines."""
    return {child.name: child for child in getattr(node, "body", ()) if isinstance(child, ast.FunctionDef)}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _shorten_known(imported: dict[str, str]) -> None:
    for alias, target in imported.items():
        if target.startswith("torch.functional."):
            imported[alias] = target.replace("torch.functional.", "torch.", 1)


def _read_definitions(module: ParsedModule, names: Names) -> None:
    for name, function in functions_of(module.tree).items():
        if names.is_tensor_annotation(function.returns):
            names.tensor_functions.add(name)
    for node in module.tree.body:
        match node:
            case ast.ClassDef() if _is_module(node, names):
                names.classes[node.name] = _read_class(node, names, module)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call()):
                names.made[name] = last_layer(node.value, names)


def _is_module(node: ast.ClassDef, names: Names) -> bool:
    for base in node.bases:
        dotted = names.dotted(base)
        if dotted in names.classes or dotted == _MODULE or dotted.endswith("nn.Module"):
            return True
        if dotted.rpartition(".")[2] in ("LightningModule", "PreTrainedModel"):
            return True
        if dotted.startswith("torch.nn.") and dotted.rpartition(".")[2][:1].isupper():
            return "torch.nn.utils" not in dotted
    return False


def _read_class(node: ast.ClassDef, names: Names, module: ParsedModule) -> ModuleClass:
    methods = functions_of(node)
    submodules: dict[str, str] = {}
    tensors: set[str] = set()
    if "__init__" in methods:
        init = methods["__init__"]
        for statement in (*nodes_of(init, ast.Assign), *nodes_of(init, ast.Expr)):
            _read_attribute(statement, names, submodules, tensors)
    forward = methods.get("forward")
    returns_tensor = forward is not None and names.is_tensor_annotation(forward.returns)
    bases = tuple(names.dotted(base) for base in node.bases)
    last = submodules | _last_layers(methods.get("__init__"), names)
    activation = "" if forward is None else _activation_of_results(forward, names, last)
    reached = _reached(methods, module)
    return ModuleClass(node, methods, submodules, frozenset(tensors), reached, returns_tensor, bases, activation)


def last_layer(node: ast.expr, names: Names) -> str:
    """Return the class that a call makes an object of, and the last layer's for a sequence of layers."""
    if not isinstance(node, ast.Call):
        return ""
    constructor = names.dotted(node.func)
    return last_layer(node.args[-1], names) if constructor == "torch.nn.Sequential" and node.args else constructor


def _last_layers(init: ast.FunctionDef | None, names: Names) -> dict[str, str]:
    """Return the last layers of the sequences that `__init__` makes."""
    found: dict[str, str] = {}
    for node in () if init is None else nodes_of(init, ast.Assign):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)], value=ast.Call() as made
            ) if names.dotted(made.func) == "torch.nn.Sequential":
                found[attribute] = last_layer(made, names)
    return found


def activation_of(node: ast.expr, names: Names, submodules: dict[str, str]) -> str:
    """Return ``softmax`` for a call of the function, the method or a module of it, "" for others."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attribute)):
            return activation_of_class(submodules.get(attribute, ""))
        case ast.Call(func=ast.Call(func=made)):
            return activation_of_class(names.dotted(made))
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in _ACTIVATIONS.values():
            dotted = names.dotted(function)
            is_module = dotted.startswith("torch.") or dotted.split(".")[0] in names.imported
            return name if dotted.startswith("torch.") or not is_module else ""
    return ""


def activation_of_class(dotted: str) -> str:
    return _ACTIVATIONS.get(dotted.removeprefix("torch.nn."), "")


def _activation_of_results(forward: ast.FunctionDef, names: Names, submodules: dict[str, str]) -> str:
    """Return the activation that every `return` of a function gives the result of."""
    values: dict[str, ast.expr] = {}
    found: set[str] = set()
    statements: list[ast.stmt] = [*nodes_of(forward, ast.Assign), *nodes_of(forward, ast.Return)]
    for node in sorted(statements, key=lambda node: node.lineno):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
            case ast.Return(value=result):
                last = values.get(result.id) if isinstance(result, ast.Name) else result
                found.add("" if last is None else activation_of(last, names, submodules))
    return found.pop() if len(found) == 1 else ""


def _read_attribute(statement: ast.stmt, names: Names, submodules: dict[str, str], tensors: set[str]) -> None:
    match statement:
        case ast.Assign(
            targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)], value=ast.Call(func=function)
        ):
            constructor = names.dotted(function)
            if constructor == "torch.nn.Parameter" or constructor.endswith("nn.parameter.Parameter"):
                tensors.add(attribute)
            else:
                submodules[attribute] = constructor
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id="self"), attr="register_buffer" | "register_parameter"),
                args=[ast.Constant(value=str(attribute)), *_],
            )
        ):
            tensors.add(attribute)


def _reached(methods: dict[str, ast.FunctionDef], module: ParsedModule) -> frozenset[str]:
    """Return `forward` and the methods that it calls through `self`, transitively. Only methods whose text has
    another method's name are searched for calls."""
    reached: set[str] = set()
    waiting: list[str] = [name for name in ("forward", "__call__") if name in methods]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        text = "\n".join(module.lines[methods[name].lineno - 1 : methods[name].end_lineno])
        others = [other for other in methods if other not in reached]
        if text.isascii() and not any(other in text for other in others):
            continue
        for node in nodes_of(methods[name], ast.Call):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=called)) if called in methods:
                    waiting.append(called)
    return frozenset(reached)
