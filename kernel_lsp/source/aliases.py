"""Resolve ``using name = type;`` and ``typedef type name;`` in the types of kernel parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_STEPS = 16
"""Maximum chain length of aliases of aliases."""
_USING = re.compile(r"using\s+(?P<name>\w+)\s*=\s*(?P<type>[^;]+?)\s*;?")
_TYPEDEF = re.compile(r"typedef\s+(?P<type>[^;()\[\]{}]+?)\s*\b(?P<name>\w+)\s*;?")


def alias_of(declaration: str) -> tuple[str, str] | None:
    """Return the name and its type as spelled; None for an array, a function, or no alias."""
    match = _USING.fullmatch(declaration) or _TYPEDEF.fullmatch(declaration)
    return None if match is None else (match["name"], match["type"])


def followed(name: str, aliases: Mapping[str, str]) -> str:
    """Resolve a name through all aliases, as spelled: ``const float*`` for ``in_t``; any other name is returned
    unchanged. An alias from a namespace is found without the namespace, too."""
    for _ in range(MAX_STEPS):
        known = aliases.get(name, aliases.get(name.rpartition("::")[2], name) if "::" in name else name)
        if known == name:
            return name
        name = known
    return name
