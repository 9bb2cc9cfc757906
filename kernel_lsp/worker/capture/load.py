"""Import the user's file, and find or build the object that a target names."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import ModuleType
from typing import Any, Callable

from ..failure import TargetFailure, raised_by_user, remember_target
from ..host import without_cuda

KERNELBENCH_CLASS = "Model"


@dataclass
class LoadedFile:
    """The user's file after its import."""

    file: str
    module: ModuleType


@dataclass
class Callee:
    """The object to capture. `call` takes the user's inputs. `owner` is the `nn.Module` whose parameters become
    arguments, None for a plain function. `notes` are decisions of the capture. `lifted` is the module whose parameters
    are already among the inputs. `passes_state`: the code itself passes its modules' running statistics. `draws` counts
    the inputs that stand for random tensors of the code."""

    call: Callable[..., Any]
    owner: Any
    notes: list[str] = field(default_factory=list)
    lifted: Any = None
    passes_state: bool = False
    draws: int = 0

    @property
    def module(self) -> Any:
        """Return the `nn.Module` behind the call, None for a plain function."""
        return self.owner if self.owner is not None else self.lifted


def load_file(file: str) -> LoadedFile:
    """Import the file under its own name, from its own folder or the one above it that has the files which it opens.
    Raises TargetFailure."""
    file = os.path.abspath(file)
    if not os.path.isfile(file):
        raise TargetFailure("there is no such file", file=file, next_step="check the path of the target")
    remember_target(file)
    os.chdir(os.path.dirname(file))
    try:
        with without_cuda():
            return LoadedFile(file, _where_files_are(lambda: _import_of_project(file)))
    except BaseException as error:  # any exception of the user's code, exit included, is an answer about that code
        raise raised_by_user(error, "importing the file", file) from None


def find_symbol(loaded: LoadedFile, symbol: str, line: int) -> Any:
    """Return the object of a dotted name in the file. Raises TargetFailure."""
    value: Any = loaded.module
    for part in symbol.split("."):
        if not hasattr(value, part):
            raise TargetFailure(
                f"'{symbol}' does not exist once the file is imported",
                file=loaded.file,
                line=line,
                next_step="check that the name is defined at module level on this machine (not behind an `if`)",
            )
        value = getattr(value, part)
    return value


def resolve(loaded: LoadedFile, source: dict[str, Any]) -> Callee:
    """Return the function, module or bound method that a target names, its module constructed. Raises TargetFailure."""
    kind, symbol = source["kind"], source["symbol"]
    if kind == "kernelbench":
        return _from_module(loaded, source, build_object(loaded, source, symbol or KERNELBENCH_CLASS))
    found = find_symbol(loaded, symbol, source["line"])
    if kind == "method":
        owner_name, method = symbol.rsplit(".", 1)
        owner = build_object(loaded, source, owner_name)
        return Callee(getattr(owner, method), owner if _is_module(owner) else None)
    if _is_module(found):
        return _from_module(loaded, source, found)
    if isinstance(found, type):
        return _from_module(loaded, source, build_object(loaded, source, symbol))
    if not callable(found):
        raise TargetFailure(
            f"'{symbol}' is a {type(found).__name__}, not a function or an nn.Module",
            file=loaded.file,
            line=source["line"],
            next_step="name a function, an nn.Module class or Class.method",
        )
    return Callee(found, None)


def build_object(loaded: LoadedFile, source: dict[str, Any], class_name: str) -> Any:
    """Return an instance of a class, built with the pragma's init arguments, `get_init_inputs()`, or none. Raises
    TargetFailure."""
    found = find_symbol(loaded, class_name, source["line"])
    positional, keywords = _init_arguments(loaded, source)
    try:
        with without_cuda():
            given = {name: _argument(loaded.module, value) for name, value in keywords.items()}
            return _where_files_are(lambda: found(*positional, **given))
    except BaseException as error:  # as in load_file
        raise raised_by_user(
            error,
            f"constructing {class_name}",
            loaded.file,
            line=source["line"],
            next_step="check what get_init_inputs() returns"
            if source.get("has_get_init_inputs")
            else f"say how to construct it above the class: `# kernel-lsp: init: {_init_example(found)}`",
        ) from None


def call_user(function: Callable[..., Any], doing: str, file: str, *positional: Any, **keywords: Any) -> Any:
    """Call one of the user's functions. Raises TargetFailure when it raises."""
    try:
        with without_cuda():
            return _where_files_are(lambda: function(*positional, **keywords))
    except BaseException as error:  # as in load_file
        raise raised_by_user(error, doing, file) from None


def _where_files_are(work: Callable[[], Any]) -> Any:
    """Run the user's code. Where it opens a relative path that exists only below a parent of the working directory, run
    it again from there: modules of a package are usually run from the folder of its project."""
    while True:
        try:
            return work()
        except FileNotFoundError as error:
            folder, name = os.getcwd(), error.filename
            while not isinstance(name, str) or os.path.isabs(name) or not os.path.exists(os.path.join(folder, name)):
                folder, before = os.path.dirname(folder), folder
                if folder == before:
                    raise
            if folder == os.getcwd():
                raise
            os.chdir(folder)


@dataclass
class _Previous:
    folders: list[str] = field(default_factory=list)
    modules: frozenset[str] = frozenset()


_PREVIOUS = _Previous()


def _forget_previous() -> None:
    """Drop the user's modules of an earlier capture: their files may have changed since."""
    for folder in _PREVIOUS.folders:
        if folder in sys.path:
            sys.path.remove(folder)
        inside = os.path.join(folder, "")
        for name, module in list(sys.modules.items()):
            place = getattr(module, "__file__", None) or ""
            if name not in _PREVIOUS.modules and place.startswith(inside) and "site-packages" not in place:
                del sys.modules[name]
    _PREVIOUS.folders.clear()
    _PREVIOUS.modules = frozenset(sys.modules)
    importlib.invalidate_caches()


def _module_name(file: str) -> tuple[str, str]:
    """Return the folder that goes on the path, and the dotted name of the file from there."""
    folder, base = os.path.split(file)
    parts = [os.path.splitext(base)[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.basename(folder).isidentifier():
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    return folder, ".".join(parts)


def _import_of_project(file: str) -> ModuleType:
    """Import the file. Where it imports a module that exists only in a folder above, import it again with that folder
    on the path: programs of a project are usually run from there, whose packages may have no `__init__.py`."""
    projects: dict[str, str] = {}
    while True:
        try:
            return _import_anew(file, projects)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            project = _project_with(name, file)
            if not project or project in projects:
                raise
            projects[project] = name


def _project_with(name: str, file: str) -> str:
    """Return the nearest folder above the file's that has a module or a package of this name, up to the top of the
    repository; empty without one."""
    folder = os.path.dirname(file)
    while name and not os.path.exists(os.path.join(folder, ".git")) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        package = os.path.join(folder, name, "")
        if os.path.isfile(package[:-1] + ".py") or file.startswith(package):
            return folder
        if os.path.isdir(package) and any(each.endswith(".py") for each in os.listdir(package)):
            return folder
    return ""


def _import_anew(file: str, projects: Mapping[str, str]) -> ModuleType:
    """Import the file without what an earlier import of the user's files left, with folders above it on the path, each
    for the package that was not found. A file of such a package is imported as its program does."""
    _forget_previous()
    root, name = _module_name(file)
    for folder, package in {root: "", **projects}.items():
        sys.path.insert(0, folder)
        _PREVIOUS.folders.append(folder)
        parts = os.path.splitext(os.path.relpath(file, folder))[0].split(os.sep)
        name = ".".join(parts) if parts[0] == package and all(map(str.isidentifier, parts)) else name
    return _import(name, file)


def _import(name: str, file: str) -> ModuleType:
    if "." in name:
        return importlib.import_module(name)
    if name in sys.modules or name in getattr(sys, "stdlib_module_names", ()) or not name.isidentifier():
        name = f"_kernel_lsp_target_{name}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _from_module(loaded: LoadedFile, source: dict[str, Any], module: Any) -> Callee:
    if not callable(module):
        raise TargetFailure(
            f"{type(module).__name__} is not an nn.Module, and cannot be called",
            file=loaded.file,
            line=source["line"],
            next_step="derive it from torch.nn.Module, or name one of its methods",
        )
    return Callee(module, module if _is_module(module) else None)


def _init_arguments(loaded: LoadedFile, source: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    if source.get("init_arguments") is not None:
        return [], dict(source["init_arguments"])
    if not source.get("has_get_init_inputs"):
        return [], {}
    given = call_user(find_symbol(loaded, "get_init_inputs", source["line"]), "calling get_init_inputs()", loaded.file)
    if isinstance(given, dict):
        return [], dict(given)
    given = list(given or [])
    if len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
        return list(given[0]), dict(given[1])
    return given, {}


def _argument(module: ModuleType, value: Any) -> Any:
    """Return a constructor argument; an object is constructed by the names of the file, or of what they import."""
    if not isinstance(value, dict):
        return value
    return evaluated(module, value["call"])


def evaluated(module: ModuleType, text: str) -> Any:
    """Return the value of a pragma's literal, name or construction."""
    return _evaluated(module, ast.parse(text, mode="eval").body)


def _evaluated(module: ModuleType, node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        leading = [_evaluated(module, each) for each in node.args]
        given = {each.arg or "": _evaluated(module, each.value) for each in node.keywords}
        return _with_attributes(_named(module, ast.unparse(node.func))(*leading, **given), given)
    if isinstance(node, (ast.Tuple, ast.List)):
        parts = [_evaluated(module, part) for part in node.elts]
        return tuple(parts) if isinstance(node, ast.Tuple) else parts
    if isinstance(node, ast.Dict):
        keys = [key and _evaluated(module, key) for key in node.keys]
        return dict(zip(keys, [_evaluated(module, part) for part in node.values]))
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _named(module, ast.unparse(node))
    return ast.literal_eval(node)


def _with_attributes(built: Any, given: Mapping[str, Any]) -> Any:
    """Return a dataclass's object with those attributes set that its constructor, which takes any keyword, ignored: a
    recording has what was assigned later."""
    code = getattr(type(built).__init__, "__code__", None)
    if is_dataclass(built) and code is not None and code.co_flags & inspect.CO_VARKEYWORDS:
        ours = {each.name for each in fields(built)}
        for name, value in given.items():
            if name not in ours and getattr(built, name, value) != value:
                setattr(built, name, value)
    return built


def _named(module: ModuleType, dotted: str) -> Any:
    """Return what a dotted name is in the file, else in the module that it begins with."""
    head, *rest = dotted.split(".")
    if hasattr(module, head):
        return functools.reduce(getattr, rest, getattr(module, head))
    for n in range(len(rest), 0, -1):
        with contextlib.suppress(ImportError):
            return functools.reduce(getattr, rest[n - 1 :], importlib.import_module(".".join([head, *rest[: n - 1]])))
    if not rest and hasattr(builtins, head):
        return getattr(builtins, head)
    raise NameError(f"name '{dotted}' is not defined in {module.__name__}")


def _init_example(found: Any) -> str:
    """Return an example from the constructor's signature: ``dim=64, eps=1e-06``."""
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return "dim=64"
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p for p in named if p.default is p.empty] or named
    return ", ".join(f"{p.name}={64 if p.default is p.empty else json.dumps(p.default, default=str)}" for p in needed)
