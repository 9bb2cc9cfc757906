"""Note which attributes captured calls read of the user's modules, and of the objects that these hold.

Calls decide by what they read: another value of an attribute that none reads leads to the same graph. Code may still
name it, in a branch that was not taken, such as that of a cache.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from ..shipped.operator_settings import slots_of
from .attribute_reads import CONTAINERS, MAX_DEPTH, MAX_ENTRIES, NOT_USERS, is_installed, named_parts

READ_WHOLE = frozenset("__dict__ __getstate__ __reduce__ __reduce_ex__ __copy__ __deepcopy__ __dir__".split())
"""Attributes by which code reads all others."""
PACKAGE = __name__.partition(".")[0]
CACHED = type(functools.lru_cache(len))


class AttributeWatch:
    """The names that calls read, by the class of the object. Copies of an object count as the object."""

    def __init__(self) -> None:
        self._names: dict[type, set[str]] = {}
        self._owner: type | None = None

    def names_of(self, value: Any) -> frozenset[str] | None:
        """Return the attributes that calls read of an object; None where this is not known."""
        names = self._names.get(type(value)) if self._names.get(self._owner or object) else None
        return None if names is None or names & READ_WHOLE else frozenset(names)

    @contextlib.contextmanager
    def over(self, owner: Any) -> Iterator[None]:
        """Watch the calls inside. Classes that cannot be watched stay unknown."""
        self._owner = type(owner)
        restore: list[Callable[[], None]] = []
        try:
            for kind in _classes_in(owner):
                with contextlib.suppress(TypeError):  # a class that cannot be changed
                    restore.append(self._watch(kind))
                    _forget(kind)
            yield
        finally:
            for undo in reversed(restore):
                undo()

    def _watch(self, kind: type) -> Callable[[], None]:
        """Note the reads of a class's instances; return what undoes that."""
        own = vars(kind).get("__getattribute__")
        original: Any = kind.__getattribute__
        names: set[str] = set()

        def noted(self: Any, name: str) -> Any:
            reader = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
            if reader != PACKAGE and not (reader == "torch" and name == "__dict__"):
                names.add(name)
            return original(self, name)

        type.__setattr__(kind, "__getattribute__", noted)
        names = self._names.setdefault(kind, names)
        if own is None:
            return lambda: delattr(kind, "__getattribute__")
        return lambda: setattr(kind, "__getattribute__", own)


def _classes_in(owner: Any) -> set[type]:
    """Return the user's classes of a module's parts, and of the objects below their attributes."""
    found: set[type] = set()
    seen: dict[int, Any] = {}
    for _, part in named_parts(owner):
        _add_class(type(part), found)
        for value in vars(part).values():
            _collect(value, found, seen, MAX_DEPTH)
    return found


def _collect(value: Any, found: set[type], seen: dict[int, Any], depth: int) -> None:
    if not depth or id(value) in seen or isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return
    seen[id(value)] = value
    if isinstance(value, CONTAINERS):
        inside = list(islice(value.values() if isinstance(value, dict) else value, MAX_ENTRIES))
    else:
        inside = list({**slots_of(value), **getattr(value, "__dict__", {})}.values())
        if hasattr(value, "__dict__") or slots_of(value):
            _add_class(type(value), found)
    for each in inside:
        _collect(each, found, seen, depth - 1)


def _add_class(kind: type, found: set[type]) -> None:
    package = kind.__module__.partition(".")[0]
    maps = [base for base in kind.__mro__ if "__getattribute__" in vars(base) and base is not object]
    if not all(is_installed(base.__module__) for base in maps):  # it reads others past the watch
        return
    if package not in NOT_USERS and package not in sys.stdlib_module_names and not issubclass(kind, enum.Enum):
        found.add(kind)


def _forget(kind: type) -> None:
    """Clear the caches of a class and its file: what a call takes from one, it reads of no attribute."""
    for space in (vars(kind), vars(sys.modules.get(kind.__module__, enum))):
        for value in list(space.values()):
            if isinstance(value, CACHED):
                value.cache_clear()
