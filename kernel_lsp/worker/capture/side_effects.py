"""Detect side effects of a call. Kernels reproduce new tensors of its module; code with any other one is refused."""

from __future__ import annotations

import contextlib
import dis
import enum
import sys
import types
from collections import deque
from collections.abc import Container, Iterator
from typing import Any, Callable

import torch

from ..failure import TargetFailure, is_user_file
from .attribute_reads import MAX_DEPTH, OWN_ATTRIBUTES, named_parts, names_read, owner_of
from .load import Callee

MAX_ENTRIES = 256
"""Maximum entries of a container that are compared; of a longer one the length and these."""
PLAIN = (int, float, str, bytes, type(None), complex)
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
TENSOR = "tensor"
NUMBER = "number of the sizes"


class StateUpdate(Exception):
    """The code keeps tensors in attributes of its module, at `paths`."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self.paths = paths


@contextlib.contextmanager
def without_side_effects(callee: Callee, file: str, line: int | None, known: Container[str] = ()) -> Iterator[None]:
    """Raise TargetFailure if the code inside changes plain values of the callee's object, closure or file, and
    StateUpdate if it assigns tensors to buffers or attributes of its module that are not among the `known` ones. A
    value that the code itself reads again may be a cache, where there was none or the owner is no module."""
    owner, method = owner_of(callee), getattr(callee.call, "__name__", "forward")
    function = getattr(owner, method, callee.call)
    before, buffers = _state(owner, function), _buffers(callee.owner)
    yield
    after = _state(owner, function)
    assigned = [path for path, value in _buffers(callee.owner).items() if value is not buffers.get(path, value)]
    if unknown := [path for path in assigned if path not in known]:
        raise StateUpdate(unknown)
    changed = [name for name, value in after.items() if before.get(name, ()) != value and _path(name) not in known]
    states = [name for name in changed if after[name] == TENSOR and callee.owner is not None]
    if all(_may_be_kept(before.get(name), after[name]) for name in changed):
        read = names_read([part for _, part in named_parts(owner)], method)
        changed = [name for name in changed if name in states or name.rpartition(".")[2] not in read]
    if changed and changed == states:
        raise StateUpdate([_path(name) for name in states])
    if changed:
        raise TargetFailure(
            f"each call changes {', '.join(changed[:3])}, which kernels would leave as it is",
            file=file,
            line=line,
            next_step="move that into a forward hook, which still runs, or leave it outside of the target",
        )


def is_set_first(part: Any, name: str) -> bool:
    """Return True if each function of an object's class that sets an attribute does so before it reads it."""
    functions = [each for kind in type(part).__mro__ for each in vars(kind).values() if hasattr(each, "__code__")]
    ops = [
        [each.opname for each in dis.get_instructions(function) if each.argval == name]
        for function in functions
        if function.__name__ != "__init__" and name in function.__code__.co_names
    ]
    setting = [found for found in ops if "STORE_ATTR" in found]
    return bool(setting) and all(found[0] == "STORE_ATTR" for found in setting)


def _buffers(owner: torch.nn.Module | None) -> dict[str, Any]:
    return {} if owner is None else dict(owner.named_buffers(remove_duplicate=False))


def _path(name: str) -> str:
    return name.removeprefix("self.")


def _may_be_kept(before: Any, after: Any) -> bool:
    """Return True for a tensor, and for a plain value that the first call computes, as `cached_property` does."""
    return bool(after == TENSOR) or (before in (None, repr(None)) and isinstance(after, str) and after != NUMBER)


def _state(owner: Any, function: Callable[..., Any]) -> dict[str, Any]:
    """Return what is compared, by name: attributes, variables of a closure, and numbers of the function's file."""
    found = {}
    for path, part in named_parts(owner):
        for name, value in vars(part).items():
            if not (isinstance(part, torch.nn.Module) and name in OWN_ATTRIBUTES):
                found[".".join(filter(None, ("self", path, name)))] = _frozen(value)
    code = getattr(function, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            if not isinstance(cell.cell_contents, torch.nn.Module):
                found[f"{name} around the function"] = _frozen(cell.cell_contents)
    space = getattr(function, "__globals__", {})
    found.update({f"the global {name}": value for name, value in space.items() if type(value) in (int, float)})
    return found


def _frozen(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a copy that compares by value: of tensors that there is one, of unknown objects their type."""
    if isinstance(value, torch.Tensor):
        return TENSOR
    if isinstance(value, NUMBERS):
        return NUMBER
    if isinstance(value, PLAIN):
        return repr(value)
    if not depth or isinstance(value, (torch.nn.Module, type, types.ModuleType, types.FunctionType, enum.Enum)):
        return type(value).__name__
    if isinstance(value, dict):
        entries = {repr(key) if isinstance(key, PLAIN) else "": _frozen(each, depth - 1) for key, each in value.items()}
        return {key: each for key, each in entries.items() if each != TENSOR}  # others may be a cache of masks
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return len(value), [_frozen(each, depth - 1) for _, each in zip(range(MAX_ENTRIES), value)]
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    if hasattr(value, "__dict__") and is_user_file(file or "<built in>"):
        return {name: _frozen(each, depth - 1) for name, each in vars(value).items()}
    return type(value).__name__
