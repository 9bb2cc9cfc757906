"""Runs every rule over a CUDA file. What was found in a function is kept until its text changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from time import monotonic

from tree_sitter import Node

from kernel_lsp.rules.cuda import (
    access,
    arithmetic,
    array_bounds,
    atomics,
    barriers,
    bounds,
    doubles,
    host,
    launches,
    restrict,
    shared,
    signature,
    strides,
    transfers,
    warps,
)
from kernel_lsp.rules.cuda.function_summary import (
    FileFacts,
    FunctionFacts,
    function_facts,
    has_launch_bounds,
    read_plan,
)
from kernel_lsp.rules.cuda.model import Function, read_function
from kernel_lsp.rules.cuda.node_list import Lost
from kernel_lsp.rules.cuda.outline import CudaFile, Definition, Outline, read_outline
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse
from kernel_lsp.rules.cuda.repeated import RepeatedArgument
from kernel_lsp.rules.finding import FINDING_BYTES, RuleFinding, folded, in_order
from kernel_lsp.rules.gc_pause import uncollected
from kernel_lsp.rules.lru import Kept
from kernel_lsp.rules.rule import Check, checks_in

FUNCTION_CHECKS = checks_in(
    *(bounds, array_bounds, barriers, warps, shared, strides, access, atomics, doubles, arithmetic, signature),
    *(restrict, host, transfers),
)
FILE_CHECKS = checks_in(launches)
_CHECKS_ON = {
    "kernel": tuple(check for check in FUNCTION_CHECKS if check.on != "host"),
    "device": tuple(check for check in FUNCTION_CHECKS if check.on in ("any", "device")),
    "host": tuple(check for check in FUNCTION_CHECKS if check.on in ("any", "host")),
}
_NEEDED_WORDS = {
    kind: tuple(sorted({word for check in checks for needed in check.needs for word in needed.split()}))
    for kind, checks in _CHECKS_ON.items()
}
_ALL_NEEDED_WORDS = frozenset(word for words in _NEEDED_WORDS.values() for word in words)
RULES = tuple(sorted((check.rule for check in (*FUNCTION_CHECKS, *FILE_CHECKS)), key=lambda rule: rule.code))
FOLDED, FOLDED_FROM = frozenset(("KL240", "KL241", "KL250")), 3
"""Codes that whole files have on many lines: from so many findings on they are one, with related places."""
MAX_FINDINGS = 500
"""Of one file: an editor shows no more of use."""
SOON_S = 0.03
"""After parsing: with that, a third of the 150 ms that somebody who types should wait at most."""
MAX_KEPT_FUNCTIONS, MAX_KEPT_BYTES = 16384, 8 << 20
"""Of all files together: three files of 5,000 lines with a function on each. With its text as the key; eight files of
5,000 lines fit, with as many findings as are shown."""


@uncollected
def check(text: str, *, tree: ParsedCuda | None = None, soon: Soon | None = None) -> tuple[RuleFinding, ...]:
    """What the rules find in a `.cu` or `.cuh` file, in the order of the text. Never raises.

    `tree` is a parse that the caller keeps (`parse(text, previous)` after each edit); it is used if it is of the same
    text. The launch plan's own findings are among the rules (KL235 to KL237): no one else need report them. A line that
    ends in ``// NOLINT`` or ``// NOLINT(KL205)`` is left out, all of it or that code.

    Where a check takes longer than `SOON_S`, `soon` is called once at most, with what was found so far.
    """
    started_s = monotonic()
    parsed = tree if tree is not None and tree.text == text else parse(text)
    outline = read_outline(parsed)
    functions: list[FunctionFacts] = []
    n_found = 0
    for function in _Reading(outline).all_facts():
        functions.append(function)
        n_found += len(function.findings)
        is_more = n_found and len(functions) < len(outline.definitions)
        if soon is not None and is_more and monotonic() - started_s > SOON_S:
            _tell(soon, functions, parsed)
            soon = None
    file = FileFacts(tuple(functions), read_plan(outline), "cudaFuncSetAttribute" in text)
    found = [finding for function in functions for finding in function.findings]
    found += [finding for check in FILE_CHECKS for finding in check.findings(file)]
    return _shown(found, parsed)


Soon = Callable[[tuple[RuleFinding, ...]], None]
"""Hears of findings before the check is done."""


# --- below: functions that were seen before


def _tell(soon: Soon, functions: list[FunctionFacts], parsed: ParsedCuda) -> None:
    """What is to be shown of these functions, if anything: an empty list would say that there is nothing to find."""
    if early := _shown([finding for function in functions for finding in function.findings], parsed):
        soon(early)


def _shown(found: list[RuleFinding], parsed: ParsedCuda) -> tuple[RuleFinding, ...]:
    """In order, without the silenced ones, and no more than are of use."""
    ordered = in_order(found)
    if b"NOLINT" in parsed.data:
        ordered = [finding for finding in ordered if not _is_silenced(finding, parsed)]
    return tuple(folded(ordered, FOLDED, FOLDED_FROM)[:MAX_FINDINGS])


Facts = tuple[FunctionFacts, ...]
"""Those of one definition, none when it has no readable body."""
Placed = tuple[int, Facts]
"""Facts with the first line of their definition."""


def _n_bytes_of(key: tuple, placed: Placed) -> int:
    """The text, and what was found in it."""
    return len(key[1]) + FINDING_BYTES * sum(len(facts.findings) for facts in placed[1])


_kept: Kept[tuple, Placed] = Kept(MAX_KEPT_FUNCTIONS, MAX_KEPT_BYTES, _n_bytes_of)
"""By all that the rules about one function look at, and how it was read."""
_DIGITS = re.compile(rb"\d")


class _Reading:
    """One file, function by function. `is_full` says that all findings that will be shown are found. `alike` has the
    facts of this file by all but the function's own name, `selected` the checks for a kind of function by the words
    that it has."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.is_full = False
        self.alike: dict[tuple, Placed] = {}
        known = outline.parsed.words
        present = frozenset(word for word in _ALL_NEEDED_WORDS if word.encode() in known)
        self.words = {kind: [word for word in words if word in present] for kind, words in _NEEDED_WORDS.items()}
        self.selected: dict[tuple, tuple[Check, ...]] = {}
        self.visible = (outline.fits_its_launches, outline.unchecked_kernels, _interned(outline.context))

    def all_facts(self) -> Iterator[FunctionFacts]:
        """The facts of every function. Functions behind the one that has the last finding to be shown are not checked:
        what is found in them stands behind it."""
        n_open = MAX_FINDINGS
        may_be_silenced = b"NOLINT" in self.outline.parsed.data
        for file, definition in self.outline.definitions:
            for facts in self.facts(file, definition):
                n_open -= len(facts.findings)
                yield facts
            self.is_full = n_open <= 0 and not may_be_silenced

    def facts(self, file: CudaFile, definition: Definition) -> Facts:
        """Those of a definition, new or kept."""
        first_line, column = file.parsed.position(definition.outer.start_byte)
        key = self.key(file, definition, column)
        kept = _kept.get(key)
        if kept is not None and kept[0] == first_line:
            return kept[1]
        facts = self.first_facts(file, definition, key, first_line) if kept is None else _moved(kept, first_line)
        _kept.keep(key, (first_line, facts))
        return facts

    def key(self, file: CudaFile, definition: Definition, column: int) -> tuple:
        node, outer = definition.node, definition.outer
        return (
            self.is_full,
            file.parsed.data[outer.start_byte : outer.end_byte],
            column,
            outer.has_error,
            definition.is_conditionally_compiled,
            has_launch_bounds(file, node, node.start_byte),
            self.repeated(file, definition),
            *self.visible,
        )

    def repeated(self, file: CudaFile, definition: Definition) -> tuple[RepeatedArgument, ...]:
        """What launches of the kernel pass twice."""
        known = self.outline.repeated_arguments
        name = definition.plain_name if known else None
        return () if name is None else known.get(file.source(name), ())

    def first_facts(self, file: CudaFile, definition: Definition, key: tuple, first_line: int) -> Facts:
        """The facts of a function that was never seen: those of another with as long a name, if only the digits in the
        names differ."""
        name = definition.plain_name
        if name is None or _DIGITS.search(file.parsed.data, name.start_byte, name.end_byte) is None:
            return self.read(file, definition)
        shared = self.key_but_name(file, definition, name, key)
        if shared is None:
            return self.read(file, definition)
        if shared not in self.alike:
            facts = self.read(file, definition)
            self.alike[shared] = first_line, facts
            return facts
        renamed = file.source(name)
        return tuple(replace(facts, name=renamed) for facts in _moved(self.alike[shared], first_line))

    def key_but_name(self, file: CudaFile, definition: Definition, name: Node, key: tuple) -> tuple | None:
        """The key without the digits in the function's name. None where the name is mentioned again: what rules say may
        then have to do with it. Words that rules look for in the text are in both names or in none."""
        is_full, code, *others = key
        first = definition.outer.start_byte
        start, end = name.start_byte - first, name.end_byte - first
        text = code[start:end]
        if code.count(text) > 1:
            return None
        is_declared = file.source(name) in file.declared
        return is_full, code[:start], _DIGITS.sub(b"0", text), code[end:], is_declared, *others

    def read(self, file: CudaFile, definition: Definition) -> Facts:
        """The facts with all that the rules find, as long as that is shown."""
        try:
            return self.read_once(file, definition)
        except Lost:
            definition.forget()
            return self.read_once(file, definition)

    def read_once(self, file: CudaFile, definition: Definition) -> Facts:
        """The same, if what was carried over from the tree before an edit holds."""
        function = read_function(definition, file)
        if function is None:
            return ()
        found = [] if self.is_full else self.findings(function)
        facts = function_facts(function, tuple(in_order(found) if len(found) > 1 else found))
        definition.rest()
        return (facts,)

    def findings(self, function: Function) -> list[RuleFinding]:
        """What the rules find in one function."""
        found: list[RuleFinding] = []
        ends: dict[re.Pattern[str], int] = {}
        known = function.definition.found_patterns
        for check in self.checks_for(function):
            patterns = check.patterns
            if patterns and patterns not in known:
                known[patterns] = check.may_find_in(function.text, ends)
            if not patterns or known[patterns]:
                hits = list(islice(check.hits(function), MAX_FINDINGS))
                if hits:
                    found += map(check.finding, hits)
        return found

    def checks_for(self, function: Function) -> tuple[Check, ...]:
        """Those for its kind that may find something in a text with its words."""
        kind, text = "kernel" if function.is_kernel else "device" if function.is_device else "host", function.text
        words = self.words[kind]
        key = kind, *[word in text for word in words]
        selected = self.selected.get(key)
        if selected is None:
            present = {word for word in words if word in text}
            needing = ((check, [needed.split() for needed in check.needs]) for check in _CHECKS_ON[kind])
            selected = tuple(check for check, needs in needing if not any(map(present.isdisjoint, needs)))
            self.selected[key] = selected
        return selected


def _moved(placed: Placed, first_line: int) -> Facts:
    n_lines = first_line - placed[0]
    return tuple(facts.shifted(n_lines) for facts in placed[1])


@lru_cache(maxsize=16)
def _interned(context: tuple) -> tuple:
    """The first context that was equal: keys of one file then share it, and comparing them looks no further."""
    return context


_NOLINT = re.compile(rb"//.*\bNOLINT\b(?:\((?P<codes>[^)]*)\))?")


def _is_silenced(finding: RuleFinding, parsed: ParsedCuda) -> bool:
    starts = (*parsed.starts, len(parsed.data))
    line = parsed.data[starts[finding.range.start_line] : starts[finding.range.start_line + 1]]
    match = _NOLINT.search(line) if b"NOLINT" in line else None
    return match is not None and (match["codes"] is None or finding.code.encode() in match["codes"])
