"""Read declarations from the text of a file: structures, arrays, dynamic shared memory, allocations, bindings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from kernel_lsp.rules.cuda.variables import type_bytes

Sized = tuple[str, tuple[str, ...]]
"""The type of an array's elements, and the texts of its sizes."""
ALLOCATED = re.compile(
    r"\b(?:(?P<device>cudaMalloc(?:Async)?)|cudaMallocHost|cudaHostAlloc)\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?"
    r"&\s*(?:this\s*->\s*)?(?P<name>\w+)\b"
)
BOUND = re.compile(r"\b(?:def|impl)\s*\(\s*\"[^\"]*\"\s*,\s*(?:torch::wrap_pybind_function\()?&?\s*(?:\w+::)*(\w+)")
TAKES_TENSOR = re.compile(r"\b(\w+)\s*\(\s*(?:const\s+)?(?:torch|at)::Tensor\b")
STRUCTURE = re.compile(r"\bstruct\s+(?:(?:alignas|__align__)\s*\([^)]*\)\s*)?(\w+)\s*\{")
MEMBER_POINTER = re.compile(
    r"^[ \t]*([a-z_][\w:]*(?: (?:int|char|long))?)\s*\*\s*(\w+)\s*(?:=\s*(?:nullptr|NULL|0)|\{\w*\})?;", re.MULTILINE
)
_SHORTENED = re.compile(r"<<<[^;]*?>>>\s*\([^;]*-\s*\d+[^;]*\)\s*;")
_KERNEL_BEFORE = re.compile(r"\b(\w+)\s*(?:<[^<>;]*>)?\s*\Z")
MAX_KERNEL_CHARACTERS = 512
SYMBOL = re.compile(
    r"^[ \t]*(?:static\s+)?__(?:constant|device)__\s[^;(){}=\n]*?\b(\w+)\s*(?:\[[^;{}=\n]*)?\s*[;={]", re.MULTILINE
)
MEMBER_INTEGER = re.compile(
    r"^[ \t]*(?:const\s+)?(?:std::)?(?:size_t|int|unsigned|u?int(?:32|64)_t)\s+(\w+_)\s*(?:=[^;]*|\{\w*\})?;",
    re.MULTILINE,
)
_STRUCTURE_BODY = re.compile(r"\bstruct\s+(?:(?:alignas|__align__)\s*\([^)]*\)\s*)?(\w+)\s*\{([^{}]*)\}")
_ARRAY = re.compile(r"\b([A-Za-z_][\w:]*)\s+(\w+)\s*((?:\[[^\[\];]+\])+)\s*;")
_CONSTANT_ARRAY = re.compile(r"__constant__\s+(?:const\s+)?([A-Za-z_][\w:]*)\s+(\w+)\s*((?:\[[^\[\];]+\])+)\s*[;={]")
DYNAMIC_SHARED = re.compile(r"\bextern\s+(?:__align__\([^)]*\)\s*)?__shared__\s+([\w:\s]+?)\s+(\w+)\s*\[\s*\]")
DYNAMIC_SHARED_OF_FILE = re.compile(DYNAMIC_SHARED.pattern.replace(r"\bextern", r"^extern"), re.MULTILINE)


def dynamic_shared(body: str, outside: Iterable[re.Match[str]]) -> re.Match[str] | None:
    """Return the declaration of dynamic shared memory in a kernel, or outside of it if the kernel names it."""
    found = DYNAMIC_SHARED.search(body) if "extern" in body else None
    return found or next((each for each in outside if re.search(rf"\b{each[2]}\b", body)), None)


def structure_arrays(text: str) -> dict[tuple[str, str], Sized]:
    """Return the arrays that are members of structures, by structure and name."""
    found = (
        (structure[1], member)
        for structure in _STRUCTURE_BODY.finditer(text)
        for member in _ARRAY.finditer(structure[2])
    )
    return {(structure, member[2]): _sized(member) for structure, member in found}


def structure_bytes(text: str) -> dict[str, int]:
    """Return the bytes of structures whose members are all of builtin types."""
    found: dict[str, int] = {}
    for structure in _STRUCTURE_BODY.finditer(text) if "__global__" in text else ():
        members = [member.strip() for member in re.sub(r"//[^\n]*", "", structure[2]).split(";") if member.strip()]
        sizes = [_member_bytes(member) for member in members]
        if sizes and all(sizes):
            found[structure[1]] = sum(sizes)
    return found


def shortened(text: str) -> Iterator[str]:
    """Yield the kernels that a launch passes a difference such as ``n - 1``."""
    for launch in _SHORTENED.finditer(text):
        kernel = _KERNEL_BEFORE.search(text, max(0, launch.start() - MAX_KERNEL_CHARACTERS), launch.start())
        if kernel is not None:
            yield kernel[1]


def constant_arrays(text: str) -> dict[str, Sized]:
    """Return the arrays in constant memory by name."""
    return {found[2]: _sized(found) for found in _CONSTANT_ARRAY.finditer(text)}


def _sized(declared: re.Match[str]) -> Sized:
    return declared[1], tuple(re.findall(r"\[([^\[\]]*)\]", declared[3]))


def _member_bytes(member: str) -> int:
    """Return the bytes of ``float x, y[4]``; 0 for a type that is not builtin."""
    declared = re.fullmatch(r"((?:unsigned\s+|const\s+)?[A-Za-z_]\w*)\s+([\w\s,\[\]]+)", member)
    n_bytes = None if declared is None else type_bytes(declared[1])
    if declared is None or n_bytes is None:
        return 0
    counts = [[int(each) for each in re.findall(r"\[\s*(\d+)\s*\]", name)] for name in declared[2].split(",")]
    return n_bytes * sum(math.prod(each) for each in counts)
