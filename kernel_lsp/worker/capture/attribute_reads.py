"""Find the names that a module's code can read: its method, and what that calls, in whatever file. A plain attribute
of another name is no setting of the kernels.

Calls are followed by name: a method counts as called as soon as code that runs names it, whatever the object. Code that
reads attributes by computed names can read all of them.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import operator
import os
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from ..failure import is_user_file
from ..shipped.operator_settings import cell_contents, slots_of
from .load import Callee

NOT_USERS = ("torch", "numpy", "builtins")
"""Packages whose code names no attribute of the user's, beside the standard library."""
RUNTIME = "_kernel_runtime_"
"""Beginning of the names of modules that operators share: what they read is no setting of the code."""
INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages: functions that the user's code names are read there, and not followed."""
CALLED_BY_TORCH = ("forward", "backward", "setup_context", "__call__")
"""Methods that torch calls for the user's code."""
HOOKS = tuple(name for name in vars(torch.nn.Module()) if name.endswith("_hooks"))
"""Attributes of every module whose functions torch calls."""
CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
NEVER_CALLED = frozenset(
    "__init_subclass__ __class_getitem__ __repr__ __str__ __del__ __reduce__ __reduce_ex__ __getstate__ __setstate__ "
    "__getnewargs__ __deepcopy__ __copy__ __sizeof__ __dir__".split()
)
"""Special methods that no computation calls implicitly."""
BY_TEXT = frozenset(["getattr", "hasattr", "attrgetter", "methodcaller"])
"""Functions that read an attribute whose name is an argument."""
READ_ALL = frozenset(
    "vars __dict__ eval exec __getattr__ __getattribute__ asdict astuple fields getmembers dir __getstate__".split()
)
"""Names whose use can read every attribute."""
MAPPED = ("__getattribute__", "__getattr__")
"""Methods that may map the names of attributes to others."""
OF_KEYS = frozenset(["get", "pop", "setdefault"])
"""Methods of a dictionary that take a key which may be absent."""
LOADS = frozenset("LOAD_ATTR LOAD_METHOD LOAD_GLOBAL LOAD_NAME LOAD_SUPER_ATTR LOAD_SUPER_METHOD IMPORT_FROM".split())
WRAPPED = ("__wrapped__", "_torchdynamo_orig_callable")
WRAPPERS = (
    *(property, classmethod, staticmethod, functools.partial, functools.partialmethod, functools.cached_property),
    type(functools.lru_cache(len)),
)
GENERATED = ("<string>", "<attrs")
"""Beginnings of the file names of methods that `dataclasses` and `attrs` write."""
MAX_DEPTH = 4
"""Maximum objects in each other below an attribute of a module that are followed, stated or compared."""
CONTAINERS = (list, tuple, set, frozenset, dict)
GETTERS = (operator.attrgetter, operator.methodcaller)
MAX_ENTRIES = 10_000
"""Maximum entries of a container that are followed: longer ones are data."""
MAX_FUNCTIONS = 4000
"""Maximum functions that are followed; beyond, every attribute counts as read."""


OWN_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
"""Attributes of every module."""


def named_parts(owner: Any) -> list[tuple[str, Any]]:
    """Return a module and its submodules by path; any other object with attributes alone; nothing for a function."""
    if isinstance(owner, torch.nn.Module):
        return [*owner.named_modules()]
    return [("", owner)] if hasattr(owner, "__dict__") else []


def owner_of(callee: Callee) -> Any:
    """Return the module behind a call, or the object whose bound method is called; None for a function."""
    return callee.module if callee.module is not None else getattr(callee.call, "__self__", None)


class NamesRead:
    """A set of names; it contains every name where the code does not tell which ones it reads. `optional` are
    attributes that the code also runs without, ``getattr(self, "scale", 1.0)``, and `keys` such keys."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.optional: set[str] = set()
        self.keys: set[str] = set()
        self.is_decided = True

    def __contains__(self, name: object) -> bool:
        return not self.is_decided or name in self.names


def names_read(parts: list[Any], method: str) -> NamesRead:
    """Return the names that a call of `method` of the first part can read; `parts` are it and its submodules."""
    reader = _Reader(parts)
    for part in parts:
        reader.offer_class(type(part), is_module=isinstance(part, torch.nn.Module))
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                reader.offer_held(name, value)
    for name in (method, *CALLED_BY_TORCH, *HOOKS):
        reader.read(name)
    reader.run()
    return reader.found


class _Reader:
    """Follows code. Members of classes, and what attributes hold, wait under their names until code that runs has
    these."""

    def __init__(self, parts: list[Any]) -> None:
        self.found = NamesRead()
        self._packages = {_package(kind.__module__) for part in parts for kind in type(part).__mro__}
        self._waiting: dict[str, list[Any]] = {}
        self._held: dict[str, list[Any]] = {}
        self._todo: list[types.FunctionType] = []
        self._seen: dict[int, Any] = {}

    def run(self) -> None:
        """Read the functions found so far, and those that they lead to."""
        n_read = 0
        while self._todo and self.found.is_decided:
            self._read_code(self._todo.pop())
            n_read += 1
            self.found.is_decided &= n_read < MAX_FUNCTIONS

    def read(self, name: str) -> None:
        """Note a name, and follow the members of this name."""
        if name not in self.found.names:
            self.found.names.add(name)
            self.found.is_decided &= name not in READ_ALL
            for value in self._waiting.pop(name, ()):
                self.follow(value)
            for value in self._held.pop(name, ()):
                self.follow_held(value)

    def offer_class(self, kind: type, *, is_module: bool = False) -> None:
        """Offer what a class and its bases define, torch's bases of a module too, as they read its attributes."""
        if self._is_new(kind):
            has_own = is_module and self._is_users(kind.__module__)
            for base in kind.__mro__:
                if self._is_users(base.__module__) or (has_own and issubclass(base, torch.nn.Module)):
                    self._offer_members(base)

    def _offer_members(self, kind: type) -> None:
        if kind is torch.nn.Module:
            return
        for name, value in vars(kind).items():
            is_special = name.startswith("__") and name.endswith("__")
            if not is_special:
                self._offer(name, value)
            elif name not in (*NEVER_CALLED, *CONSTRUCTORS) and not _is_generated(value):
                self.follow(value)

    def _offer(self, name: str, value: Any) -> None:
        if name in self.found.names:
            self.follow(value)
        else:
            self._waiting.setdefault(name, []).append(value)

    def offer_held(self, name: str, value: Any) -> None:
        """Follow what an attribute of a part holds, as soon as code that runs has its name: a configuration that only
        the constructor reads is no setting."""
        if name in self.found.names:
            self.follow_held(value)
        else:
            self._held.setdefault(name, []).append(value)

    def follow_held(self, value: Any, depth: int = MAX_DEPTH) -> None:
        """Follow the functions and the classes of what an attribute holds."""
        if not depth or isinstance(value, (torch.Tensor, torch.nn.Module)):
            return
        if isinstance(value, CONTAINERS):
            if self._is_new(value):
                for each in islice(value.values() if isinstance(value, dict) else value, MAX_ENTRIES):
                    self.follow_held(each, depth - 1)
        elif isinstance(value, (type, types.ModuleType, *GETTERS)) or _functions_in(value):
            self.follow(value)
        elif (hasattr(value, "__dict__") or slots_of(value)) and self._is_new(value):
            self.offer_class(type(value))
            for each in {**slots_of(value), **getattr(value, "__dict__", {})}.values():
                self.follow_held(each, depth - 1)

    def follow(self, value: Any) -> None:
        """Follow what a name stands for: a function, a class that may be constructed, a module, an object."""
        if isinstance(value, types.ModuleType):
            if (self._is_users(value.__name__) or is_installed(value.__name__)) and self._is_new(value):
                for name, member in vars(value).items():
                    self._offer(name, member)
        elif isinstance(value, type):
            self.offer_class(value)
            for base in value.__mro__ if self._is_users(value.__module__) else ():
                for name in CONSTRUCTORS:
                    self.follow(vars(base).get(name))
        elif functions := _functions_in(value):
            for function in functions:
                if self._is_new(function):
                    self._todo.append(function)
        elif isinstance(value, GETTERS):
            for path in value.__reduce__()[1]:
                for name in str(path).split("."):
                    self.read(name)
        elif isinstance(value, CONTAINERS) or (
            not isinstance(value, torch.Tensor) and self._is_users(type(value).__module__)
        ):
            self.follow_held(value)

    def _read_code(self, function: types.FunctionType) -> None:
        for cell in function.__closure__ or ():
            self.follow(cell_contents(cell))
        for value in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            self.follow(value)
        space = function.__globals__
        file = str(space.get("__name__"))
        is_followed = self._is_users(file)
        if not is_followed and not file.startswith("torch.nn.modules.") and not is_installed(file):
            return
        if is_followed:
            attributes, keys = _optional_names(function.__code__)
            self.found.optional |= attributes
            self.found.keys |= keys
        for code in _codes(function.__code__):
            names = _loaded(code)
            self.found.is_decided &= not (names & BY_TEXT and _computes_names(code))
            for name in sorted(names):  # what is found before the end is the same in each process
                self.read(name)
                if is_followed and name in space:
                    self.follow(space[name])
            for name in _imported(code):
                self.follow(_module_of(name, space))

    def _is_users(self, module: str) -> bool:
        """Return True for a package of one of the module's classes, and for files that are not installed."""
        package = _package(module)
        if package in NOT_USERS or module.rpartition(".")[2].startswith(RUNTIME):
            return False
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            return package not in sys.builtin_module_names
        return package in self._packages or is_user_file(file)

    def _is_new(self, value: Any) -> bool:
        """Note an object, which is kept so that its identity stays its own."""
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        return True


def is_installed(module: str) -> bool:
    """Return True for packages that are neither the user's nor torch's, whose functions may read attributes of a module
    that they are given."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return _package(module) not in NOT_USERS and any(f"{os.sep}{name}{os.sep}" in file for name in INSTALLED)


def computed_attributes(value: Any, read: NamesRead, seen: frozenset[str] | None = None) -> dict[str, Any]:
    """Return what an object of an installed class computes for names that are `read`, or `seen` read: its properties,
    and the names that its `__getattribute__` or `__getattr__` maps to others. That code is not followed: its values
    are compared."""
    if seen is None and not read.is_decided:
        return {}
    known = read.names if seen is None else seen
    bases = [base for base in type(value).__mro__ if is_installed(base.__module__)]
    names = {n for base in bases for n, each in vars(base).items() if isinstance(each, property) and n in known}
    if any(name in vars(base) for base in bases for name in MAPPED):
        names |= {name for name in known if name.isidentifier() and not name.startswith("__")}
    found = {}
    for name in sorted(names):
        with contextlib.suppress(Exception):  # a property of any package may raise anything
            found[name] = getattr(value, name)
    return found


def _package(module: str) -> str:
    return str(module).partition(".")[0]


def _functions_in(value: Any) -> list[types.FunctionType]:
    """Return the functions of Python behind a callable: its own, what it wraps, and what is bound to it."""
    if isinstance(value, types.MethodType):
        return _functions_in(value.__func__)
    inner = [vars(value).get(name) for name in WRAPPED] if isinstance(value, types.FunctionType) else []
    if isinstance(value, WRAPPERS):
        inner += [getattr(value, name, None) for name in ("fget", "__func__", "func", "__wrapped__")]
        inner += [*getattr(value, "args", ()), *getattr(value, "keywords", {}).values()]
    found = [value] if isinstance(value, types.FunctionType) else []
    return found + [function for each in inner if each is not value for function in _functions_in(each)]


def _is_generated(member: Any) -> bool:
    """Return True for a method that a dataclass writes: it reads every field."""
    return any(function.__code__.co_filename.startswith(GENERATED) for function in _functions_in(member))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _loaded(code: types.CodeType) -> set[str]:
    """Return the names that a code object reads, without those that it only assigns. ``getattr(self, "_gain")`` has a
    name as text."""
    names = {str(each.argval) for each in dis.get_instructions(code) if each.opname in LOADS}
    constants = [each for value in code.co_consts for each in (value if isinstance(value, tuple) else (value,))]
    return names.union(*(value.split(".") for value in constants if isinstance(value, str)))


def _imported(code: types.CodeType) -> list[str]:
    return [str(each.argval) for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]


def _module_of(name: str, space: Mapping[str, Any]) -> types.ModuleType | None:
    """Return an imported module by its absolute name, or by one that is relative to a package around the file."""
    packages = str(space.get("__package__") or "").split(".")
    names = [".".join([*packages[:n], name]).strip(".") for n in range(len(packages), -1, -1)]
    return next((sys.modules[each] for each in names if each in sys.modules), None)


def _optional_names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the constant names that code asks for and runs without: attributes, ``getattr(self, "scale", 1.0)``, and
    keys, ``config.get("scale")`` or ``"scale" in config``. Without the source, every text of the code."""
    codes = [*_codes(code)]
    texts = {each for one in codes for each in one.co_consts if isinstance(each, str) and each.isidentifier()}
    if not texts:
        return set(), set()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return texts, texts
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    attributes = [node.args[1:2] for node in calls if _name_of(node.func) in BY_TEXT]
    keys = [node.args[:1] for node in calls if _name_of(node.func) in OF_KEYS]
    keys += [[node.left] for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    return _texts_of(attributes), _texts_of(keys)


def _texts_of(arguments: list[list[ast.expr]]) -> set[str]:
    nodes = [node for each in arguments for node in each if isinstance(node, ast.Constant)]
    return {node.value for node in nodes if isinstance(node.value, str)}


def _computes_names(code: types.CodeType) -> bool:
    """Return True unless each attribute that the code reads by text has a constant name."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return True
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name_of(node.func) in BY_TEXT]
    places = {"getattr": slice(1, 2), "hasattr": slice(1, 2), "methodcaller": slice(1)}
    texts = [node.args[places.get(_name_of(node.func), slice(None))] for node in calls]
    n_constant = sum(bool(text) and all(_is_text(each) for each in text) for text in texts)
    return n_constant < sum(_name_of(node) in BY_TEXT for node in ast.walk(tree))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _name_of(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))
