"""Parse the output of NVRTC and ptxas into findings and facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kernel_lsp.core.finding import Finding, RelatedPlace, Severity
from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.toolchain.integrity.masking import kernel_at_line, mask_comments
from kernel_lsp.toolchain.integrity.ptx_text import Place, place_of, user_file_numbers

MAX_FINDINGS = 100
STATIC_SHARED_BYTES_LIMIT = 48 << 10  # CUDA C++ Programming Guide, compute capabilities: static shared memory per block
NAME_MAP_FILE = "__nv_name_map"
"""File name in NVRTC's errors about a name expression."""

_HEADING = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): "
    r"(?P<kind>(?:catastrophic |internal )?error|warning|remark)(?: #(?P<number>[\w-]+))?: (?P<message>.*)$"
)
_BARE = re.compile(r"^nvrtc: (?P<kind>error|warning): (?P<message>.*)$")
_CONTEXT = re.compile(r"^\s+(?:detected (?:during|at)|instantiation of|processing of|\[ |required from)")
_INSTANTIATED_AT = re.compile(r"at line (?P<line>\d+)(?: of (?P<file>\S+))?")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](?P<name>[^>"\n]+)[>"]', re.MULTILINE)
_PTXAS_LINE = re.compile(r"^ptxas [^,]*, line (?P<line>\d+); (?P<kind>error|warning)\s*: (?P<message>.*)$")
_PTXAS_BARE = re.compile(r"^ptxas (?P<kind>error|warning|fatal)\s*: (?P<message>.*)$")
_PTXAS_FOLLOW_UP = "Ptx assembly aborted"
_ENTRY = re.compile(r"Compiling entry function '(?P<symbol>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for '?(?P<symbol>[\w.$]+)'?")
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<bytes>\d+)(?:\+\d+)? bytes smem")


def compiler_findings(
    log: str, text: str, file_name: str, include_directories: Sequence[Path] = ()
) -> tuple[Finding, ...]:
    """Return NVRTC's errors, warnings and remarks about `text`, in order, at most `MAX_FINDINGS`.

    A message about a header is assigned to the user's line that includes it, with the header's location in the
    message.
    """
    place = _Place(text, file_name, tuple(f"{directory}/" for directory in include_directories))
    findings = _without_repeats(_finding(diagnostic, place) for diagnostic in _diagnostics(log))
    return tuple(findings)[:MAX_FINDINGS]


def assembler_findings(
    log: str, ptx: str, text: str, file_name: str, kernels: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return ptxas's errors and warnings, with the source line of each PTX line. `kernels`: symbol -> name."""
    findings = list(_assembler_lines(log, ptx, text, file_name, kernels))
    for facts in kernel_facts(log, kernels):
        if facts.shared_bytes > STATIC_SHARED_BYTES_LIMIT:
            findings.append(_too_much_shared(facts, file_name))
    return tuple(_without_repeats(findings))[:MAX_FINDINGS]


def kernel_facts(log: str, kernels: Mapping[str, str]) -> tuple[KernelFacts, ...]:
    """Parse ptxas's ``-v`` lines, per entry. `kernels` maps symbols to name expressions."""
    entries: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            current = entries.setdefault(match["symbol"], {})
        elif match := _PROPERTIES.search(line):
            current = entries.get(match["symbol"], {})
        elif match := _STACK.search(line):
            current.update({name: int(value) for name, value in match.groupdict().items()})
        elif match := _USED.search(line):
            current["registers"] = int(match["registers"])
            shared = _SHARED.search(line)
            current["shared"] = int(shared["bytes"]) if shared else 0
    return tuple(_facts(symbol, _name(symbol, kernels), numbers) for symbol, numbers in entries.items())


@dataclass(frozen=True)
class _Diagnostic:
    """A heading with its following lines: the source line, a caret under it, and the template instantiations."""

    file: str
    line: int
    kind: str
    number: str | None
    message: str
    following: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    text: str
    file_name: str
    include_prefixes: tuple[str, ...]


def _diagnostics(log: str) -> Iterator[_Diagnostic]:
    lines = log.splitlines()
    starts = [index for index, line in enumerate(lines) if _HEADING.match(line) or _BARE.match(line)]
    for start, end in pairwise([*starts, len(lines)]):
        following = _until_blank(lines[start + 1 : end])
        if match := _HEADING.match(lines[start]):
            yield _Diagnostic(
                match["file"], int(match["line"]), match["kind"], match["number"], match["message"], following
            )
        elif match := _BARE.match(lines[start]):
            yield _Diagnostic("", 0, match["kind"], None, match["message"], following)


def _until_blank(lines: Sequence[str]) -> tuple[str, ...]:
    for index, line in enumerate(lines):
        if not line.strip():
            return tuple(lines[:index])
    return tuple(lines)


def _finding(diagnostic: _Diagnostic, place: _Place) -> Finding:
    severity = _severity(diagnostic.kind)
    if diagnostic.file == NAME_MAP_FILE:
        return _name_expression_finding(diagnostic, place)
    if diagnostic.file in (place.file_name, ""):
        line = diagnostic.line or None
        message = diagnostic.message + _context_suffix(diagnostic)
        column = _column(diagnostic.following)
    else:
        line, message = _in_header(diagnostic, place)
        column = None
    return Finding(
        code=f"nvrtc-{diagnostic.number}" if diagnostic.number else f"compile-{severity.value}",
        severity=severity,
        message=message,
        source="nvrtc",
        file=place.file_name,
        line=line,
        column=column,
        kernel=kernel_at_line(place.text, line) if line else None,
        related=tuple(_related(diagnostic, place)),
    )


def _related(diagnostic: _Diagnostic, place: _Place) -> Iterator[RelatedPlace]:
    """Return the header location, and every template instantiation leading there."""
    if diagnostic.file not in (place.file_name, ""):
        yield RelatedPlace(message=diagnostic.message, file=diagnostic.file, line=diagnostic.line)
    for context in diagnostic.following:
        match = _INSTANTIATED_AT.search(context)
        if match is not None:
            message = context[: match.start()].strip().removeprefix("detected during:").strip() or "instantiated here"
            yield RelatedPlace(message=message, file=match["file"] or diagnostic.file, line=int(match["line"]))


def _severity(kind: str) -> Severity:
    if kind.endswith("error"):
        return Severity.ERROR
    return Severity.WARNING if kind == "warning" else Severity.INFORMATION


def _name_expression_finding(diagnostic: _Diagnostic, place: _Place) -> Finding:
    pragma = next((line for line in diagnostic.following if "#pragma nv_mangled_name" in line), "")
    name = pragma.partition("#pragma nv_mangled_name")[2].strip()
    return Finding(
        code="no-such-kernel",
        severity=Severity.ERROR,
        message=f"the launch names the kernel '{name}', and the text has no such kernel: {diagnostic.message}",
        source="nvrtc",
        file=place.file_name,
        kernel=name or None,
    )


def _context_suffix(diagnostic: _Diagnostic) -> str:
    context = " ".join(line.strip() for line in diagnostic.following if _CONTEXT.match(line))
    return f" ({context})" if context else ""


def _in_header(diagnostic: _Diagnostic, place: _Place) -> tuple[int | None, str]:
    """Return the user's line that includes the header, and a message with the header."""
    header = _short(diagnostic.file, place)
    line, include = _include_of(header, place)
    message = f"{diagnostic.message} (in {header}, line {diagnostic.line}"
    if instantiated := _instantiation_line(diagnostic, place):
        return instantiated, f"{message}; used from line {instantiated})"
    return line, f"{message}; included by <{include}>)" if include else f"{message})"


def _short(file: str, place: _Place) -> str:
    fitting = [prefix for prefix in place.include_prefixes if file.startswith(prefix)]
    return file.removeprefix(max(fitting, key=len)) if fitting else file


def _include_of(header: str, place: _Place) -> tuple[int | None, str]:
    """Return the user's `#include` of this header, or else the first one, since the true one is unknown."""
    includes = list(_INCLUDE.finditer(mask_comments(place.text)))
    exact = [match for match in includes if match["name"] == header]
    same_folder = [match for match in includes if match["name"].split("/")[0] == header.split("/")[0]]
    for match in (exact or same_folder or includes)[:1]:
        return place.text.count("\n", 0, match.start()) + 1, match["name"]
    return None, ""


def _instantiation_line(diagnostic: _Diagnostic, place: _Place) -> int | None:
    for line in reversed(diagnostic.following):
        match = _INSTANTIATED_AT.search(line) if _CONTEXT.match(line) or "at line" in line else None
        if match and match["file"] == place.file_name:
            return int(match["line"])
    return None


def _column(following: Sequence[str]) -> int | None:
    """Return the 1-based column from the caret under the quoted source line, which is indented by two."""
    for line in following:
        if line.strip() == "^":
            return max(1, line.index("^") - 1)
    return None


def _assembler_lines(log: str, ptx: str, text: str, file_name: str, kernels: Mapping[str, str]) -> Iterator[Finding]:
    for log_line in log.splitlines():
        if match := _PTXAS_LINE.match(log_line):
            ptx_line = int(match["line"])
            place = _source_of(ptx, ptx_line, file_name)
            instruction = _nth_line(ptx, ptx_line)
            yield _assembler_finding(
                f"{match['message']} (in the PTX: {instruction})", match["kind"], file_name, place, text
            )
        elif (match := _PTXAS_BARE.match(log_line)) and not match["message"].startswith(_PTXAS_FOLLOW_UP):
            symbol = re.search(r"'([^']+)'", match["message"])
            kernel = _name(symbol[1], kernels) if symbol else None
            finding = _assembler_finding(match["message"], match["kind"], file_name, Place(None, None), text)
            yield finding.model_copy(update={"kernel": kernel})


def _assembler_finding(message: str, kind: str, file_name: str, place: Place, text: str) -> Finding:
    severity = Severity.WARNING if kind == "warning" else Severity.ERROR
    return Finding(
        code=f"assemble-{severity.value}",
        severity=severity,
        message=message,
        source="ptxas",
        file=file_name,
        line=place.line,
        column=place.column,
        kernel=kernel_at_line(text, place.line) if place.line else None,
    )


def _source_of(ptx: str, ptx_line: int, file_name: str) -> Place:
    """Return the location given by the last `.loc` before a PTX line."""
    user_files = user_file_numbers(ptx, file_name)
    for line in reversed(ptx.splitlines()[:ptx_line]):
        if place := place_of(line.strip(), user_files):
            return place
    return Place(None, None)


def _nth_line(ptx: str, ptx_line: int) -> str:
    lines = ptx.splitlines()
    return lines[ptx_line - 1].strip() if 0 < ptx_line <= len(lines) else "?"


def _too_much_shared(facts: KernelFacts, file_name: str) -> Finding:
    return Finding(
        code="too-much-shared-memory",
        severity=Severity.ERROR,
        message=(
            f"{facts.kernel} declares {facts.shared_bytes} bytes of shared memory, and a kernel may declare "
            f"{STATIC_SHARED_BYTES_LIMIT}; beyond that use `extern __shared__` and the launch's third number"
        ),
        source="ptxas",
        file=file_name,
        kernel=facts.kernel,
    )


def _name(symbol: str, kernels: Mapping[str, str]) -> str:
    """Return the name expression of a symbol, else the plain name in it (Itanium ABI: ``_Z<length><name>``)."""
    if symbol in kernels:
        return kernels[symbol]
    match = re.match(r"_Z(\d+)", symbol)
    return symbol[match.end() : match.end() + int(match[1])] if match else symbol


def _facts(symbol: str, kernel: str, numbers: Mapping[str, int]) -> KernelFacts:
    return KernelFacts(
        kernel=kernel,
        symbol=symbol,
        n_registers=numbers.get("registers", 0),
        spill_store_bytes=numbers.get("stores", 0),
        spill_load_bytes=numbers.get("loads", 0),
        stack_bytes=numbers.get("stack", 0),
        shared_bytes=numbers.get("shared", 0),
    )


def _without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Remove duplicates; NVRTC reports one bad name expression three times."""
    seen: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        subject = finding.kernel if finding.code == "no-such-kernel" else finding.message
        seen.setdefault((finding.code, finding.line, finding.column, subject), finding)
    return list(seen.values())
