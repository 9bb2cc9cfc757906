"""Spell values of numbers, strings and sequences as a pragma does.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import math

SCALARS = (bool, int, float)
SEQUENCES = (tuple, list)
LITERALS = (*SCALARS, str, *SEQUENCES, dict, type(None))
MAX_PARTS = 64
"""Maximum parts of a sequence that a pragma says: longer ones are data."""


def literal(value):
    """Return a number, a string, None, a dtype, or a sequence or dictionary of them in the spelling of a pragma; None
    for other values."""
    return spelled_parts(value, literal) if has_parts(value) else single(value)


def has_parts(value):
    """Return True for a tuple, a list, a dictionary, and the shape of a tensor."""
    kind = type(value)
    return kind in (*SEQUENCES, dict) or (kind.__module__, kind.__name__) == ("torch", "Size")


def single(value):
    """Return a number, a string, None or a dtype as `literal` does."""
    kind = type(value)
    if kind is str:
        return repr(value) if value.isprintable() and not set(value) & set("'\"\\") else None
    if kind in SCALARS:
        return repr(value) if math.isfinite(value) else None
    return repr(value) if value is None or (kind.__module__, kind.__name__) == ("torch", "dtype") else None


def spelled_parts(value, spell):
    """Return a tuple, a list or a dictionary whose parts `spell` can spell; None for others."""
    if len(value) > MAX_PARTS:
        return None
    if type(value) is dict:
        keys = [literal(key) if type(key) is str or (type(key) is int and key >= 0) else None for key in value]
        parts = [spell(part) for part in value.values()]
        pairs = [f"{key}: {part}" for key, part in zip(keys, parts)]
        return None if None in keys or None in parts else f"{{{', '.join(pairs)}}}"
    return of_parts(type(value), [spell(part) for part in value])


def of_parts(kind, parts):
    """Return a tuple or a list of spelled parts; None where one has no spelling."""
    if None in parts:
        return None
    return f"[{', '.join(parts)}]" if kind is list else f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def parts_without_literal(name, value):
    """Return the parts of a sequence that holds other values than literals, such as tensors, each with its name:
    ``rotary_0``, ``rotary_1``; None for another value."""
    if type(value) not in SEQUENCES or len(value) > MAX_PARTS or literal(value) is not None:
        return None
    return [(f"{name}_{place}", part) for place, part in enumerate(value)]


def all_parts(pairs):
    """Yield values with their names, and in place of a sequence its parts."""
    for name, value in pairs:
        parts = parts_without_literal(name, value)
        if parts is None:
            yield name, value
        else:
            yield from all_parts(parts)
