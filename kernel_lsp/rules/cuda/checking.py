"""Runs every rule over a CUDA file. What was found in a function is kept until its text changes."""

from __future__ import annotations

import re
from collections import OrderedDict

from kernel_lsp.rules.cuda import access, arithmetic, barriers, host, launches, signature
from kernel_lsp.rules.cuda.facts import FileFacts, FunctionFacts, function_facts, read_plan, text_in_front
from kernel_lsp.rules.cuda.model import CudaFile, Definition, read_function, read_outline
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse
from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.rules.rule import checks_in

FUNCTION_CHECKS = checks_in(barriers, access, arithmetic, signature, host)
FILE_CHECKS = checks_in(launches)
_CHECKS_ON = {
    "kernel": tuple(check for check in FUNCTION_CHECKS if check.on != "host"),
    "device": tuple(check for check in FUNCTION_CHECKS if check.on in ("any", "device")),
    "host": tuple(check for check in FUNCTION_CHECKS if check.on in ("any", "host")),
}
RULES = tuple(sorted((check.rule for check in (*FUNCTION_CHECKS, *FILE_CHECKS)), key=lambda rule: rule.code))
MAX_FINDINGS = 500
"""Of one file: an editor shows no more of use."""
MAX_KEPT_FUNCTIONS = 4096
"""Of all files together; some hundred bytes each."""


def check(text: str, *, tree: ParsedCuda | None = None) -> tuple[RuleFinding, ...]:
    """What the rules find in a `.cu` or `.cuh` file, in the order of the text. Never raises.

    `tree` is a parse that the caller keeps (`parse(text, previous)` after each edit); it is used if it is of the same
    text. The launch plan's own findings are among the rules (KL235 to KL237): no one else need report them. A line that
    ends in ``// NOLINT`` or ``// NOLINT(KL205)`` is left out, all of it or that code.
    """
    parsed = tree if tree is not None and tree.text == text else parse(text)
    outline = read_outline(parsed)
    functions = tuple(facts for d in outline.definitions for facts in _facts(d, outline))
    file = FileFacts(functions, read_plan(outline), "cudaFuncSetAttribute" in text)
    found = {finding: None for function in functions for finding in function.findings}
    found |= {finding: None for check in FILE_CHECKS for finding in check.findings(file)}
    kept = [finding for finding in found if not _is_silenced(finding, parsed)]
    return tuple(sorted(kept, key=lambda finding: (finding.range, finding.code))[:MAX_FINDINGS])


# --- below: functions that were seen before

_kept: OrderedDict[tuple, tuple[FunctionFacts, ...]] = OrderedDict()
"""By all that the rules about one function look at; the ranges count from its first line."""


def _facts(definition: Definition, file: CudaFile) -> tuple[FunctionFacts, ...]:
    """The facts of a definition, none when it has no readable body."""
    first_line = file.parsed.position(definition.outer.start_byte)[0]
    key = _key(definition, file)
    kept = _kept.get(key)
    if kept is not None:
        return tuple(facts.shifted(first_line) for facts in kept)
    fresh = _fresh_facts(definition, file)
    _kept[key] = tuple(facts.shifted(-first_line) for facts in fresh)
    if len(_kept) > MAX_KEPT_FUNCTIONS:
        _kept.popitem(last=False)
    return fresh


def _key(definition: Definition, file: CudaFile) -> tuple:
    outer, parsed = definition.outer, file.parsed
    return (
        parsed.data[outer.start_byte : outer.end_byte],
        parsed.position(outer.start_byte)[1],
        outer.has_error,
        definition.is_conditionally_compiled,
        b"launch_bounds" in text_in_front(file, definition.node, definition.node.start_byte).lower(),
        file.promises_divisibility,
        file.context,
    )


def _fresh_facts(definition: Definition, file: CudaFile) -> tuple[FunctionFacts, ...]:
    function = read_function(definition, file)
    if function is None:
        return ()
    kind = "kernel" if function.is_kernel else "device" if function.is_device else "host"
    findings = tuple(finding for check in _CHECKS_ON[kind] for finding in check.findings(function))
    return (function_facts(function, findings),)


_NOLINT = re.compile(rb"//.*\bNOLINT\b(?:\((?P<codes>[^)]*)\))?")


def _is_silenced(finding: RuleFinding, parsed: ParsedCuda) -> bool:
    starts = (*parsed.starts, len(parsed.data))
    line = parsed.data[starts[finding.range.start_line] : starts[finding.range.start_line + 1]]
    match = _NOLINT.search(line) if b"NOLINT" in line else None
    return match is not None and (match["codes"] is None or finding.code.encode() in match["codes"])
