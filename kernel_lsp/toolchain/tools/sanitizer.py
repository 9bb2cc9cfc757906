"""compute-sanitizer: its command line, and its XML as findings on lines of the `.cu` file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kernel_lsp.core.finding import Finding, Severity

SanitizerTool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[SanitizerTool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
ERROR_EXIT_CODE = 86
"""Exit status on errors. By default the program's own status is returned, which hides them."""
MAX_RECORDS = 100
"""Maximum records; each occurrence in each thread is one."""
CODES: dict[SanitizerTool, str] = {
    "memcheck": "invalid-access",
    "racecheck": "race",
    "initcheck": "uninitialised-read",
    "synccheck": "barrier-error",
}
SOURCE = "compute-sanitizer"


def sanitizer_command(
    sanitizer: Path, tool: SanitizerTool, report: Path, program: Sequence[str | Path]
) -> list[str | Path]:
    """Return the command to run `program` under one tool; ``--xml`` writes nothing without ``--save``."""
    options: list[str | Path] = ["--tool", tool, "--xml", "--save", report, "--error-exitcode", str(ERROR_EXIT_CODE)]
    return [sanitizer, *options, "--print-limit", str(MAX_RECORDS), *program]


def parse_sanitizer(tool: SanitizerTool, text: str) -> tuple[Finding, ...]:
    """Return the findings of a saved report, one per location, message and kernel. Raises ValueError for a malformed
    report."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"not a report of {tool}: {error}") from None
    found: dict[tuple[str | None, int | None, str, str | None], Finding] = {}
    for record in root.iter("record"):
        finding = _finding(tool, record)
        if finding is None:
            continue
        key = (finding.file, finding.line, finding.message, finding.kernel)
        known = found.get(key)
        found[key] = finding if known is None else _again(known)
    return tuple(found.values())


def _again(finding: Finding) -> Finding:
    return finding.model_copy(update={"n_occurrences": finding.n_occurrences + 1})


def _finding(tool: SanitizerTool, record: ElementTree.Element) -> Finding | None:
    """Return a finding; None for records of the host, which concern the launching program, not the kernel."""
    where = record.find("where")
    if where is None:
        where = record.find("what/source/where")
    if where is None:
        return None
    line = _text(where, "line")
    path = _text(where, "path")
    return Finding(
        code=CODES[tool],
        severity=Severity.WARNING if _text(record, "level") == "Warning" else Severity.ERROR,
        message=_message(record),
        source=SOURCE,
        file=Path(path).name if path else None,
        line=int(line) if line.isdigit() and line != "0" else None,
        kernel=_text(where, "func") or None,
        block=_triple(record.find("who/blockIdx")),
        thread=_triple(record.find("who/threadIdx")),
    )


def _message(record: ElementTree.Element) -> str:
    what = record.find("what")
    if what is None:
        return "an error without a description"
    text = _text(what, "text")
    detail = _text(what, "type")
    if detail:
        text = f"{text}: {detail}"
    other = what.find("destination/where")
    if other is None:
        return text
    first, second = _text(what, "source/direction").lower(), _text(what, "destination/direction").lower()
    return f"{text}: a {first} here and a {second} on line {_text(other, 'line')} without a barrier between them"


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _triple(element: ElementTree.Element | None) -> tuple[int, int, int] | None:
    if element is None:
        return None
    x, y, z = (int(_text(element, axis) or 0) for axis in ("x", "y", "z"))
    return x, y, z
