"""Spell a constructor's arguments as a pragma does.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types

from _kernel_lsp_calls import SCALARS

LITERALS = (*SCALARS, str, tuple, list, type(None))
CALLED = re.compile(r"(?!__main__)(?:[A-Za-z_]\w*\.)*_*[A-Z]\w*")
"""Names of classes in the spelling of a pragma."""
MAX_PARTS = 64
"""Maximum parts of a sequence that a pragma says: longer ones are data."""


def init_of(frame):
    """Return a constructor's arguments in the spelling of a pragma, and the names of those that have none."""
    code, items, opaque = frame.f_code, [], []
    n_named = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[1:n_named]:
        value = frame.f_locals.get(name)
        if type(value) in SCALARS and math.isfinite(value):
            items.append(f"{name}={value!r}")
        elif type(value) is str and value.isprintable() and not set(value) & set("'\"\\"):
            items.append(f"{name}='{value}'")
        elif (called := spelled_if_possible(value, frame.f_globals)) is not None:
            items.append(f"{name}={called}")
        elif value is not None:
            opaque.append(name)
    extra = code.co_varnames[n_named : n_named + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
    return ", ".join(items), opaque + [name for name in extra if frame.f_locals.get(name)]


def spelled_if_possible(value, names):
    """Return the call as `spelled` does, and None for an object that refers to itself, or whose attributes raise."""
    try:
        return spelled(value, names)
    except Exception:  # a property of the user's class may raise anything; RecursionError of a cycle
        return None


def spelled(value, names):
    """Return the call that constructs an equal object, e.g. ``Config(width=64)``; None for one that no pragma can
    say."""
    kind = type(value)
    called = kind.__qualname__ if names.get(kind.__name__) is kind else f"{kind.__module__}.{kind.__qualname__}"
    pairs = arguments_of(value) if CALLED.fullmatch(called) else None
    texts = {
        name: literal(given) if type(given) in LITERALS else spelled(given, names)
        for name, given in pairs or ()
        if name.isidentifier()
    }
    if pairs is None or len(texts) < len(pairs) or None in texts.values():
        return None
    return f"{called}({', '.join(f'{name}={text}' for name, text in texts.items())})"


def arguments_of(value):
    """Return the arguments of a dataclass's object, a named tuple or a namespace that differ from its defaults, by
    name; None for an object of another class."""
    kind = type(value)
    if kind is types.SimpleNamespace or kind is getattr(sys.modules.get("argparse"), "Namespace", None):
        return list(vars(value).items())
    if issubclass(kind, tuple) and hasattr(value, "_field_defaults"):
        defaults = value._field_defaults
        return [
            (name, given) for name, given in value._asdict().items() if not is_same(given, defaults.get(name, value))
        ]
    if not dataclasses.is_dataclass(kind):
        return None
    given = [(field, getattr(value, field.name, None)) for field in dataclasses.fields(kind)]
    changed = [(field, each) for field, each in given if not is_default(field, each)]
    if not hasattr(kind, "__post_init__") and not all(field.init for field, _ in changed):
        return None
    return [(field.name, each) for field, each in changed if field.init]


def is_default(field, given):
    if field.default_factory in (list, tuple, dict, set):
        return type(given) is field.default_factory and not given
    return is_same(given, field.default)


def is_same(given, default):
    if type(given) in LITERALS:
        return type(given) is type(default) and given == default
    return given is default


def literal(value):
    """Return a number, a string or a sequence of them in the spelling of a pragma; None for other values."""
    if type(value) in (tuple, list):
        if len(value) > MAX_PARTS:
            return None
        parts = [literal(part) if type(part) in LITERALS else None for part in value]
        return None if None in parts else repr(value)
    if type(value) is str:
        return repr(value) if value.isprintable() and not set(value) & set("'\"\\") else None
    is_finite = value is None or type(value) is bool or math.isfinite(value)
    return repr(value) if is_finite else None
