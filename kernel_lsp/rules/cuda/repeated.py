"""Launches that pass one argument twice, read from the text: those of host code and those of the launch plan alike."""

from __future__ import annotations

import re

RepeatedArgument = tuple[int, int, str]
"""The places of the two, counted from 0, and what is passed."""
MAX_ARGUMENTS_CHARACTERS = 2000
"""Of one launch: behind it nothing is read."""
MAX_CONFIGURATION_CHARACTERS = 400
"""Between the angle brackets of one launch."""
MAX_NAME_CHARACTERS = 200
_NAME_BEFORE = re.compile(r"(\w+)\s*(?:<[^<>;{}]*>\s*)?$")
_SEPARATOR = re.compile(r"[()\[\]{},]")
_OPENING = re.compile(r">>>\s*\(")
_BUFFER = re.compile(r"[A-Za-z_](?:[\w.]|->|::)*(?:\s*<[\w:\s]*>)?(?:\(\s*\))?")
"""A name, a member, or what a method without arguments gives: ``x``, ``x.data_ptr<float>()``."""


def repeated_arguments(text: str) -> dict[str, tuple[RepeatedArgument, ...]]:
    """By the kernel's name: the pairs of arguments that are one buffer in some launch."""
    found: dict[str, set[RepeatedArgument]] = {}
    place = text.find("<<<")
    while place >= 0:
        name = _NAME_BEFORE.search(text[max(0, place - MAX_NAME_CHARACTERS) : place])
        opening = _OPENING.search(text, place, place + MAX_CONFIGURATION_CHARACTERS)
        pairs = [] if name is None or opening is None else _pairs(_arguments(text, opening.end()))
        if name is not None and pairs:
            found.setdefault(name[1], set()).update(pairs)
        place = text.find("<<<", place + 3)
    return {name: tuple(sorted(pairs)) for name, pairs in found.items()}


# --- below: one launch


def _arguments(text: str, start: int) -> list[str]:
    """What stands between the bracket before `start` and the one that closes it; nothing when none does."""
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
