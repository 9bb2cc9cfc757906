"""Detect text that compiles differently on another machine or at another time: uses of the build time, of files on the
machine, or of host assembly, which only some compilers process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernel_lsp.toolchain.integrity.line_directives import (
    PLACE_NAMES,
    asks_for_its_place,
    line_directives,
)
from kernel_lsp.toolchain.integrity.masking import mask_comments, mask_literals

_BUILD_TIME = re.compile(r"\b__(?:TIME|DATE|TIMESTAMP)__\b")
_HAS_FILE = re.compile(r"\b__has_(?:include_next|include|embed)\b")
_FILE_OPERAND = re.compile(r'\s*\(?\s*(?:<(?P<angle>[^>"\n]+)>|"(?P<quoted>[^"\n]+)")')
_QUESTION = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:ifdef|ifndef)\b|\bdefined\s*\(?\s*$", re.MULTILINE)
"""`#ifdef __has_include` tests for the feature, not for a file."""
_PASTE = re.compile(r"##|%:%:|\?\?=\?\?=")
_WORD = re.compile(r"\w+", re.ASCII)
PLACE_QUESTIONS = ("__INCLUDE_LEVEL__", "source_location")
HIDDEN_NAMES = ("__TIME__", "__DATE__", "__TIMESTAMP__", "__has_include", "__has_include_next", "__has_embed")
VERSIONS = ("__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "CUDART_VERSION", "CUDA_VERSION")
NAMES_OF_COMPILERS = ("__CUDACC_RTC__", "__NVCC__", *VERSIONS)
"""Macros that a text may test visibly: it is then also checked with other values."""
_SCOPE_OR_ASSEMBLY = re.compile(r"[{}]|\b(?:asm|__asm__|__asm)\b")
_NAMED_SCOPE = re.compile(r"(?:\bnamespace(?:\s+[\w:]+)?|\bextern)\s*$")
"""Precedes a brace that is not a function body: names in it are still at file scope. The `"C"` of `extern "C"` is
masked."""
_MAX_HEAD_CHARACTERS = 200


@dataclass(frozen=True)
class Dependence:
    """A problem at a 1-based line."""

    code: str
    message: str
    line: int


def build_dependences(reading: str, is_allowed_header: Callable[[str], bool]) -> Iterator[Dependence]:
    """Return all dependences of a text whose line splices are resolved."""
    code = mask_literals(reading)
    for match in _BUILD_TIME.finditer(code):
        message = f"'{match[0]}' makes another program of every build"
        yield Dependence("depends-on-build-time", message, _line(code, match.start()))
    yield from _file_questions(reading, code, is_allowed_header)
    yield from _pasted_names(code)
    yield from _false_lines(reading)
    for start in _assembly_of_the_host(code):
        message = "assembly outside of a function is the host's, and is no part of a kernel"
        yield Dependence("host-assembly", message, _line(code, start))


# --- below: one rule each


def _file_questions(reading: str, code: str, is_allowed_header: Callable[[str], bool]) -> Iterator[Dependence]:
    with_strings = mask_comments(reading)
    for match in _HAS_FILE.finditer(code):
        before = code[code.rfind("\n", 0, match.start()) + 1 : match.start()]
        if _QUESTION.search(before):
            continue
        operand = _FILE_OPERAND.match(with_strings, match.end())
        name = (operand["angle"] or operand["quoted"]) if operand else ""
        if not name or not is_allowed_header(name):
            asked = f"'{name}' is" if name else "what it asks for here is"
            message = f"{match[0]} may ask for headers of the CUDA toolkit, by name, and {asked} not one of them"
            yield Dependence("asks-for-a-file", message, _line(code, match.start()))


def _pasted_names(code: str) -> Iterator[Dependence]:
    """Return forbidden names that `##` could form from words of the text, which no rule for the whole name detects."""
    paste = _PASTE.search(code)
    if paste is None:
        return
    words = set(_WORD.findall(code))
    for name in (*HIDDEN_NAMES, *NAMES_OF_COMPILERS, *PLACE_NAMES, *PLACE_QUESTIONS):
        if name not in words and _is_made_of(name, words):
            message = f"'{name}' can be pasted together from words of this text, and a kernel may not ask for it so"
            yield Dependence("pastes-a-name", message, _line(code, paste.start()))


def _is_made_of(name: str, words: set[str]) -> bool:
    """Return True when concatenated words spell the name."""
    ends = {0}
    for end in range(1, len(name) + 1):
        if any(start in ends and name[start:end] in words for start in range(end)):
            ends.add(end)
    return len(name) in ends


def _false_lines(reading: str) -> Iterator[Dependence]:
    if asks_for_its_place(reading):
        for line in line_directives(reading):
            message = "a line directive in a text that asks for the numbers of its lines makes another program of it"
            yield Dependence("false-lines", message, line)


def _assembly_of_the_host(code: str) -> Iterator[int]:
    """Yield the positions of assembly outside functions and classes."""
    is_named: list[bool] = []
    for match in _SCOPE_OR_ASSEMBLY.finditer(code):
        if match[0] == "{":
            head = code[max(0, match.start() - _MAX_HEAD_CHARACTERS) : match.start()]
            is_named.append(_NAMED_SCOPE.search(head) is not None)
        elif match[0] == "}":
            del is_named[-1:]
        elif all(is_named) and not _is_in_a_directive(code, match.start()):
            yield match.start()


def _is_in_a_directive(code: str, position: int) -> bool:
    """Return True inside a macro's definition, which may be used in a function."""
    return code[code.rfind("\n", 0, position) + 1 : position].lstrip().startswith(("#", "%:", "??="))


def _line(code: str, position: int) -> int:
    return code.count("\n", 0, position) + 1
