"""The integrity gate: reject forbidden constructs in a candidate's text and PTX before it runs.

A finding of severity error rejects the candidate. Files that the compiler would open are checked in the text;
everything else in the PTX, after macros and templates are expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import Built
from kernel_lsp.process.gc_pause import paused_collection
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.integrity.address_data import uses_as_data
from kernel_lsp.toolchain.integrity.device_state import (
    CLOCK_REGISTERS,
    WORKSPACE_REGISTERS,
    functions_that_only_pace_waits,
    functions_with_only_a_grid_barrier,
    written_variables,
)
from kernel_lsp.toolchain.integrity.masking import kernel_at_line, mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import (
    COMPILED_AS,
    Function,
    OncePerCode,
    Place,
    PtxText,
    Statement,
    read_ptx,
)
from kernel_lsp.toolchain.integrity.refused_text import SOURCE, source_findings

KNOWN_FUNCTIONS = frozenset(("vprintf", "__assertfail"))
LIBDEVICE_PREFIX = "__nv_"


@dataclass(frozen=True)
class RefusedRegister:
    """Special registers that no honest kernel reads, by prefix. `why` completes "it reads %smid: ..."."""

    code: str
    prefixes: tuple[str, ...]
    why: str


REGISTERS = (
    RefusedRegister("reads-a-clock", CLOCK_REGISTERS, "a result may not depend on time"),
    RefusedRegister(
        "tells-launches-apart",
        ("%gridid", "%current_graph_exec", "%envreg"),
        "a result may not depend on which launch it is",
    ),
    RefusedRegister(
        "depends-on-place",
        ("%smid", "%nsmid", "%warpid", "%nwarpid"),
        "a result may not depend on where a block runs; blockIdx and threadIdx number its work",
    ),
    RefusedRegister(
        "depends-on-place",
        ("%total_smem_size", "%aggr_smem_size"),
        "allocated shared memory is rounded up differently on each GPU; pass the size as an argument",
    ),
)
"""The waits of libcu++ may read a clock to sleep, and the barrier of a cooperative grid the driver's workspace."""
REFUSED_PREFIXES = tuple(prefix for row in REGISTERS for prefix in row.prefixes)
_MAY_BE_REFUSED = re.compile("|".join(map(re.escape, REFUSED_PREFIXES)))
"""Statements whose names are worth reading: few of a network's million."""
ADDRESS_USES = "only alignments of up to 128 bytes, null tests and comparisons of addresses may decide a result"
NOWHERE = Place(None, None)

_EXTERN_FUNCTION = re.compile(r"\.extern\s+\.func\s*(?:\([^)]*\))?\s*(?P<name>[\w$]+)")
_KERNEL_NAME = re.compile(r"^(?:static_cast<.*>\()?(?:::)?(?P<name>[\w:]+)")
_F64_ARITHMETIC = re.compile(r"(?:add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt|min|max)\.(?:\w+\.)*f64\b")
_MAY_BE_F64 = re.compile(r"\b(?:double|float64_t|sinf?|cosf?|tanf?|sincosf?|sinpif?|cospif?)\b")
"""Double precision in the text, and functions whose argument reduction in CUDA uses it."""
_REDUCED_PRODUCT = re.compile(r"(?:mma\.sync|wmma\.mma|wgmma\.mma)(?!\S*\.(?:f64|s32))")

N_KEPT = 32
"""Audited builds that are kept: a candidate is audited again for each variant of its task."""
Symbols = tuple[tuple[str, str], ...]
"""Launched names with their symbols."""


def audit(text: str, built: Built) -> tuple[Finding, ...]:
    """Return all findings of the gate on a compiled text. An error rejects it.

    Errors: headers from outside the toolkit, variables in device memory that keep state between launches, calls to
    functions that are not in the text, clocks, and launched names that were not compiled. Warnings: printing, sleeping.
    Information: double-precision arithmetic without a `double` in the text, matrix products in reduced precision.
    """
    with paused_collection():
        return _audited(text, built.ptx, tuple(built.symbols.items()))


@lru_cache(maxsize=N_KEPT)
def _audited(text: str, compiled: str, symbols: Symbols) -> tuple[Finding, ...]:
    ptx = read_ptx(compiled)
    found = [
        *source_findings(text),
        *_missing_kernels(ptx, symbols),
        *_outside_calls(ptx),
        *(_state_finding(variable, place) for variable, place in written_variables(ptx)),
        *_instruction_findings(ptx),
        *_address_findings(ptx, text, symbols),
        *_precision_findings(ptx, text),
    ]
    names = {symbol: name for name, symbol in symbols}
    return tuple(_located(finding, text, names) for finding in found)


def _missing_kernels(ptx: PtxText, symbols: Symbols) -> Iterator[Finding]:
    for name, symbol in symbols:
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
    for statement in (each.body[nth] for each in ptx.functions.values() for nth in _conspicuous(each)):
        names = statement.names - WORKSPACE_REGISTERS if statement.function in with_barrier else statement.names
        if statement.function in with_waits:
            names = frozenset(name for name in names if not name.startswith(CLOCK_REGISTERS))
        if refused := next(_refused_registers(names), None):
            yield _error(*refused, statement.place)
        elif statement.opcode.startswith("nanosleep") and statement.function not in with_waits:
            yield _warning("sleeps", "it sleeps", statement.place)
        elif statement.opcode.startswith("call") and "vprintf" in names:
            yield _warning("prints", "it prints, which costs time in every launch", statement.place)


@OncePerCode
def _conspicuous(function: Function) -> tuple[int, ...]:
    """Return the positions of statements that name a refused register, sleep or call."""
    return tuple(
        nth
        for nth, each in enumerate(function.body)
        if each.opcode.startswith(("nanosleep", "call"))
        or (_MAY_BE_REFUSED.search(each.text) and any(name.startswith(REFUSED_PREFIXES) for name in each.names))
    )


def _refused_registers(names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield code and message of each refused register among the names."""
    if not any(name.startswith(REFUSED_PREFIXES) for name in names):
        return
    for row in REGISTERS:
        for name in sorted(name for name in names if name.startswith(row.prefixes)):
            yield row.code, f"it reads {name}: {row.why}"


def _address_findings(ptx: PtxText, text: str, symbols: Symbols) -> Iterator[Finding]:
    """Return one finding per pointer parameter whose address a kernel computes with."""
    signatures, functions = kernel_signatures(text), ptx.functions
    for name, symbol in symbols:
        called = _KERNEL_NAME.search(name)
        for signature in (each for each in signatures if called and each.name == called["name"]):
            pointers = [nth for nth, parameter in enumerate(signature.parameters) if parameter.is_pointer]
            for nth, place in uses_as_data(functions[symbol], pointers) if symbol in functions else ():
                message = f"it computes with the address of '{signature.parameters[nth].name}': {ADDRESS_USES}"
                yield _error("address-as-data", message, place).model_copy(update={"kernel": name})


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


def _located(finding: Finding, text: str, names: Mapping[str, str]) -> Finding:
    """Add the file, and replace the symbol by the kernel's name."""
    kernel = names.get(finding.kernel, finding.kernel) if finding.kernel else None
    if kernel is None and finding.line is not None:
        kernel = kernel_at_line(text, finding.line)
    return finding.model_copy(update={"file": COMPILED_AS, "kernel": kernel})
