"""Read the launches of a file's host code, and the host values that they are made of, from its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.expression import ExpressionError, evaluate_int, parse
from kernel_lsp.source.cuda import closing, without_comments_and_strings

MAX_SUBSTITUTIONS = 64
"""Maximum replacements of names by their definitions in one expression, against definitions that name each other."""
MAX_BITS = 64
"""Bits of the widest integer: C++ defines no shift by as many or more, such as one that is half typed."""
_LAUNCH = re.compile(r"(?<![\w:])(?P<kernel>[A-Za-z_][\w:]*)\s*(?:<(?P<template>[^;{}()]*?)>\s*)?<<<")
_OPENED = re.compile(r"\s*\(")
_INTEGER = r"(?:dim3|auto|bool|(?:std::)?size_t|u?int(?:8|16|32|64)?_t|(?:unsigned|long|short|int)(?:\s+(?:int|long))*)"
_DEFINED = re.compile(
    rf"(?<=[;{{}}])\s*(?:(?:const|constexpr|static)\s+)*{_INTEGER}\s+(?=[A-Za-z_]\w*\s*[=({{,])(?P<list>[^;]*);"
)
_DECLARATOR = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:=(?P<value>.*)|\((?P<call>.*)\)|\{(?P<braces>.*)\})\s*", re.S)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<value>[^\n]+)$", re.M)
_SIZE_OF = {"float": 4, "double": 8, "int": 4, "char": 1, "half": 2, "__half": 2, "__nv_bfloat16": 2, "float4": 16}
_CALL_OF_CEIL = re.compile(r"\b(?:ceil_?div|div_?(?:up|ceil)|cdiv|div_?round_?up|i_?div_?up)\s*\(", re.I)
_CAST = re.compile(r"\((?:unsigned\s+)?(?:int|long|size_t|u?int\d+_t|float|double|unsigned)(?:\s+(?:int|long))*\)\s*")
_STATIC_CAST = re.compile(r"\bstatic_cast\s*<[^<>]*>\s*(?=\()")
_CHAIN = re.compile(r"[A-Za-z_][\w.]*(?:(?:\.|->)\w+\([^()]*\))*")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w*\s*\()")
_COMPONENTS = re.compile(r"(?:dim3\s*)?[({](.*)[)}]", re.S)


@dataclass(frozen=True)
class HostLaunch:
    """One launch as written. `sizes` are grid, block, and where given shared bytes and stream. `defined` has the values
    of the names in scope."""

    kernel: str
    template: tuple[str, ...]
    sizes: tuple[str, ...]
    arguments: tuple[str, ...]
    defined: Mapping[str, str]
    before: str
    """Text of the host function above it."""


def host_launches(text: str) -> tuple[HostLaunch, ...]:
    """Return the launches outside of comments, in order."""
    code = without_comments_and_strings(text).replace("\\\n", "  ")
    return tuple(_launches(code))


def split_top(text: str, separator: str = ",", opening: str = "([{", closing: str = ")]}") -> tuple[str, ...]:
    """Split at a character outside of brackets. Empty parts are left out."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in opening) - (character in closing)
        if character == separator and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return tuple(part.strip() for part in (*parts, text[start:]) if part.strip())


def size_parts(written: str, defined: Mapping[str, str]) -> tuple[str, ...]:
    """Return the components of a grid or a block, of ``dim3(16, 16)`` or of the value that its name is defined with."""
    seen: set[str] = set()  # a definition that is half typed may name itself
    while written in defined and written not in seen:
        seen.add(written)
        written = defined[written]
    inner = _COMPONENTS.fullmatch(written)
    return split_top(inner[1] if inner and "," in inner[1] else written)


def without_casts(expression: str) -> str:
    """Return a host expression without casts and the namespace `std`."""
    return _STATIC_CAST.sub("", _CAST.sub("", expression)).replace("std::", "").strip()


def plan_expression(expression: str, names: Mapping[str, str], defined: Mapping[str, str]) -> str | None:
    """Convert a host expression of integers to one of a plan. `names` are the dims of host expressions; other names
    are replaced by their definitions. None for what a plan cannot say."""
    text = f" {without_casts(_with_sizes(expression))} "
    for _ in range(MAX_SUBSTITUTIONS):
        found = next(_unknown(text, names, defined), None)
        if found is None:
            break
        text = f"{text[: found.start()]}({without_casts(_with_sizes(defined[found[0]]))}){text[found.end() :]}"
    text = _CALL_OF_CEIL.sub("ceil_div(", _with_dims(text, names))
    text = re.sub(r"(?<=[\dA-Za-z])[uU]?[lL]{1,2}\b|(?<=\d)[uU]\b", "", text)
    text = re.sub(r"(?<!/)/(?!/)", "//", re.sub(r"(\d+)\s*<<\s*(\d+)", _shifted, text))
    is_known = {*_NAME.findall(text)} <= {*names.values()}
    is_clean = re.fullmatch(r"(?:[\w\s+\-*/%(),]|//)*", text) is not None
    calls = {*re.findall(r"([A-Za-z_]\w*)\s*\(", text)}
    return _tidy(text) if is_known and is_clean and calls <= {"ceil_div", "min", "max"} else None


def number_of(expression: str, defined: Mapping[str, str]) -> int | None:
    """Return the value of a host expression of integers; None for any other."""
    if expression.isdecimal():
        return int(expression)
    written = plan_expression(expression, {}, defined)
    try:
        return None if written is None else evaluate_int(parse(written), {})
    except ExpressionError:
        return None


def _launches(code: str) -> Iterator[HostLaunch]:
    constants = _file_constants(code)
    for match in _heads(code):
        end = code.find(">>>", match.end())
        opened = _OPENED.match(code, end + 3) if end > 0 else None
        if opened is None:
            continue
        closed = closing(code, opened.end())
        before = code[_start_of_function(code, match.start()) : match.start()]
        yield HostLaunch(
            kernel=match["kernel"],
            template=split_top(match["template"] or ""),
            sizes=split_top(code[match.end() : end]),
            arguments=split_top(code[opened.end() : closed]),
            defined={**constants, **_definitions(before)},
            before=before,
        )


def _heads(code: str) -> Iterator[re.Match[str]]:
    """Yield the names of launches with their ``<<<``. A name and its template arguments have no bracket between."""
    place = code.find("<<<")
    while place >= 0:
        start = max(code.rfind(bracket, 0, place) for bracket in ";{}()") + 1
        match = _LAUNCH.search(code, start, place + 3)
        if match is not None:
            yield match
        place = code.find("<<<", place + 3)


def _start_of_function(code: str, position: int) -> int:
    """Return the end of the last brace that closes a definition at the start of a line."""
    return max(code.rfind("\n}", 0, position) + 2, 0)


def _file_constants(code: str) -> dict[str, str]:
    macros = {match["name"]: match["value"].strip() for match in _MACRO.finditer(code)}
    constants = re.findall(
        r"const(?<=\bconst)(?:expr)?\s+(?:static\s+)?(?:int|unsigned|size_t)\s+(\w+)\s*=\s*([^;,]+);", code
    )
    return {**macros, **dict(constants)}


@lru_cache(maxsize=512)  # each pause while typing leaves a text behind
def _definitions(before: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for match in _DEFINED.finditer(before):
        for declarator in split_top(match["list"]):
            if parts := _DECLARATOR.fullmatch(declarator):
                value = (parts["value"] or parts["call"] or parts["braces"] or "").strip()
                found[parts["name"]] = re.sub(r"^dim3\s*(?=[({])", "", value) if value.startswith("dim3") else value
    return found


def _with_sizes(text: str) -> str:
    return re.sub(r"\bsizeof\s*\(\s*(?:unsigned\s+)?(\w+)\s*\)", lambda m: str(_SIZE_OF.get(m[1], m[0])), text)


def _unknown(text: str, names: Mapping[str, str], defined: Mapping[str, str]) -> Iterator[re.Match[str]]:
    """Yield the names that a definition replaces."""
    for match in _NAME.finditer(text):
        if match[0] not in names and match[0] in defined and match[0] not in names.values():
            yield match


def _with_dims(text: str, names: Mapping[str, str]) -> str:
    """Replace host names and calls such as ``x.size(0)`` by their dims."""
    return _CHAIN.sub(lambda match: names.get(match[0], match[0]), text)


def _shifted(match: re.Match[str]) -> str:
    """Return the value of a shift, or its text where C++ defines none."""
    n_bits = int(match[2])
    return str(int(match[1]) << n_bits) if n_bits < MAX_BITS else match[0]


def _tidy(text: str) -> str:
    """Write ``(N + 255) // 256`` as ``ceil_div(N, 256)``, without brackets around everything."""
    text = " ".join(text.split()).replace("( ", "(").replace(" )", ")")
    while True:
        plain = re.sub(r"(?<!\w)\(\s*([\w.]+)\s*\)", r"\1", text)
        plain = re.sub(r"\(\s*([\w *]+?)\s*\+\s*(\w+)\s*-\s*1\s*\)\s*//\s*\2\b", r"ceil_div(\1, \2)", plain)
        plain = re.sub(r"\(\s*([\w *]+?)\s*\+\s*(\d+)\s*\)\s*//\s*(\d+)\b", _ceil, plain)
        plain = re.sub(r"^\((.*)\)$", lambda m: m[1] if _is_one(m[1]) else m[0], plain)
        if plain == text:
            return text
        text = plain


def _ceil(match: re.Match[str]) -> str:
    return f"ceil_div({match[1]}, {match[3]})" if int(match[2]) == int(match[3]) - 1 else match[0]


def _is_one(inner: str) -> bool:
    """Return True when the brackets around it belong together."""
    depth = 0
    for character in inner:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0
