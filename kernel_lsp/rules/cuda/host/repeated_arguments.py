"""Find launches that pass one argument twice, by text search. Host code and launch plans are treated alike."""

from __future__ import annotations

import re
from collections.abc import Callable

RepeatedArgument = tuple[int, int, str]
"""The positions of the two arguments, counted from 0, and the buffer passed."""
MAX_ARGUMENTS_CHARACTERS = 2000
"""Maximum characters of one launch's arguments. Text beyond is not searched."""
MAX_CONFIGURATION_CHARACTERS = 400
"""Maximum characters of one launch's configuration, between the angle brackets."""
MAX_NAME_CHARACTERS = 200
_NAME_BEFORE = re.compile(r"((?:\w+::)*\w+)\s*(?:<[^<>;{}]*>\s*)?$")
_SEPARATOR = re.compile(r"[()\[\]{},]")
_OPENING = re.compile(r">>>\s*\(")
_BUFFER = re.compile(r"[A-Za-z_](?:[\w.]|->|::)*(?:\s*<[\w:\s]*>)?(?:\(\s*\))?")
"""A name, a member, or the result of a method without arguments: ``x``, ``x.data_ptr<float>()``."""


def repeated_arguments(text: str, launched: Callable[[str, int], str]) -> dict[str, tuple[RepeatedArgument, ...]]:
    """Return the pairs of arguments that are one buffer in some launch, by kernel. `launched` returns the key of a
    kernel from its name and the number of arguments."""
    found: dict[str, set[RepeatedArgument]] = {}
    place = text.find("<<<")
    while place >= 0:
        name = _NAME_BEFORE.search(text[max(0, place - MAX_NAME_CHARACTERS) : place])
        opening = _OPENING.search(text, place, place + MAX_CONFIGURATION_CHARACTERS)
        arguments = [] if name is None or opening is None else _arguments(text, opening.end())
        pairs = _pairs(arguments)
        if name is not None and pairs:
            found.setdefault(launched(name[1], len(arguments)), set()).update(pairs)
        place = text.find("<<<", place + 3)
    return {name: tuple(sorted(pairs)) for name, pairs in found.items()}


def _arguments(text: str, start: int) -> list[str]:
    """Return the arguments between the bracket before `start` and its closing bracket. Empty without a closing
    bracket."""
    depth, begin, arguments = 0, start, []
    for match in _SEPARATOR.finditer(text, start, start + MAX_ARGUMENTS_CHARACTERS):
        character = match[0]
        if character in "([{":
            depth += 1
        elif character != "," and depth:
            depth -= 1
        elif character == ")" or (character == "," and not depth):
            arguments.append(text[begin : match.start()].strip())
            begin = match.end()
            if character == ")":
                return arguments
    return []


def _pairs(arguments: list[str]) -> list[RepeatedArgument]:
    if len(set(arguments)) == len(arguments):
        return []
    return [
        (first, second, arguments[first])
        for second in range(len(arguments))
        for first in range(second)
        if arguments[first] == arguments[second] and _BUFFER.fullmatch(arguments[first])
    ]
