"""Spell a constructor's arguments as a pragma does.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import types

from _kernel_lsp_literals import LITERALS, has_parts, single, spelled_parts

CALLED = re.compile(r"(?!__main__)(?:[A-Za-z_]\w*\.)*_*[A-Z]\w*")
"""Names of classes in the spelling of a pragma."""
NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


def init_of(module, frame):
    """Return a constructor's arguments in the spelling of a pragma, and the names of those that have none. Objects
    that are the default need none, nor has None where it is the default."""
    items, opaque = [], []
    defaults = defaults_of(type(module), frame.f_code)
    for name, value in given_to(frame):
        is_default = name in defaults and value is defaults[name]
        is_said = name.isidentifier() and not (is_default and value is None)
        called = spelled_if_possible(value, frame.f_globals) if is_said else None
        if called is not None:
            items.append(f"{name}={called}")
        elif not is_default:
            opaque.append(name)
    return ", ".join(items), opaque


def given_to(frame):
    """Yield the arguments of a constructor but the first, by name: those behind ``*`` as one, each behind ``**``."""
    code, n_named = frame.f_code, frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
    values = {name: frame.f_locals.get(name) for name in code.co_varnames[1 : n_named + 2]}
    yield from [(name, values[name]) for name in code.co_varnames[1:n_named]]
    for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
        if code.co_flags & flag:
            name, n_named = code.co_varnames[n_named], n_named + 1
            value = values[name]
            if value:
                yield from value.items() if flag == inspect.CO_VARKEYWORDS else [("*" + name, value)]


def defaults_of(kind, code):
    """Return the defaults of the constructor that has this code, by name."""
    for base in kind.__mro__:
        constructor = inspect.unwrap(vars(base).get("__init__", object))
        if getattr(constructor, "__code__", None) is code:
            parameters = inspect.signature(constructor).parameters.values()
            return {each.name: each.default for each in parameters if each.default is not each.empty}
    return {}


def spelled_if_possible(value, names):
    """Return the value as `spelled` does, and None for an object that refers to itself, or whose attributes raise."""
    try:
        return spelled(value, names)
    except Exception:  # a property of the user's class may raise anything; RecursionError of a cycle
        return None


def spelled(value, names):
    """Return a literal, the name of a class or function, a `partial` of one, or the call that constructs an equal
    object, e.g. ``Config(width=64)``; None for a value that no pragma can say."""
    kind = type(value)
    if has_parts(value):
        return spelled_parts(value, lambda part: spelled(part, names))
    text = single(value)
    if text is not None or kind in LITERALS:
        return text
    if isinstance(value, NAMED):
        return dotted(value, names)
    if kind is functools.partial:
        function = None if value.args else spelled(value.func, names)
        return None if function is None else with_keywords("functools.partial", value.keywords, names, [function])
    called = kind.__qualname__ if names.get(kind.__name__) is kind else f"{kind.__module__}.{kind.__qualname__}"
    pairs = arguments_of(value) if CALLED.fullmatch(called) else None
    return None if pairs is None else with_keywords(called, dict(pairs), names)


def with_keywords(called, given, names, leading=()):
    """Return the call with these keywords; None where one cannot be said."""
    texts = {name: spelled(value, names) for name, value in given.items()}
    if None in texts.values() or not all(map(str.isidentifier, texts)):
        return None
    return f"{called}({', '.join([*leading, *(f'{name}={text}' for name, text in texts.items())])})"


def dotted(value, names):
    """Return the name of a class or function in the constructor's file, in its own module, or in torch; None for one
    that has no name."""
    path = (getattr(value, "__qualname__", "") or "").split(".")
    owner = getattr(value, "__module__", None)
    if all(map(str.isidentifier, path)):
        if found_at(path, names.get) is value:
            return ".".join(path)
        for short in ("torch.nn", "torch.nn.functional"):
            if getattr(sys.modules.get(short), path[-1], None) is value:
                return f"{short}.{path[-1]}"
        if owner != "__main__" and owner in sys.modules and found_at(path, vars(sys.modules[owner]).get) is value:
            return ".".join([owner, *path])
    torch = sys.modules.get("torch")
    return f"torch.{path[-1]}" if path[-1] and getattr(torch, path[-1], None) is value else None


def found_at(path, get):
    """Return what a dotted name is, by its parts, where `get` knows the first."""
    return functools.reduce(lambda found, name: getattr(found, name, None), path[1:], get(path[0]))


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
    return [(field.name, each) for field, each in changed if field.init] + kept_beside_fields(value)


def kept_beside_fields(value):
    """Return the plain attributes that an object whose constructor takes any keyword has beside its fields, as
    configurations of transformers have; but those that `__post_init__` assigns."""
    kind = type(value)
    if not takes_any_keyword(kind):
        return []
    known = {field.name for field in dataclasses.fields(kind)}
    for base in kind.__mro__:
        made = inspect.unwrap(vars(base).get("__post_init__", None) or object)
        known.update(getattr(getattr(made, "__code__", None), "co_names", ()))
    held = getattr(value, "__dict__", {}).items()
    return [(name, each) for name, each in held if name not in known and each is not None and single(each) is not None]


def takes_any_keyword(kind):
    """Return True if a class's constructor, or what a decorator put in its place, has ``**keywords``."""
    code = getattr(kind.__init__, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_VARKEYWORDS)


def is_default(field, given):
    if field.default_factory in (list, tuple, dict, set):
        return type(given) is field.default_factory and not given
    return is_same(given, field.default)


def is_same(given, default):
    if type(given) in LITERALS:
        return type(given) is type(default) and given == default
    return given is default
