"""``using name = type;`` and ``typedef type name;``, as text: what the types of kernel parameters may stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_STEPS = 16
"""Of aliases of aliases."""
_USING = re.compile(r"using\s+(?P<name>\w+)\s*=\s*(?P<type>[^;]+?)\s*;?")
_TYPEDEF = re.compile(r"typedef\s+(?P<type>[^;()\[\]{}]+?)\s*\b(?P<name>\w+)\s*;?")


def alias_of(declaration: str) -> tuple[str, str] | None:
    """The name and the type that it stands for, as spelled; None for an array, a function and what is no alias."""
    match = _USING.fullmatch(declaration) or _TYPEDEF.fullmatch(declaration)
    return None if match is None else (match["name"], match["type"])


def followed(name: str, aliases: Mapping[str, str]) -> str:
    """What a name stands for in the end, as spelled: ``const float*`` for ``in_t``. A name that is no alias is itself.
    That of a namespace is known without it."""
    for _ in range(MAX_STEPS):
        known = aliases.get(name, aliases.get(name.rpartition("::")[2], name) if "::" in name else name)
        if known == name:
            return name
        name = known
    return name
