"""Resolve the names of a file: ``F.softmax`` -> ``torch.nn.functional.softmax``."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from kernel_lsp.rules.pytorch.parsing import ParsedModule
from kernel_lsp.rules.pytorch.walking import nodes_in

_MODULE = "torch.nn.Module"


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
    sets_device: bool = False
    """True if the file sets a device, by `with torch.device(...)` or as a default."""

    @cached_property
    def context(self) -> tuple:
        """Everything that a function can see of its file."""
        classes = frozenset((name, known.returns_tensor) for name, known in self.classes.items())
        return frozenset(self.imported.items()), classes, frozenset(self.tensor_functions), self.sets_device

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
    for node in _statements(module.tree):
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


# --- below: definitions


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Return all statements, including those inside functions and blocks. Expressions are not visited."""
    found: list[ast.stmt] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        for field_name in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, field_name, ())
            if isinstance(children, list):
                stack += children
                found += [child for child in children if isinstance(child, ast.stmt)]
    return found


def _shorten_known(imported: dict[str, str]) -> None:
    for alias, target in imported.items():
        if target.startswith("torch.functional."):
            imported[alias] = target.replace("torch.functional.", "torch.", 1)


def _read_definitions(module: ParsedModule, names: Names) -> None:
    for name, function in functions_of(module.tree).items():
        if names.is_tensor_annotation(function.returns):
            names.tensor_functions.add(name)
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and _is_module(node, names):
            names.classes[node.name] = _read_class(node, names, module)


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
        for statement in _statements(ast.Module(body=methods["__init__"].body, type_ignores=[])):
            _read_attribute(statement, names, submodules, tensors)
    forward = methods.get("forward")
    returns_tensor = forward is not None and names.is_tensor_annotation(forward.returns)
    bases = tuple(names.dotted(base) for base in node.bases)
    return ModuleClass(node, methods, submodules, frozenset(tensors), _reached(methods, module), returns_tensor, bases)


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
        for node in nodes_in(methods[name]):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=called)) if called in methods:
                    waiting.append(called)
    return frozenset(reached)
