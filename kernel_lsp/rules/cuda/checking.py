"""Run every rule over a CUDA file. Findings of a function are cached until its text changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from time import monotonic

from kernel_lsp.rules.cached import Kept, uncollected
from kernel_lsp.rules.cuda.bounds import array_bounds, bounds
from kernel_lsp.rules.cuda.definition import Definition
from kernel_lsp.rules.cuda.function_summary import (
    FileFacts,
    FunctionFacts,
    attributed,
    function_facts,
    read_plan,
)
from kernel_lsp.rules.cuda.host import extension, host, launch_sizes, launches, lifetimes, pointers, timing, transfers
from kernel_lsp.rules.cuda.host.repeated_arguments import RepeatedArgument
from kernel_lsp.rules.cuda.kernel_texts import counts_of_elements, identifiers_in, type_parameters
from kernel_lsp.rules.cuda.memory import access, restrict, shared, strides, uninitialized
from kernel_lsp.rules.cuda.model import Function, read_function
from kernel_lsp.rules.cuda.numbers import arithmetic, signature, start_values, widths
from kernel_lsp.rules.cuda.outline import CudaFile, read_outline
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse
from kernel_lsp.rules.cuda.threads import atomics, barriers, fences, grid_strides, partial_sums, racy_updates, warps
from kernel_lsp.rules.finding import FINDING_BYTES, RuleFinding, folded, in_order
from kernel_lsp.rules.rule import Check, checks_in

FUNCTION_CHECKS = checks_in(
    *(bounds, array_bounds, barriers, warps, shared, strides, access, atomics, arithmetic, signature),
    *(restrict, host, transfers, extension, uninitialized, partial_sums),
    *(pointers, grid_strides, racy_updates, lifetimes, launch_sizes, start_values, fences, widths, timing),
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
_OF_HELPERS = {word: word.encode() for word in ("__shared__", "threadIdx", "blockIdx")}
"""Words that a kernel may have by way of a function or macro that it calls, such as a loop over the grid."""
_READ_BY_HOST_RULES = (b"cudaM", b"cudaFree", b"Tensor", b"TORCH_CHECK")
"""Words of the functions whose text the rules about host code read with that of their callers."""
RULES = tuple(sorted((check.rule for check in (*FUNCTION_CHECKS, *FILE_CHECKS)), key=lambda rule: rule.code))
FOLDED, FOLDED_FROM = frozenset(("KL240", "KL250")), 3
"""Codes that repeat on many lines, and the number of findings from which they fold into one with related locations."""
MAX_FINDINGS = 500
"""Maximum findings per file. An editor shows no more usefully."""
SOON_S, EDITED_SOON_S, AGAIN_S = 0.03, 0.1, 0.15
"""Seconds until the first early findings of a new text, until those after an edit, and until the next ones. With
parsing, an edit then waits for 150 ms at most."""
MAX_KEPT_FUNCTIONS, MAX_KEPT_BYTES = 16384, 8 << 20
"""Maximum cached functions and bytes over all files. The count covers three files of 5,000 lines with a function on
each line. The bytes include the texts, which are the keys: eight files of 5,000 lines fit, with the maximum number
of findings."""


@uncollected
def check(text: str, *, tree: ParsedCuda | None = None, soon: Soon | None = None) -> tuple[RuleFinding, ...]:
    """Return the findings in a `.cu` or `.cuh` file in source order. Never raises.

    `tree` is a parse that the caller keeps (`parse(text, previous)` after each edit). It is used only if it matches the
    text. Findings of the launch plan are included (KL235 to KL237), so no other caller needs to report them. A line
    that ends in ``// NOLINT`` or ``// NOLINT(KL205)`` suppresses all findings or those of that code.

    If a check takes longer than that, `soon` is called with the findings so far: all of the edited function, and those
    of the others that hold for this text.
    """
    parsed = tree if tree is not None and tree.text == text else parse(text)
    file = read_outline(parsed)
    functions: list[FunctionFacts] = []
    n_found = 0
    reading = _Reading(file)
    next_s = monotonic() + (SOON_S if parsed.edited_at is None else EDITED_SOON_S)
    for definition in file.definitions:
        outer = definition.outer
        if parsed.edited_at is not None and outer.start_byte <= parsed.edited_at <= outer.end_byte:
            reading.facts(definition)
    for function in reading.all_facts():
        functions.append(function)
        n_found += len(function.findings)
        is_more = (n_found or parsed.edited_at is not None) and len(functions) < len(file.definitions)
        if soon is not None and is_more and monotonic() > next_s:
            _tell(soon, [*functions, *reading.known_behind(function)], parsed)
            next_s = monotonic() + AGAIN_S
    facts = FileFacts(tuple(functions), read_plan(file), attributed(text), file.launched)
    found = [finding for function in functions for finding in function.findings]
    found += [finding for check in FILE_CHECKS for finding in check.findings(facts)]
    return _shown(_reported_once(found), parsed)


def _reported_once(found: list[RuleFinding]) -> list[RuleFinding]:
    """Return the findings without KL218 where KL238 reports the same index for a launch, with the fixes."""
    launched = {each.range for each in found if each.code == "KL238"}
    if not launched:
        return found
    fixes = {each.range: each.fixes for each in found if each.code == "KL218"}
    left = [each for each in found if each.code != "KL218" or each.range not in launched]
    return [replace(each, fixes=fixes.get(each.range, ())) if each.code == "KL238" else each for each in left]


Soon = Callable[[tuple[RuleFinding, ...]], None]
"""Callback that receives the early findings before the check is done."""


def _tell(soon: Soon, functions: list[FunctionFacts], parsed: ParsedCuda) -> None:
    """Report the early findings of these functions. No finding means no call: an empty list would mean that the code
    is clean."""
    if early := _shown([finding for function in functions for finding in function.findings], parsed):
        soon(early)


def _shown(found: list[RuleFinding], parsed: ParsedCuda) -> tuple[RuleFinding, ...]:
    """Return the findings in source order, without suppressed ones and up to the maximum."""
    ordered = in_order(found)
    if b"NOLINT" in parsed.data:
        ordered = [finding for finding in ordered if not _is_silenced(finding, parsed)]
    return tuple(folded(ordered, FOLDED, FOLDED_FROM)[:MAX_FINDINGS])


Facts = tuple[FunctionFacts, ...]
"""The facts of one definition, empty without a readable body."""
Placed = tuple[int, Facts, tuple[int | bytes, ...]]
"""The first line of a definition, with its facts, and the lines and texts of other functions where findings are in
these."""


def _n_bytes_of(key: tuple, placed: Placed) -> int:
    """Return the bytes of an entry: its text and its findings."""
    return len(key[1]) + FINDING_BYTES * sum(len(facts.findings) for facts in placed[1])


_kept: Kept[tuple, Placed] = Kept(MAX_KEPT_FUNCTIONS, MAX_KEPT_BYTES, _n_bytes_of)
"""Cached facts, by everything that the rules about one function depend on, including the parse."""


class _Reading:
    """One file, analysed function by function. `is_full` means that all findings that will be shown are known.
    `selected` caches the checks by the function's kind and words."""

    def __init__(self, file: CudaFile) -> None:
        self.file = file
        self.is_full = False
        self.selected: dict[tuple, tuple[Check, ...]] = {}
        self.facts_by_name = _facts_by_name(file)

    def all_facts(self) -> Iterator[FunctionFacts]:
        """Yield the facts of every function. Functions after the last finding that will be shown are not checked,
        because their findings come later in the text."""
        n_open = MAX_FINDINGS
        may_be_silenced = b"NOLINT" in self.file.parsed.data
        for definition in self.file.definitions:
            for facts in self.facts(definition):
                n_open -= len(facts.findings)
                yield facts
            self.is_full = n_open <= 0 and not may_be_silenced

    def facts(self, definition: Definition) -> Facts:
        """Return the facts of a definition, new or cached."""
        first_line, column = self.file.parsed.position(definition.outer.start_byte)
        key = self.key(definition, column)
        kept = _kept.get(key)
        is_alone = kept is not None and not kept[2]
        if kept is not None and kept[0] == first_line and (is_alone or kept[2] == self.file.helper_places(key[1])):
            return kept[1]
        facts = _moved(kept, first_line) if kept is not None and is_alone else self.read(definition)
        last_line = self.file.parsed.position(definition.outer.end_byte)[0]
        lines = (found.range.start_line for each in facts for found in each.findings)
        others = () if all(first_line <= line <= last_line for line in lines) else self.file.helper_places(key[1])
        _kept.keep(key, (first_line, facts, others))
        return facts

    def known_behind(self, function: FunctionFacts) -> Iterator[FunctionFacts]:
        """Yield the cached facts of the functions after one, as far as they hold for this text."""
        for definition in self.file.definitions:
            first_line, column = self.file.parsed.position(definition.outer.start_byte)
            if first_line > function.name_range.end_line and self.key(definition, column) in _kept:
                yield from self.facts(definition)

    def key(self, definition: Definition, column: int) -> tuple:
        outer = definition.outer
        text = self.file.parsed.data[outer.start_byte : outer.end_byte]
        helpers = self.file.helpers_of(text) if self.file.helper_texts else ()
        return (
            self.is_full,
            text,
            self.file.key_of(definition),
            self.simulated_with(definition, text, helpers),
            column,
            outer.has_error,
            definition.is_conditionally_compiled,
            self.repeated(definition),
            self.file.fits_its_launches,
            self.file.leaves_restrict_out,
            self.file.host_functions,
            self.seen_by((text, *helpers)),
        )

    def seen_by(self, texts: tuple[bytes, ...]) -> frozenset[tuple]:
        """Return the facts of the file about names that a function, or one that it calls, mentions."""
        known = self.facts_by_name
        return frozenset((name, known[name]) for each in texts for name in identifiers_in(each) & known.keys())

    def simulated_with(self, definition: Definition, text: bytes, helpers: tuple[bytes, ...]) -> tuple:
        """Return what else a kernel's simulation depends on: its launches, and the functions that it calls. Host code
        depends on functions that allocate, copy, free and check for it."""
        if b"__global__" not in text and b"__device__" not in text:
            return tuple(each for each in helpers if any(word in each for word in _READ_BY_HOST_RULES))
        shapes = self.file.launch_shapes
        return shapes.get(self.file.key_of(definition), ()) if shapes else (), tuple(map(_without_layout, helpers))

    def repeated(self, definition: Definition) -> tuple[RepeatedArgument, ...]:
        """Return the buffers that launches of the kernel pass twice."""
        known = self.file.repeated_arguments
        return known.get(self.file.key_of(definition), ()) if known else ()

    def read(self, definition: Definition) -> Facts:
        """Return the facts with the findings of all rules, as long as more findings can be shown."""
        function = read_function(definition, self.file)
        if function is None:
            return ()
        found = [] if self.is_full else self.findings(function)
        return (function_facts(function, tuple(in_order(found) if len(found) > 1 else found)),)

    def findings(self, function: Function) -> list[RuleFinding]:
        """Return the findings of the rules about one function."""
        ends: dict[re.Pattern[str], int] = {}
        return [
            finding
            for check in self.checks_for(function)
            if not check.patterns or check.may_find_in(function.text, ends)
            for finding in check.findings(function, MAX_FINDINGS)
        ]

    def checks_for(self, function: Function) -> tuple[Check, ...]:
        """Return the checks for the function's kind whose required words occur in its text."""
        kind, text = "kernel" if function.is_kernel else "device" if function.is_device else "host", function.text
        present = {word for word in _NEEDED_WORDS[kind] if word in text}
        if function.is_kernel and (absent := _OF_HELPERS.keys() - present):
            helpers = self.file.helpers_of(text.encode())
            present |= {word for word in absent if any(_OF_HELPERS[word] in each for each in helpers)}
        key = kind, frozenset(present)
        selected = self.selected.get(key)
        if selected is None:
            needing = ((check, [needed.split() for needed in check.needs]) for check in _CHECKS_ON[kind])
            selected = tuple(check for check, needs in needing if not any(map(present.isdisjoint, needs)))
            self.selected[key] = selected
        return selected


def _facts_by_name(file: CudaFile) -> dict[str, tuple]:
    """Return all that the file says about each name. An edit then concerns only the functions that mention one."""
    types = type_parameters(file.parsed.text)
    tables: tuple[Iterable, ...] = (
        *(file.constants.items(), file.declared, file.unchecked_kernels, file.tail_checked_kernels),
        file.kernels_by_key,
        *(file.dynamic_shared_bytes, file.kernels_of_shortened_sizes, file.unreset_totals, file.accumulators),
        *(file.constant_arrays.items(), file.structure_bytes.items(), file.device_symbols),
        *(
            file.bound_functions,
            file.axis_sizes,
            file.indexed_places,
            file.linear_sizes,
            file.allocated_sides,
            file.member_pointers,
            file.member_integers,
        ),
        *(file.waiting_functions, file.device_variables, file.macros.items()),
        *(file.returned_values.items(), file.member_sets.items(), file.accessor_sides),
        ((each.name, owner, file.source(each.declaration)) for owner, i in file.members.items() for each in i.values()),
        ((owner, *(file.source(each.declaration) for each in i.values())) for owner, i in file.members.items()),
        *(types, counts_of_elements(file.parsed.text), file.grid_loops, file.wide_constants),
        ((name, element) for name, element in file.member_pointers if element in types),
        ((owner, name, sized) for (owner, name), sized in file.structure_arrays.items()),
    )
    found: dict[str, list] = {}
    for place, table in enumerate(tables):
        for row in table:
            name = row if isinstance(row, str) else row[0]
            found.setdefault(name.partition("(")[0].rpartition("::")[2] or name, []).append((place, row))
    return {name: tuple(sorted(rows, key=repr)) for name, rows in found.items()}


_LAYOUT = re.compile(rb"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')|//[^\n]*|\s+""")


@lru_cache(maxsize=4096)
def _without_layout(text: bytes) -> bytes:
    """Return a function's text without comments on its lines and with one space between its words, which is all that
    its callers depend on. A macro is returned as it is."""
    return text if b"#" in text or b"\\\n" in text else _LAYOUT.sub(lambda found: found[1] or b" ", text)


def _moved(placed: Placed, first_line: int) -> Facts:
    n_lines = first_line - placed[0]
    return tuple(facts.shifted(n_lines) for facts in placed[1])


_NOLINT = re.compile(rb"//.*\bNOLINT\b(?:\((?P<codes>[^)]*)\))?")


def _is_silenced(finding: RuleFinding, parsed: ParsedCuda) -> bool:
    starts = (*parsed.starts, len(parsed.data))
    line = parsed.data[starts[finding.range.start_line] : starts[finding.range.start_line + 1]]
    match = _NOLINT.search(line) if b"NOLINT" in line else None
    return match is not None and (match["codes"] is None or finding.code.encode() in match["codes"])
