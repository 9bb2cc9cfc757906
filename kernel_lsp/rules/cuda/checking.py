"""Runs every rule over a CUDA file. What was found in a function is kept until its text changes."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from time import monotonic

from tree_sitter import Node

from kernel_lsp.rules.cuda import access, arithmetic, barriers, host, launches, signature
from kernel_lsp.rules.cuda.facts import FileFacts, FunctionFacts, function_facts, has_launch_bounds, read_plan
from kernel_lsp.rules.cuda.model import CudaFile, Definition, plain_name, read_function, read_outline
from kernel_lsp.rules.cuda.parsing import ParsedCuda, parse
from kernel_lsp.rules.finding import RuleFinding, in_order
from kernel_lsp.rules.pausing import uncollected
from kernel_lsp.rules.rule import Check, checks_in

FUNCTION_CHECKS = checks_in(barriers, access, arithmetic, signature, host)
FILE_CHECKS = checks_in(launches)
_CHECKS_ON = {
    "kernel": tuple(check for check in FUNCTION_CHECKS if check.on != "host"),
    "device": tuple(check for check in FUNCTION_CHECKS if check.on in ("any", "device")),
    "host": tuple(check for check in FUNCTION_CHECKS if check.on in ("any", "host")),
}
_NEEDED_WORDS = tuple(
    (word, 1 << index)
    for index, word in enumerate(
        sorted({word for check in FUNCTION_CHECKS for text in check.needs for word in text.split()})
    )
)
RULES = tuple(sorted((check.rule for check in (*FUNCTION_CHECKS, *FILE_CHECKS)), key=lambda rule: rule.code))
MAX_FINDINGS = 500
"""Of one file: an editor shows no more of use."""
SOON_S = 0.03
"""After parsing: with that, a third of the 150 ms that somebody who types should wait at most."""
MAX_KEPT_FUNCTIONS = 16384
"""Of all files together: three files of 5,000 lines with a function on each. With its text as the key."""


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
    for function in _all_facts(outline):
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
    return tuple(ordered[:MAX_FINDINGS])


Facts = tuple[FunctionFacts, ...]
"""Those of one definition, none when it has no readable body."""
Placed = tuple[int, Facts]
"""Facts with the first line of their definition."""
_kept: OrderedDict[tuple, Placed] = OrderedDict()
"""By all that the rules about one function look at, and how it was read."""


def _all_facts(file: CudaFile) -> Iterator[FunctionFacts]:
    """The facts of every function. Functions behind the one that has the last finding to be shown are not checked:
    what is found in them stands behind it."""
    n_open, read = MAX_FINDINGS, _checked
    may_be_silenced = b"NOLINT" in file.parsed.data
    alike: dict[tuple, Placed] = {}
    for definition in file.definitions:
        for facts in _facts(definition, file, read, alike):
            n_open -= len(facts.findings)
            yield facts
        if n_open <= 0 and not may_be_silenced:
            read = _unchecked


def _facts(definition: Definition, file: CudaFile, read: Read, alike: dict[tuple, Placed]) -> Facts:
    """The facts of a definition. `alike` has those of this file by all but the function's own name."""
    first_line = file.parsed.position(definition.outer.start_byte)[0]
    key = (read, *_key(definition, file))
    kept = _kept.get(key)
    if kept is not None and kept[0] == first_line:
        return kept[1]
    facts = _moved(kept, first_line) if kept is not None else _first_facts(definition, file, read, key, alike)
    _kept[key] = first_line, facts
    if len(_kept) > MAX_KEPT_FUNCTIONS:
        _kept.popitem(last=False)
    return facts


def _moved(placed: Placed, first_line: int) -> Facts:
    return tuple(facts.shifted(first_line - placed[0]) for facts in placed[1])


def _first_facts(definition: Definition, file: CudaFile, read: Read, key: tuple, alike: dict[tuple, Placed]) -> Facts:
    """The facts of a function that was never seen: those of another with as long a name, if only the digits in the
    names differ."""
    name = plain_name(definition)
    if name is None or _DIGITS.search(file.parsed.data, name.start_byte, name.end_byte) is None:
        return read(definition, file)
    shared = _key_but_name(definition, file, name, key)
    if shared is None:
        return read(definition, file)
    first_line = file.parsed.position(definition.outer.start_byte)[0]
    if shared not in alike:
        facts = read(definition, file)
        alike[shared] = first_line, facts
        return facts
    return tuple(replace(facts, name=file.source(name)) for facts in _moved(alike[shared], first_line))


_DIGITS = re.compile(rb"\d")


def _key_but_name(definition: Definition, file: CudaFile, name: Node, key: tuple) -> tuple | None:
    """The key without the digits in the function's name. None where the name is mentioned again: what rules say may
    then have to do with it. Words that rules look for in the text are in both names or in none."""
    read, code, *others = key
    start, end = name.start_byte - definition.outer.start_byte, name.end_byte - definition.outer.start_byte
    text = code[start:end]
    if code.count(text) > 1:
        return None
    is_declared = file.source(name) in file.declared
    return read, code[:start], _DIGITS.sub(b"0", text), code[end:], is_declared, *others


def _key(definition: Definition, file: CudaFile) -> tuple:
    outer, parsed = definition.outer, file.parsed
    return (
        parsed.data[outer.start_byte : outer.end_byte],
        parsed.position(outer.start_byte)[1],
        outer.has_error,
        definition.is_conditionally_compiled,
        has_launch_bounds(file, definition.node, definition.node.start_byte),
        file.promises_divisibility,
        _interned(file.context),
    )


@lru_cache(maxsize=16)
def _interned(context: tuple) -> tuple:
    """The first context that was equal: keys of one file then share it, and comparing them looks no further."""
    return context


def _checked(definition: Definition, file: CudaFile) -> Facts:
    """The facts with all that the rules find."""
    function = read_function(definition, file)
    if function is None:
        return ()
    kind = "kernel" if function.is_kernel else "device" if function.is_device else "host"
    text = function.text
    checks = [c for c in _checks_for(kind, _words_in(text, file)) if c.pattern is None or c.pattern.search(text)]
    found = [finding for check in checks for finding in check.findings(function, MAX_FINDINGS)]
    return (function_facts(function, tuple(in_order(found) if len(found) > 1 else found)),)


def _unchecked(definition: Definition, file: CudaFile) -> Facts:
    """The facts without what the rules find."""
    function = read_function(definition, file)
    return () if function is None else (function_facts(function, ()),)


Read = Callable[[Definition, CudaFile], Facts]
"""How a function that was never seen is read."""


def _words_in(text: str, file: CudaFile) -> int:
    """Which of the words that checks need the text of a function has, as bits."""
    found = 0
    for word, bit in file.words_among(_NEEDED_WORDS):
        if word in text:
            found |= bit
    return found


@lru_cache(maxsize=4096)
def _checks_for(kind: str, found: int) -> tuple[Check, ...]:
    """Those for the kind of function that may find something in a text with these words."""
    words = {word for word, bit in _NEEDED_WORDS if found & bit}
    return tuple(c for c in _CHECKS_ON[kind] if not any(words.isdisjoint(needed.split()) for needed in c.needs))


_NOLINT = re.compile(rb"//.*\bNOLINT\b(?:\((?P<codes>[^)]*)\))?")


def _is_silenced(finding: RuleFinding, parsed: ParsedCuda) -> bool:
    starts = (*parsed.starts, len(parsed.data))
    line = parsed.data[starts[finding.range.start_line] : starts[finding.range.start_line + 1]]
    match = _NOLINT.search(line) if b"NOLINT" in line else None
    return match is not None and (match["codes"] is None or finding.code.encode() in match["codes"])
