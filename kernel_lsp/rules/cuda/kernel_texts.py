"""Answer questions about kernels from their text: totals that outlive a launch, missing checks, sums."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from kernel_lsp.rules.cuda.variables import type_bytes

_DECLARED = re.compile(
    r"^[ \t]*(?:static\s+)?__device__\s+(?!.*\b(?:const|constexpr|__constant__|__managed__|__shared__)\b)"
    r"(?:unsigned\s+|long\s+|volatile\s+)*[A-Za-z_][\w:]*\s+(\w+)\s*(?:\[[^\];]*\]\s*)*(?:=[^;(]*)?;",
    re.MULTILINE,
)
_MAIN = re.compile(r"\bint\s+main\s*\(")
_ATOMIC_OF_ADDRESS = re.compile(r"atomic(?<=\batomic)\w+\s*\(\s*&\s*(\w+)")
_PASSED_SYMBOL = re.compile(r"cuda(?:MemcpyToSymbol|GetSymbolAddress)\w*\s*\(([^;]*)")


def unreset_totals(text: str) -> Iterator[str]:
    """Yield the variables that atomic operations change, that nothing sets, and whose address goes nowhere else. A
    program whose `main` launches each kernel once needs no reset."""
    declared = [match[1] for match in _DECLARED.finditer(text)]
    if not declared or (_MAIN.search(text) and text.count("<<<") < 2):
        return
    body = _DECLARED.sub("", text)
    without_atomics = _ATOMIC_OF_ADDRESS.sub(r"\1", body)
    passed = _PASSED_SYMBOL.findall(body)
    for name in dict.fromkeys(declared):  # patterns begin with fixed text, which the search finds at once
        is_set = re.search(rf"{name}(?<=\b{name})\s*(?:\[[^\]]*\]\s*)*=[^=]", body) or re.search(
            rf"atomic(?<=\batomic)(?:Exch|Inc|CAS)\s*\(\s*&?\s*{name}\b", body
        )
        is_passed = any(re.search(rf"\b{name}\b", each) for each in passed)
        if not is_set and not is_passed and not re.search(rf"&(?<!&&)\s*{name}\b", without_atomics):
            yield name


@lru_cache(maxsize=4096)
def identifiers_in(text: bytes) -> frozenset[str]:
    """Return the names in a function's text. Results are cached, because most functions survive an edit."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", text.decode(errors="replace")))


@lru_cache(maxsize=8)
def type_parameters(text: str) -> frozenset[str]:
    """Return the names of types that are parameters of templates, and no other type's name in the text."""
    if "template" not in text:
        return frozenset()
    parameters = re.findall(r"\b(?:typename|class)\s+(\w+)\s*(?=[,>=])", text)
    return frozenset(parameters).difference(re.findall(r"\b(?:using\s+(?=\w+\s*=)|struct\s+)(\w+)", text))


_WORD_AT_END = re.compile(r"\b\w+\s*\Z")
MAX_WORD = 128


def assigned(value: re.Pattern[str], text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the matches of a pattern that begins with an operator, each with the name before. A pattern that begins
    with the name is tried at every word."""
    for found in value.finditer(text):
        name = _WORD_AT_END.search(text, max(0, found.start() - MAX_WORD), found.start())
        if name is not None:
            yield name[0].rstrip(), found


_TIMES_SIZEOF = re.compile(r"\*\s*sizeof\b")
_SIZEOF_TIMES = re.compile(r"\bsizeof\s*(?:\([^()]*\)|\w+)\s*\*\s*(\w+)\b(?!\s*(?:[.(\[]|->))")


@lru_cache(maxsize=8)
def counts_of_elements(text: str) -> frozenset[str]:
    """Return the names that a text multiplies with a `sizeof`, which comes before or after them."""
    before = {name for name, _ in assigned(_TIMES_SIZEOF, text)} if "sizeof" in text else set()
    return frozenset(before.union(_SIZEOF_TIMES.findall(text) if "sizeof" in text else ()))


_CONDITION = re.compile(r"\b(?:if|for|while|return|min)\b|\?")
_TAIL_CHECK = re.compile(
    r"\bif\s*\((?:[^;{}]*&&)?\s*(?:\d+\s*\*\s*)?(\w+)\s*(?:[*+]\s*\w+\s*)?(?:[*+]\s*\w+\s*)?(?:<=?|>=?)\s*\w+"
)
GRID_INDEX = re.compile(
    r"\b(?:blockIdx\.x\s*\*\s*blockDim\.x|blockDim\.x\s*\*\s*blockIdx\.x)\s*\+\s*threadIdx\.x\b"
    r"|\bthreadIdx\.x\s*\+\s*(?:blockIdx\.x\s*\*\s*blockDim\.x|blockDim\.x\s*\*\s*blockIdx\.x)\b"
)
"""The index of a thread across the grid."""


GRID_SIZE = re.compile(r"(?<![=!]=)(?<![=!]= )\bgridDim\b|\bgrid\w*\.(?:size|num_threads|num_blocks|dim_blocks)\(")
"""The size of a grid, in blocks or threads. A test for the last block is no loop."""


_COUNTED = re.compile(
    r"\bfor\s*\(\s*(?:unsigned\s+)?\w+\s+(\w+)\s*=\s*0\s*;\s*\1\s*<\s*\w+\s*;\s*(?:\+\+\1|\1\+\+)\s*\)"
)
"""A loop from 0, whose condition bounds no index across the grid."""


def is_unchecked(body: str) -> bool:
    index = GRID_INDEX.search(body)
    if index is None or _CONDITION.search(body) is None:
        return index is not None
    name = re.search(r"(\w+)\s*=[^;=]*\Z", body[: index.start()])
    is_subscript = name is not None and re.search(rf"\[[^\]]*\b{name[1]}\b", body) is not None
    return is_subscript and _CONDITION.search(_COUNTED.sub("", body)) is None


def checks_tail(body: str) -> bool:
    if "gridDim" in body or "blockIdx" not in body:
        return False
    checked = {match[1] for match in _TAIL_CHECK.finditer(body)}
    return any(re.search(rf"\b{name}\s*=\s*[^;]*\bblockIdx\b[^;]*\bthreadIdx\b", body) for name in checked) or any(
        re.search(rf"\b{name}\s*=\s*[^;]*\bthreadIdx\b[^;]*\bblockIdx\b", body) for name in checked
    )


def only_accumulates(body: str, name: str) -> bool:
    """Return whether a kernel changes an array by atomic sums alone: it sets no element, and passes it nowhere."""
    sums = rf"\batomic(?:Add|Or|Xor|Max|Min|Sub)\s*\(\s*&?\s*{name}\b"
    return re.search(sums, body) is not None and re.search(rf"\b{name}\b", re.sub(sums, "", body)) is None


def bytes_used(array: re.Match[str], body: str) -> int:
    """Return the bytes of an element of dynamic shared memory, of raw bytes those of the type they are cast to."""
    n_bytes = type_bytes(array[1]) or 0
    if n_bytes != 1:
        return n_bytes
    cast = re.search(rf"(?:reinterpret_cast<\s*(\w+)\s*\*\s*>\s*\(|\(\s*(\w+)\s*\*\s*\)\s*){array[2]}\b", body)
    return 1 if cast is None else type_bytes(cast[1] or cast[2]) or type_bytes("float") or 1


DEVICE_TEXT = re.compile(
    r"__device__(?![^;{}]*__global__)[^;{}]*?\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?\{([^{}\n]*(?=\})|.*?(?=^\}))",
    re.DOTALL | re.MULTILINE,
)
"""Macros that are one expression on one line."""
_ANY_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\(([^()\n]*)\))?[ \t]+((?:[^\\\n]|\\\r?\n|\\.)*)$", re.MULTILINE
)

_SMALLER = re.compile(r"[/%&]|>>|\[")
"""An index that is less than the thread's, or is loaded."""


def indexed(body: str, arrays: Iterable[str]) -> Iterator[int]:
    """Yield the places of the arrays that a kernel subscripts with the thread's index across the grid."""
    names = "|".join(re.findall(rf"(\w+)\s*=[^;=]*?(?:{GRID_INDEX.pattern})", body)) or r"\Z"
    names = rf"\b(?:{names})\b|{GRID_INDEX.pattern}"
    for place, array in enumerate(arrays):
        found = re.findall(rf"\b{array}\s*(?:\[([^\]]*)\]|\+([^()\[\];]*)\))", body)
        if any(re.search(names, index) and not _SMALLER.search(index) for both in found for index in both):
            yield place


Macro = tuple[tuple[str, ...] | None, str]
"""The parameters of a macro or function, None for a macro without any, and its text."""


def macros_of(text: str) -> dict[str, Macro]:
    """Return the macros of a file."""
    return {
        match[1]: (
            None if match[2] is None else tuple(each.strip() for each in match[2].split(",") if each.strip()),
            match[3].replace("\\\n", " ").split("//")[0].strip(),
        )
        for match in _ANY_MACRO.finditer(text)
    }


def grid_indices(known: Iterable[tuple[str, Macro]]) -> dict[str, str]:
    """Return the functions and macros without arguments that are the thread's index across the grid."""
    return {name: text for name, (given, text) in known if given == () and GRID_INDEX.search(text)}


def with_texts(body: str, texts: Mapping[str, str]) -> str:
    """Return a text with calls without arguments replaced by what they stand for."""
    for name, text in texts.items():
        body = re.sub(rf"\b{name}\s*\(\s*\)", text, body)
    return body
