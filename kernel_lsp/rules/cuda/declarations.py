"""Read declarations from the text of a file: structures, arrays, dynamic shared memory, allocations, bindings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kernel_lsp.rules.cuda.kernel_texts import assigned

Sized = tuple[str, tuple[str, ...]]
"""The type of an array's elements, and the texts of its sizes."""
_ALLOCATED = re.compile(
    r"\b(?:(?P<device>cudaMalloc(?:Async)?)|cudaMallocHost|cudaHostAlloc)\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?"
    r"&\s*(?:\w+\s*(?:\.|->)\s*)*(?P<name>\w+)\b"
)
_MADE_ON_HOST = re.compile(
    r"=\s*(?:\([^()]*\)\s*|static_cast\s*<[^<>]*>\s*\(\s*)?(?:std::)?(?:malloc|calloc|aligned_alloc)\s*\("
)
BOUND = re.compile(r"\b(?:def|impl)\s*\(\s*\"[^\"]*\"\s*,\s*(?:torch::wrap_pybind_function\()?&?\s*(?:\w+::)*(\w+)")
TAKES_TENSOR = re.compile(r"\b(\w+)\s*\(\s*(?:const\s+)?(?:torch|at)::Tensor\b")
_SHORTENED = re.compile(r"<<<[^;]*?>>>\s*\([^;]*-\s*\d+[^;]*\)\s*;")
_KERNEL_BEFORE = re.compile(r"\b(\w+)\s*(?:<[^<>;]*>)?\s*\Z")
MAX_KERNEL_CHARACTERS = 512
SYMBOL = re.compile(
    r"^[ \t]*(?:static\s+)?__(?:constant|device)__\s[^;(){}=\n]*?\b(\w+)\s*(?:\[[^;{}=\n]*)?\s*[;={]", re.MULTILINE
)
DEVICE_VARIABLE = re.compile(r"^[ \t]*(?:static\s+)?__device__\s[^;(){}=\n\[]*?\b(\w+)\s*[;=]", re.MULTILINE)
_CONSTANT_ARRAY = re.compile(r"__constant__\s+(?:const\s+)?([A-Za-z_][\w:]*)\s+(\w+)\s*((?:\[[^\[\];]+\])+)\s*[;={]")
DYNAMIC_SHARED = re.compile(r"\bextern\s+(?:__align__\([^)]*\)\s*)?__shared__\s+([\w:\s]+?)\s+(\w+)\s*\[\s*\]")
DYNAMIC_SHARED_OF_FILE = re.compile(DYNAMIC_SHARED.pattern.replace(r"\bextern", r"^extern"), re.MULTILINE)

WIDE_CONSTANT = re.compile(
    r"\b(?:(?:std::)?(?:size_t|u?int64_t|ptrdiff_t)|long(?:\s+int)?)\s+(\w+)\s*(?:=|\{)"
    r"|^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?\d+[uU]?[lL]+[uU]?\b",
    re.MULTILINE,
)
"""A constant of 64 bits: its declaration or definition."""


def allocated(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pointers that the text allocates, each with its side, ``device`` or ``host``."""
    yield from ((match["name"], "device" if match["device"] else "host") for match in _ALLOCATED.finditer(text))
    yield from ((name, "host") for name, _ in assigned(_MADE_ON_HOST, text))


def dynamic_shared(body: str, outside: Iterable[re.Match[str]]) -> re.Match[str] | None:
    """Return the declaration of dynamic shared memory in a kernel, or outside of it if the kernel names it."""
    found = DYNAMIC_SHARED.search(body) if "extern" in body else None
    return found or next((each for each in outside if re.search(rf"\b{each[2]}\b", body)), None)


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
