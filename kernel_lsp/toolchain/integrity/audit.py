"""The integrity gate: reject forbidden constructs in a candidate's text and PTX before it runs.

A finding of severity error rejects the candidate. Files that the compiler would open are checked in the text;
everything else in the PTX, after macros and templates are expanded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.build_dependence import build_dependences
from kernel_lsp.toolchain.integrity.device_state import written_variables
from kernel_lsp.toolchain.integrity.grid_workspace import (
    WORKSPACE_REGISTERS,
    functions_with_only_a_grid_barrier,
)
from kernel_lsp.toolchain.integrity.line_directives import line_directives
from kernel_lsp.toolchain.integrity.masking import kernel_at_line, mask_comments, mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import Place, PtxText, Statement, read_ptx
from kernel_lsp.toolchain.integrity.waiting_clocks import CLOCK_REGISTERS, functions_that_only_pace_waits

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

KNOWN_FUNCTIONS = frozenset(("vprintf", "__assertfail"))
LIBDEVICE_PREFIX = "__nv_"
LAUNCH_REGISTERS = ("%gridid", "%current_graph_exec", "%envreg")
"""These differ between launches of a kernel, so they could distinguish a check from a timed call."""
PLACE_REGISTERS = ("%smid", "%nsmid", "%nwarpid")
"""Registers that reveal where a block runs."""
SLOT_REGISTER = "%warpid"
"""May change while a warp runs (PTX ISA 9.0, special registers), and is not the warp's index in its block."""
LINE_DIRECTIVE = "a line directive is left out when this is compiled: findings name the lines of the file as it is"
NOWHERE = Place(None, None)

_EXTERN_FUNCTION = re.compile(r"\.extern\s+\.func\s*(?:\([^)]*\))?\s*(?P<name>[\w$]+)")
_F64_ARITHMETIC = re.compile(r"(?:add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt|min|max)\.(?:\w+\.)*f64\b")
_MAY_BE_F64 = re.compile(r"\b(?:double|float64_t|sinf?|cosf?|tanf?|sincosf?|sinpif?|cospif?)\b")
"""Double precision in the text, and functions whose argument reduction in CUDA uses it."""
_REDUCED_PRODUCT = re.compile(r"(?:mma\.sync|wmma\.mma|wgmma\.mma)(?!\S*\.(?:f64|s32))")
_DIRECTIVE = re.compile(
    r"^[ \t\v\f]*(?:\#|%:|\?\?=)[ \t\v\f]*(?P<name>include_next|include|import|embed)\b(?P<rest>[^\n]*)", re.MULTILINE
)
_OPERAND = re.compile(r'^[ \t\v\f]*(?:<(?P<angle>[^>"\n]+)>|"(?P<quoted>[^"\n]+)")')


@lru_cache(maxsize=4)
def source_findings(text: str, file_name: str = "kernel.cu") -> tuple[Finding, ...]:
    """Report files that the compiler would read, and constructs that compile differently elsewhere: anything but the
    toolkit's own headers is an error."""
    found: dict[tuple[int | None, str], Finding] = {}
    for reading in _readings(text):
        for finding in _include_findings(mask_comments(reading), text, file_name):
            found.setdefault((finding.line, finding.message), finding)
        for found_here in build_dependences(reading, is_allowed_header):
            finding = _error(found_here.code, found_here.message, Place(found_here.line, None))
            finding = finding.model_copy(update={"file": file_name, "kernel": kernel_at_line(text, found_here.line)})
            found.setdefault((finding.line, finding.message), finding)
        for line in line_directives(reading):
            finding = _warning("line-directive", LINE_DIRECTIVE, Place(line, None)).model_copy(
                update={"file": file_name}
            )
            found.setdefault((line, LINE_DIRECTIVE), finding)
    return tuple(found.values())


def is_allowed_header(name: str) -> bool:
    """Return True for a header of the toolkit, or a C or C++ header that we provide to the compiler."""
    parts = name.split("/")
    if ".." in parts or "." in parts or name.startswith("/"):
        return False
    return name in ALLOWED_HEADERS or name.startswith(ALLOWED_HEADER_FOLDERS)


def audit(text: str, built: Built, file_name: str = "kernel.cu") -> tuple[Finding, ...]:
    """Return all findings of the gate on a compiled text. An error rejects it.

    Errors: headers from outside the toolkit, variables in device memory that keep state between launches, calls to
    functions that are not in the text, clocks, and launched names that were not compiled. Warnings: printing, sleeping.
    Information: double-precision arithmetic without a `double` in the text, matrix products in reduced precision.
    """
    ptx = read_ptx(built.ptx, file_name)
    found = [
        *source_findings(text, file_name),
        *_missing_kernels(ptx, built),
        *_outside_calls(ptx),
        *(_state_finding(variable, place) for variable, place in written_variables(ptx)),
        *_instruction_findings(ptx),
        *_precision_findings(ptx, text),
    ]
    names = {symbol: name for name, symbol in built.symbols.items()}
    return tuple(_located(finding, text, file_name, names) for finding in found)


@dataclass(frozen=True)
class ApproximateInstruction:
    """Count of an approximate instruction, such as ``ex2.approx.ftz.f32``, in a kernel's PTX."""

    kernel: str
    instruction: str
    n: int


def approximate_instructions(built: Built) -> tuple[ApproximateInstruction, ...]:
    """Return the approximate instructions of each kernel and of its functions, most frequent first."""
    names = {symbol: name for name, symbol in built.symbols.items()}
    counts = Counter(
        (statement.function, statement.opcode)
        for statement in read_ptx(built.ptx, "").statements
        if ".approx" in statement.opcode
    )
    return tuple(
        ApproximateInstruction(names.get(function, function), opcode, n)
        for (function, opcode), n in counts.most_common()
    )


# --- below: what the text includes


def _include_findings(code: str, text: str, file_name: str) -> Iterator[Finding]:
    for match in _DIRECTIVE.finditer(code):
        operand = _OPERAND.match(match["rest"])
        name = (operand["angle"] or operand["quoted"]) if operand else match["rest"].strip()
        if operand and match["name"] == "include" and is_allowed_header(name):
            continue
        line = code.count("\n", 0, match.start()) + 1
        message = f"a kernel includes only headers of the CUDA toolkit, by name, and '{name}' is not one of them"
        finding = _error("include-outside-toolkit", message, Place(line, None))
        yield finding.model_copy(update={"file": file_name, "kernel": kernel_at_line(text, line)})


def _readings(text: str) -> Iterable[str]:
    """Return the text as different compilers may read it: they disagree on a backslash before blanks, trigraphs and
    lone carriage returns. Whatever any of them would open is checked."""
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


# --- below: what the PTX does


def _missing_kernels(ptx: PtxText, built: Built) -> Iterator[Finding]:
    for name, symbol in built.symbols.items():
        if symbol not in ptx.entries:
            yield _error("no-such-kernel", f"'{name}' is not a kernel of this text", NOWHERE)


def _outside_calls(ptx: PtxText) -> Iterator[Finding]:
    for statement in ptx.statements:
        declared = _EXTERN_FUNCTION.search(statement.text)
        if declared and not _is_known_function(declared["name"]):
            name = declared["name"]
            yield _error("calls-outside", f"it calls '{name}', which is not in the text", _first_call(ptx, name))


def _is_known_function(name: str) -> bool:
    return name in KNOWN_FUNCTIONS or name.startswith(LIBDEVICE_PREFIX)


def _first_call(ptx: PtxText, name: str) -> Place:
    calls = (s for s in ptx.statements if s.opcode.startswith("call") and name in s.names)
    return next((call.place for call in calls), NOWHERE)


def _instruction_findings(ptx: PtxText) -> Iterator[Finding]:
    with_barrier, with_waits = functions_with_only_a_grid_barrier(ptx), functions_that_only_pace_waits(ptx)
    for statement in ptx.statements:
        names = statement.names - WORKSPACE_REGISTERS if statement.function in with_barrier else statement.names
        if statement.function in with_waits and (statement.opcode.startswith("nanosleep") or _reads_clock(names)):
            continue
        if clocks := _reads_clock(names):
            yield _error("reads-a-clock", f"it reads {clocks[0]}: a result may not depend on time", statement.place)
        elif launches := sorted(name for name in names if name.startswith(LAUNCH_REGISTERS)):
            message = f"it reads {launches[0]}: a result may not depend on which launch it is"
            yield _error("tells-launches-apart", message, statement.place)
        elif SLOT_REGISTER in names:
            message = (
                f"it reads {SLOT_REGISTER}, which may change at any time: threadIdx says which warp of a block it is"
            )
            yield _error("depends-on-place", message, statement.place)
        elif places := sorted(name for name in names if name.startswith(PLACE_REGISTERS)):
            message = f"it reads {places[0]}: a result may not depend on where a block runs"
            yield _warning("depends-on-place", message, statement.place)
        elif statement.opcode.startswith("nanosleep"):
            yield _warning("sleeps", "it sleeps", statement.place)
        elif statement.opcode.startswith("call") and "vprintf" in names:
            yield _warning("prints", "it prints, which costs time in every launch", statement.place)


def _reads_clock(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(CLOCK_REGISTERS))


def _precision_findings(ptx: PtxText, text: str) -> Iterator[Finding]:
    if not _MAY_BE_F64.search(mask_literals(text)):
        yield from _first_of_each(ptx, _F64_ARITHMETIC, "f64-arithmetic", "it computes in double precision")
    message = "a matrix product of operands in reduced precision"
    yield from _first_of_each(ptx, _REDUCED_PRODUCT, "reduced-precision-product", message)


def _first_of_each(ptx: PtxText, opcode: re.Pattern[str], code: str, message: str) -> Iterator[Finding]:
    """Return one finding per function with such an instruction, at the first one, with their count."""
    by_function: dict[str, list[Statement]] = {}
    for statement in ptx.statements:
        if opcode.match(statement.opcode):
            by_function.setdefault(statement.function, []).append(statement)
    for function, statements in by_function.items():
        first = statements[0]
        full = f"{message} ({first.opcode}, {len(statements)} instructions)"
        finding = _finding(code, Severity.INFORMATION, full, first.place)
        yield finding.model_copy(update={"kernel": function, "n_occurrences": len(statements)})


# --- below: findings


def _state_finding(variable: str, place: Place) -> Finding:
    message = (
        f"'{_plain_name(variable)}' keeps state between launches: a variable in device memory that is written; what a "
        "launch begins with is a `// scratch:` tensor with a `// fill:`, which each call has for itself"
    )
    return _error("keeps-state", message, place)


def _plain_name(symbol: str) -> str:
    """Return the last name in a mangled symbol: ``c`` of ``_ZZ1kPfE1c``."""
    if not symbol.startswith("_Z"):
        return symbol
    lengths = re.finditer(r"\d+", symbol)
    return next((symbol[m.end() :] for m in lengths if int(m[0]) == len(symbol) - m.end()), symbol)


def _error(code: str, message: str, place: Place) -> Finding:
    return _finding(code, Severity.ERROR, message, place)


def _warning(code: str, message: str, place: Place) -> Finding:
    return _finding(code, Severity.WARNING, message, place)


def _finding(code: str, severity: Severity, message: str, place: Place) -> Finding:
    return Finding(code=code, severity=severity, message=message, source=SOURCE, line=place.line, column=place.column)


def _located(finding: Finding, text: str, file_name: str, names: Mapping[str, str]) -> Finding:
    """Add the file, and replace the symbol by the kernel's name."""
    kernel = names.get(finding.kernel, finding.kernel) if finding.kernel else None
    if kernel is None and finding.line is not None:
        kernel = kernel_at_line(text, finding.line)
    return finding.model_copy(update={"file": file_name, "kernel": kernel})
