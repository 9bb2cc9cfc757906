"""Evaluate what a call gives as far as text says it: literals, constants of this file and of imported ones, fields of
configurations, parameters of a factory function."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernel_lsp.source.python_file import FunctionNode, parameter_names

MAX_STEPS = 12
"""Maximum names, imports and operators between an argument and its literal."""
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Module:
    """A parsed file. `imported` returns the module of an import, by its name and level; `callers` has the calls of a
    function of this file in the workspace."""

    tree: ast.Module
    imported: Callable[[str, int], Module | None]
    callers: Callable[[str], Iterable[ast.Call]]


@dataclass(frozen=True)
class Place:
    """The code that an expression stands in: a module, and the function, if any."""

    module: Module
    function: FunctionNode | None = None


def literal_of(node: ast.expr, place: Place, depth: int = 0) -> ast.expr | None:
    """Return the literal that an expression evaluates to; None where the text does not determine it."""
    if depth > MAX_STEPS:
        return None
    match node:
        case ast.Name(id=name):
            found = _definition(name, place)
            return None if found is None else literal_of(*found, depth + 1)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            module = _module_named(owner, place.module)
            if module is not None:
                return literal_of(ast.Name(name), Place(module), depth + 1)
            found = _field(owner, name, place)
            return None if found is None else literal_of(*found, depth + 1)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _computed(literal_of(left, place, depth + 1), sign, literal_of(right, place, depth + 1))
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return None
    return node


def _computed(left: ast.expr | None, sign: ast.operator, right: ast.expr | None) -> ast.expr | None:
    match left, right:
        case ast.Constant(value=int(one)), ast.Constant(value=int(two)) if two or not isinstance(sign, ast.FloorDiv):
            return ast.Constant(_OPERATORS[type(sign)](one, two))
    return None


Found = tuple[ast.expr, Place]


def _definition(name: str, place: Place) -> Found | None:
    """Return the value of a name: a local one, what a factory is given, or a constant of a file."""
    if place.function is not None:
        local = _assigned(name, place.function)
        if len(local) == 1:
            return local[0], place
        if local or name in parameter_names(place.function):
            return None if local else _given(name, place.function, place.module)
    values = _assigned(name, place.module.tree, is_deep=False)
    if values:
        return (values[0], Place(place.module)) if len(values) == 1 else None
    source = _import_of(name, place.module)
    return None if source is None else (ast.Name(source[1]), Place(source[0]))


def _assigned(name: str, inside: ast.AST, is_deep: bool = True) -> list[ast.expr]:
    nodes = ast.walk(inside) if is_deep else iter(getattr(inside, "body", ()))
    found: list[ast.expr] = []
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=said)], value=value)
                | ast.AnnAssign(target=ast.Name(id=said), value=ast.expr() as value)
            ) if said == name:
                found.append(value)
    return found


def _given(name: str, function: FunctionNode, module: Module) -> Found | None:
    """Return what the first call of a factory gives for a parameter, or else its default."""
    own = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    for call in own:
        if isinstance(call.func, ast.Name) and call.func.id == function.name:
            value = _argument(name, names, call)
            if value is not None:
                return value, Place(module)
    for call in module.callers(function.name):  # what they give is a literal
        value = _argument(name, names, call)
        if value is not None:
            return value, Place(module)
    default = defaults_of(function).get(name)
    return None if default is None else (default, Place(module))


def _argument(name: str, names: list[str], call: ast.Call) -> ast.expr | None:
    named = {each.arg: each.value for each in call.keywords if each.arg}
    return (dict(zip(names, call.args, strict=False)) | named).get(name)


def defaults_of(function: FunctionNode) -> dict[str, ast.expr]:
    """Return the defaults of a function's parameters by name."""
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    found = dict(zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True))
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return found | {each.arg: value for each, value in pairs if value is not None}


def _import_of(name: str, module: Module) -> tuple[Module, str] | None:
    """Return the module that a name is imported from, and its name there."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    source = module.imported(node.module or "", node.level)
                    return None if source is None else (source, alias.name)
    return None


def _module_named(name: str, module: Module) -> Module | None:
    for node in ast.walk(module.tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if name == (alias.asname or alias.name):
                if isinstance(node, ast.Import):
                    return module.imported(alias.name, 0)
                inside = (
                    f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) and node.module else alias.name
                )
                return module.imported(inside, node.level if isinstance(node, ast.ImportFrom) else 0)
    return None


def _field(owner: str, name: str, place: Place) -> Found | None:
    """Return the value of ``Config.width`` or ``cfg.width``: what the object was made with, or the class's default."""
    made = _definition(owner, place)
    note = _annotation(owner, place.function)
    called = owner if made is None else ""
    while made is not None and isinstance(made[0], ast.Name):  # an object of another file
        owner, place = made[0].id, made[1]
        made, called = _definition(owner, place), owner
    if made is not None and isinstance(made[0], ast.Call) and isinstance(made[0].func, ast.Name):
        place, called = made[1], made[0].func.id
        given = {each.arg: each.value for each in made[0].keywords if each.arg}
        if name in given:
            return given[name], place
    found = _class(note or called, place.module)
    fields = [] if found is None else _assigned(name, found[0], is_deep=False)
    return (fields[0], Place(found[1])) if found is not None and len(fields) == 1 else None


def _annotation(name: str, function: FunctionNode | None) -> str:
    every = () if function is None else (*function.args.args, *function.args.kwonlyargs)
    note = next((each.annotation for each in every if each.arg == name), None)
    return note.id if isinstance(note, ast.Name) else ""


def _class(name: str, module: Module, depth: int = 0) -> tuple[ast.ClassDef, Module] | None:
    found = next((n for n in module.tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)
    if found is not None:
        return found, module
    source = _import_of(name, module) if depth < MAX_STEPS else None
    return None if source is None else _class(source[1], source[0], depth + 1)
