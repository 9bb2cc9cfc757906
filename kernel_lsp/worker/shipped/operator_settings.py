"""Settings of a module: its plain attributes as values, and its functions as texts that tell them apart.

The part below the imports is carried by the shared runtime of operator files and by each package, word for word.
"""

from __future__ import annotations

import ast
import collections
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import inspect
import os
import textwrap
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# --- Settings of a module ---------------------------------------------------------------------------------

UNCOMPARABLE = "what cannot be compared"
WITH_CODE = (types.FunctionType, types.MethodType, functools.partial)
EXACT_NUMBERS = (fractions.Fraction, decimal.Decimal)
NESTED = (list, tuple, set, frozenset, collections.deque, dict, complex, range, slice, *EXACT_NUMBERS)
MAX_TEXT = 100  # characters of a function's text; of a longer one a digest stands there
MAX_NESTED = 6  # values in each other below a function


def attribute(module: Any, path: str) -> Any:
    """Return ``module.norm.weight`` for ``norm.weight``, also of dictionaries and lists; None where there is none."""
    for part in path.split("."):
        if isinstance(module, (list, tuple)) and part.isdigit():
            module = module[int(part)] if int(part) < len(module) else None
        else:
            module = module.get(part) if isinstance(module, dict) else getattr(module, part, None)
    return module


def is_setting(found: Any, captured: Any) -> bool:
    """Return True if an attribute has the captured value. Of what cannot be compared, no value is the captured one."""
    if not isinstance(found, type(captured)) or found != captured:
        return False
    return not isinstance(captured, str) or UNCOMPARABLE not in captured


def setting_of(value: Any, captured: Any = None, module: Any = None) -> Any:
    """Return an attribute as settings state it: lists as tuples, numbers of numpy as Python's, dtypes by their name,
    functions of `module` by their text."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, WITH_CODE) or (isinstance(value, NESTED) and isinstance(captured, str)):
        return constant_text(value) if torch.compiler.is_compiling() else setting_text(value, module)
    if isinstance(value, (list, tuple)):
        return "tensors" if any(isinstance(each, Tensor) for each in value) else tuple(value)
    return str(value) if isinstance(value, torch.dtype) else value


def setting_text(value: Any, module: Any = None) -> str:
    """Return the text of a function, or of a list that holds some: name, digest of its code, and what it is bound to.
    `module` may be in a closure; any other module or tensor cannot be compared."""
    parts = set(map(id, module.modules())) if isinstance(module, torch.nn.Module) else {id(module)}
    text = _text(value, None if module is None else parts, ())
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:40]}... {_digest(text)}" + f" ({UNCOMPARABLE})" * (UNCOMPARABLE in text)


def constant_text(value: Any) -> str:
    """Return `setting_text` where code is compiled: the compiler calls this and takes the result for constant."""
    return setting_text(value)


constant_text._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does


def _text(value: Any, parts: Any, outer: tuple[Any, ...]) -> str:
    """Return the text of a value inside of those of `outer`."""
    if value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, *EXACT_NUMBERS)
    ):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (type, types.BuiltinFunctionType, types.ModuleType)):
        return str(value.__name__)
    if isinstance(value, torch.nn.Module):
        return type(value).__name__ if parts is None or id(value) in parts else UNCOMPARABLE
    if any(value is each for each in outer):
        return "..."
    inner = (*outer, value)
    if isinstance(value, Tensor) or len(inner) > MAX_NESTED:
        return UNCOMPARABLE
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        texts = [_text(each, parts, inner) for each in value]
        return f"[{', '.join(sorted(texts) if isinstance(value, (set, frozenset)) else texts)}]"
    if isinstance(value, dict):
        return _bound("", {str(name): each for name, each in value.items()}, parts, inner)
    if isinstance(value, functools.partial):
        return _bound("partial", {"": [value.func, *value.args], **value.keywords}, parts, inner)
    if isinstance(value, types.MethodType):
        return _bound(_text(value.__func__, parts, inner), {"": value.__self__}, parts, inner)
    original = getattr(value, "_torchdynamo_orig_callable", None)
    if isinstance(value, types.FunctionType) and original is None:
        return _function_text(value, parts, inner)
    original = getattr(value, "__wrapped__", None) if original is None else original
    if original is not None:
        return _text(original, parts, inner)
    if type(value).__module__ == "numpy":
        return _text(value.tolist(), parts, inner) if hasattr(value, "tolist") else value.__name__
    held = {**slots_of(value), **getattr(value, "__dict__", {})}
    return _bound(type(value).__name__, held, parts, inner) if held or hasattr(value, "__dict__") else UNCOMPARABLE


def slots_of(value: Any) -> dict[str, Any]:
    """Return what an object holds in slots."""
    stated = [vars(each).get("__slots__", ()) for each in type(value).__mro__]
    names = [name for each in stated for name in ((each,) if isinstance(each, str) else each)]
    return {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}


def _function_text(function: types.FunctionType, parts: Any, outer: tuple[Any, ...]) -> str:
    """Return ``<lambda> 1a2b3c4d (k=2.0)``: functions of torch have a name alone."""
    if str(function.__globals__.get("__name__")).startswith("torch."):
        wrapped = getattr(function, "__wrapped__", None)
        return function.__name__ if wrapped is None else _text(wrapped, parts, outer)
    digest, read = _of_code(function.__code__)
    closure = zip(function.__code__.co_freevars, function.__closure__ or ())
    bound = {name: cell_contents(cell) for name, cell in closure}
    bound.update({name: function.__globals__[name] for name in read if name in function.__globals__})
    if function.__defaults__:
        bound["="] = function.__defaults__
    return _bound(f"{function.__name__} {digest}", {**bound, **(function.__kwdefaults__ or {})}, parts, outer)


def cell_contents(cell: Any) -> Any:
    """Return the value of a variable of a closure; None where it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _bound(text: str, values: Mapping[str, Any], parts: Any, outer: tuple[Any, ...]) -> str:
    stated = [f"{name}={_text(value, parts, outer)}".lstrip("=") for name, value in values.items()]
    return f"{text}({', '.join(stated)})" if stated else text


@functools.lru_cache(maxsize=256)
def _of_code(code: types.CodeType) -> tuple[str, tuple[str, ...]]:
    """Return a digest of what code does, the same in each process of one Python, and the globals that it reads."""
    constants, read = [], {str(each.argval) for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            digest, names = _of_code(each)
            constants.append(digest)
            read.update(names)
        else:
            constants.append(_text(each, None, ()))
    stated = [code.co_code.hex(), constants, code.co_names, code.co_freevars, code.co_argcount, code.co_kwonlyargcount]
    return _digest(repr(stated)), tuple(sorted(read))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def code_digest(entry: Any, kinds: frozenset[type] = frozenset()) -> str:
    """Return a digest of the source of a function, or of a method of one of `kinds`, and of what it names: methods of
    these classes outside of torch, and functions in files of its folder. Comments and documentation do not count, nor
    does the use of an operator. Empty where some source is not found. Compiled code takes the answer for constant."""
    return _code_digest(entry, kinds)


code_digest._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does


@functools.lru_cache(maxsize=256)
def _code_digest(entry: Any, kinds: frozenset[type]) -> str:
    folder = _folder_of(inspect.unwrap(entry))
    todo, texts = [entry, *[inspect.getattr_static(kind, "forward", None) for kind in kinds]], {}
    while todo:
        member = todo.pop()
        member = next((getattr(member, each) for each in ("fget", "func", "__func__") if hasattr(member, each)), member)
        function = inspect.unwrap(member) if callable(member) else None
        if not isinstance(function, types.FunctionType) or function.__code__ in texts:
            continue
        space = function.__globals__
        if str(space.get("__name__")).partition(".")[0] == "torch" or "OPERATOR" in space:
            continue
        try:
            texts[function.__code__] = _source_text(function)
        except (OSError, TypeError, SyntaxError):
            return ""
        names = _names_in(function.__code__)
        todo += [inspect.getattr_static(kind, name, None) for kind in kinds for name in names]
        called = [inspect.unwrap(space[name]) for name in names if isinstance(space.get(name), types.FunctionType)]
        todo += [each for each in called if _folder_of(each) == folder]
    return _digest("\n".join(sorted(texts.values())))


def _folder_of(function: Any) -> str:
    """Return a function's folder; a script's own functions may name it relatively."""
    return os.path.dirname(os.path.realpath(getattr(getattr(function, "__code__", None), "co_filename", "")))


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*inner)


def _source_text(function: types.FunctionType) -> str:
    """Return the syntax tree of a function as a text, without its documentation and the operators that it uses."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return _tree_text(_WithoutUses().visit(tree))


def _tree_text(node: Any) -> str:
    """Return a text that is the same in each version of Python, unlike those of ``ast.unparse`` and ``ast.dump``.
    Python 3.12.1 has an empty text at the end of nested formats."""
    if isinstance(node, list):
        return f"[{' '.join(_tree_text(each) for each in node if getattr(each, 'value', None) != '')}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    held = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return f"{type(node).__name__}({' '.join(f'{name}={_tree_text(value)}' for name, value in held)})"


class _WithoutUses(ast.NodeTransformer):
    """Replaces ``use_softmax(softmax)`` by ``softmax``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_use = isinstance(node.func, ast.Name) and node.func.id.startswith("use_") and len(node.args) == 1
        return node.args[0] if is_use else node
