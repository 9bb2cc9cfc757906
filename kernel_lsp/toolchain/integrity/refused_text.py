"""Constructs of CUDA text that are refused at their line: none of them has a use in an honest kernel.

`CONSTRUCTS` is the whole list. A row finds names at positions of a text whose line splices are resolved, and says why
they are refused and what to write instead. What macros and templates hide is refused in the PTX (`audit.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.source.cuda import device_functions
from kernel_lsp.toolchain.integrity.masking import kernel_at_line, mask_comments, mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import COMPILED_AS

SOURCE = "integrity"
ALLOWED_HEADER_FOLDERS = ("cub/", "cuda/", "cooperative_groups/", "nv/", "thrust/", "crt/")
ALLOWED_HEADERS = frozenset(
    (
        *("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "mma.h", "cooperative_groups.h"),
        *("cuda_runtime.h", "cuda_pipeline.h", "cuda_awbarrier.h", "cuComplex.h", "math_constants.h", "vector_types.h"),
        *("vector_functions.h", "device_launch_parameters.h", "device_functions.h", "sm_20_intrinsics.h", "cuda.h"),
        *("stdint.h", "cstdint", "stddef.h", "cstddef", "math.h", "cmath", "float.h", "cfloat", "limits.h", "climits"),
        *("limits", "type_traits", "utility", "array", "tuple", "assert.h", "cassert", "stdio.h", "cstdio", "string.h"),
        *("cstring", "stdlib.h", "cstdlib", "algorithm", "initializer_list"),
    )
)
BUILD_TIME = ("__TIME__", "__DATE__", "__TIMESTAMP__")
LOCATION = (
    *("__LINE__", "__FILE__", "__FILE_NAME__", "__BASE_FILE__", "__builtin_LINE", "__builtin_FILE"),
    *("__INCLUDE_LEVEL__", "source_location", "__builtin_source_location", "__builtin_COLUMN"),
)
COMPILERS = (
    *("__CUDACC_RTC__", "__NVCC__", "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__CUDACC_VER_BUILD__"),
    *("__CUDA_API_VER_MAJOR__", "__CUDA_API_VER_MINOR__", "CUDA_VERSION", "CUDART_VERSION", "__CUDART_API_VERSION"),
    *("CCCL_VERSION", "CCCL_MAJOR_VERSION", "CUB_VERSION", "CUB_MAJOR_VERSION", "THRUST_VERSION"),
    *("THRUST_MAJOR_VERSION", "_CCCL_CTK_AT_LEAST", "_CCCL_CTK_BELOW", "__has_builtin", "__VERSION__", "__GNUC__"),
    *("__GNUC_MINOR__", "__clang__", "__clang_major__", "_MSC_VER", "__NVCOMPILER", "__INTEL_COMPILER"),
)
"""Macros by which compilers and releases of CUDA differ. `__CUDA_ARCH__` is not one: a text is checked for each GPU."""
FILE_QUESTIONS = ("__has_include", "__has_include_next", "__has_embed")
CLOCKS = ("clock", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi")
MULTIPROCESSORS = ("smid", "nsmid", "warpid", "nwarpid", "gridid")
REPORTS = ("printf", "fprintf", "assert", "static_assert", "__assertfail", "__assert_fail")
"""Functions that may be given a source location."""

_PASTE = re.compile(r"##|%:%:|\?\?=\?\?=")
_WORD = re.compile(r"\w+", re.ASCII)
_INCLUDE = re.compile(
    r"^[ \t\v\f]*(?:\#|%:|\?\?=)[ \t\v\f]*(?P<name>include_next|include|import|embed)\b(?P<rest>[^\n]*)", re.MULTILINE
)
_ONLY_INCLUDES = re.compile(r"[^\n]*\n(?:[ \t]*(?:#[ \t]*include\b[^\n]*)?\n)*[ \t]*#[ \t]*endif\b")
_OPERAND = re.compile(r'[ \t\v\f]*\(?[ \t\v\f]*(?:<(?P<angle>[^>"\n]+)>|"(?P<quoted>[^"\n]+)")')
_EXISTENCE = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:ifdef|ifndef)\b|\bdefined\s*\(?\s*$", re.MULTILINE)
"""`#ifdef __has_include` tests for the feature, not for a file."""
_LINE_DIRECTIVE = re.compile(r"^[ \t\v\f]*(?:\#|%:|\?\?=)[ \t\v\f]*(?:line\b|[0-9])[^\n]*$", re.MULTILINE)
_SCOPE_OR_ASSEMBLY = re.compile(r"[{}]|\b(?:asm|__asm__|__asm)\b")
_NAMED_SCOPE = re.compile(r"(?:\bnamespace(?:\s+[\w:]+)?|\bextern)\s*$")
"""Precedes a brace that is not a function body: names in it are still at file scope. The `"C"` of `extern "C"` is
masked."""
_CALLEE = re.compile(r"(?<![\w.:>])(\w+)\s*$")
_REDEFINED = re.compile(rf"(?:\bdefine\s+|(?!return\b|else\b|do\b)\b\w+\s*[\s*&]\s*)(?:{'|'.join(REPORTS)})\b")
_MAX_HEAD_CHARACTERS = 200

Found = Iterator[tuple[str, int]]
"""Names, each at a position of the text."""


@dataclass(frozen=True)
class Construct:
    """A refused construct. `message` is completed with the name that was found. `in_extensions` rows also apply to the
    device functions of a text with host code."""

    code: str
    find: Callable[[str], Found]
    message: str
    severity: Severity = Severity.ERROR
    in_extensions: bool = False


@lru_cache(maxsize=4)
def source_findings(text: str, file_name: str = COMPILED_AS) -> tuple[Finding, ...]:
    """Return the refused constructs of a kernel's text, in every reading of it."""
    found: dict[tuple[int, str], Finding] = {}
    for reading in _readings(text):
        for construct in CONSTRUCTS:
            for finding in _findings(construct, reading, text, file_name):
                found.setdefault((finding.line or 0, finding.message), finding)
    return tuple(found.values())


def extension_findings(text: str, file_name: str) -> tuple[Finding, ...]:
    """Return the refused constructs in the device functions of a text with host code, which nvcc compiles."""
    spans = device_functions(text)
    found = (
        finding
        for construct in (*CONSTRUCTS, *DEVICE_CONSTRUCTS)
        if construct.in_extensions
        for finding in _findings(construct, text, text, file_name)
    )
    return tuple(f for f in found if any(first <= (f.line or 0) <= last for first, last in spans))


def is_allowed_header(name: str) -> bool:
    """Return True for a header of the toolkit, or a C or C++ header that we provide to the compiler."""
    parts = name.split("/")
    if ".." in parts or "." in parts or name.startswith("/"):
        return False
    return name in ALLOWED_HEADERS or name.startswith(ALLOWED_HEADER_FOLDERS)


def without_line_directives(text: str) -> str:
    """Blank the `#line` directives, since findings need true lines; one that spans several lines stays."""
    lines = text.split("\n")
    for _, position in _line_directives(text):
        number = text.count("\n", 0, position)
        if not lines[number].rstrip().endswith("\\"):
            lines[number] = ""
    return "\n".join(lines)


def _words(names: Iterable[str]) -> Callable[[str], Found]:
    pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")

    def find(reading: str) -> Found:
        return ((match[0], match.start()) for match in pattern.finditer(mask_literals(reading)))

    return find


def _registers(names: Iterable[str]) -> Callable[[str], Found]:
    """Find calls of intrinsics and registers in inline assembly, which is a literal."""
    called = re.compile(rf"\b(?:__)?(?:{'|'.join(names)})\s*\(\s*\)")
    register = re.compile(rf"%%(?:{'|'.join(names)})\b")

    def find(reading: str) -> Found:
        yield from ((match[0], match.start()) for match in called.finditer(mask_literals(reading)))
        yield from ((match[0][1:], match.start()) for match in register.finditer(mask_comments(reading)))

    return find


def _locations(reading: str) -> Found:
    """Find source locations, except whole arguments of a report."""
    code = mask_literals(reading)
    is_redefined = _REDEFINED.search(code) is not None
    for name, position in _words(LOCATION)(reading):
        if is_redefined or not _is_reported(code, position, position + len(name)):
            yield name, position


def _is_reported(code: str, start: int, end: int) -> bool:
    if code[:start].rstrip()[-1:] not in ("(", ",") or code[end:].lstrip()[:1] not in (")", ","):
        return False
    depth = 0
    for position in range(start - 1, -1, -1):
        if code[position] in ";{}":
            return False
        depth += {")": 1, "(": -1}.get(code[position], 0)
        if depth < 0:
            callee = _CALLEE.search(code, max(0, position - _MAX_HEAD_CHARACTERS), position)
            return callee is not None and callee[1] in REPORTS
    return False


def _compilers(reading: str) -> Found:
    """Find names of compilers, except in a condition that selects nothing but headers."""
    code = mask_literals(reading)
    for name, position in _words(COMPILERS)(reading):
        line = code.rfind("\n", 0, position) + 1
        is_condition = code[line:position].lstrip().startswith("#")
        if not is_condition or not _ONLY_INCLUDES.match(code, line):
            yield name, position


def _includes(reading: str) -> Found:
    for match in _INCLUDE.finditer(mask_comments(reading)):
        operand = _OPERAND.match(match["rest"])
        name = (operand["angle"] or operand["quoted"]) if operand else match["rest"].strip()
        if not (operand and match["name"] == "include" and is_allowed_header(name)):
            yield name, match.start()


def _file_questions(reading: str) -> Found:
    with_strings, code = mask_comments(reading), mask_literals(reading)
    for name, position in _words(FILE_QUESTIONS)(reading):
        line = code.rfind("\n", 0, position) + 1
        operand = _OPERAND.match(with_strings, position + len(name))
        asked = (operand["angle"] or operand["quoted"]) if operand else ""
        if not (_EXISTENCE.search(code[line:position]) or (asked and is_allowed_header(asked))):
            yield f"{name}({asked})", position


def _pasted_names(reading: str) -> Found:
    """Find refused names that `##` could form from words of the text."""
    code = mask_literals(reading)
    if paste := _PASTE.search(code):
        words = set(_WORD.findall(code))
        for name in (*BUILD_TIME, *FILE_QUESTIONS, *COMPILERS, *LOCATION):
            if name not in words and _is_made_of(name, words):
                yield name, paste.start()


def _is_made_of(name: str, words: set[str]) -> bool:
    """Return True when concatenated words spell the name."""
    ends = {0}
    for end in range(1, len(name) + 1):
        if any(start in ends and name[start:end] in words for start in range(end)):
            ends.add(end)
    return len(name) in ends


def _line_directives(reading: str) -> Found:
    return (("#line", match.start()) for match in _LINE_DIRECTIVE.finditer(mask_literals(reading)))


def _host_assembly(reading: str) -> Found:
    """Find assembly outside functions, classes and macros."""
    code, is_named = mask_literals(reading), list[bool]()
    for match in _SCOPE_OR_ASSEMBLY.finditer(code):
        if match[0] == "{":
            head = code[max(0, match.start() - _MAX_HEAD_CHARACTERS) : match.start()]
            is_named.append(_NAMED_SCOPE.search(head) is not None)
        elif match[0] == "}":
            del is_named[-1:]
        elif all(is_named) and not _is_in_a_directive(code, match.start()):
            yield match[0], match.start()


def _is_in_a_directive(code: str, position: int) -> bool:
    return code[code.rfind("\n", 0, position) + 1 : position].lstrip().startswith(("#", "%:", "??="))


CONSTRUCTS = (
    Construct(
        "include-outside-toolkit",
        _includes,
        "a kernel includes only headers of the CUDA toolkit, by name, and '{}' is not one of them",
    ),
    Construct(
        "asks-for-a-file", _file_questions, "`{}` depends on the machine's files: test headers of the CUDA toolkit only"
    ),
    Construct(
        "depends-on-build-time",
        _words(BUILD_TIME),
        "`{}` compiles differently in every build: remove it",
        in_extensions=True,
    ),
    Construct(
        "depends-on-location",
        _locations,
        "`{}` compiles differently in another file: pass it to printf or assert only",
        in_extensions=True,
    ),
    Construct(
        "depends-on-compiler",
        _compilers,
        "`{}` compiles differently with another compiler or CUDA release: write one version for all",
        in_extensions=True,
    ),
    Construct(
        "pastes-a-name", _pasted_names, "`##` can form the refused name `{}` from words of this text: rename them"
    ),
    Construct(
        "host-assembly",
        _host_assembly,
        "`{}` outside of a function is host assembly: move it into a device function",
    ),
    Construct(
        "line-directive",
        _line_directives,
        "`{}` is ignored: findings name the lines of this file",
        severity=Severity.WARNING,
    ),
)
DEVICE_CONSTRUCTS = (
    Construct(
        "reads-a-clock", _registers(CLOCKS), "`{}` reads a clock: a result may not depend on time", in_extensions=True
    ),
    Construct(
        "depends-on-place",
        _registers(MULTIPROCESSORS),
        "`{}` depends on where a block runs: use blockIdx and threadIdx",
        in_extensions=True,
    ),
)
"""Rows for an extension's text, whose PTX is not read. For kernels `audit.py` has them."""


def _findings(construct: Construct, reading: str, text: str, file_name: str) -> Iterator[Finding]:
    for name, position in construct.find(reading):
        line = reading.count("\n", 0, position) + 1
        yield Finding(
            code=construct.code,
            severity=construct.severity,
            message=construct.message.format(name),
            source=SOURCE,
            file=file_name,
            line=line,
            kernel=kernel_at_line(text, line),
        )


def _readings(text: str) -> Iterable[str]:
    """Return the text as different compilers may read it: they disagree on a backslash before blanks, trigraphs and
    lone carriage returns."""
    text = text.removeprefix("\ufeff")
    as_lines = text.replace("\r\n", "\n")
    ends = dict.fromkeys((as_lines, as_lines.replace("\r", "\n")))
    return dict.fromkeys(_splice(reading, how) for reading in ends for how in (_continues_exactly, _continues))


def _splice(text: str, continues: Callable[[str], bool]) -> str:
    """Resolve line splices, preserving the number of lines: a directive moves to its first line."""
    lines = text.split("\n")
    spliced: list[str] = []
    index = 0
    while index < len(lines):
        line, n_joined = lines[index], 0
        while continues(line) and index + n_joined + 1 < len(lines):
            n_joined += 1
            line = _without_continuation(line) + lines[index + n_joined]
        spliced += [line] + [""] * n_joined
        index += n_joined + 1
    return "\n".join(spliced)


def _continues_exactly(line: str) -> bool:
    return line.endswith("\\")


def _continues(line: str) -> bool:
    return line.rstrip().endswith(("\\", "??/"))


def _without_continuation(line: str) -> str:
    return line.rstrip().removesuffix("??/").removesuffix("\\")
