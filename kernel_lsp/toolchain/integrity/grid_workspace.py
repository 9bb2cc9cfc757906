"""Check that a function uses the driver's grid workspace only for the barrier of cooperative groups.

`grid_group::sync` (cooperative_groups/details/sync.h) locates a word of the driver through %envreg1 and %envreg2, adds
to it, and waits until its top bit changes. The word outlives the launch, so its value must not be observable: only
whether it changed between two reads in one launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from kernel_lsp.toolchain.integrity.definition_use import Function, Source, functions_of
from kernel_lsp.toolchain.integrity.ptx_text import PtxText, Statement, mentioned

WORKSPACE_REGISTERS = frozenset(Source.WORKSPACE.value)
"""Halves of the workspace address."""


class _Kind(Enum):
    """Kind of value in a register."""

    ADDRESS = "the workspace's address, or a half of it"
    BARRIER = "the address of the barrier's word"
    WORD = "what the word held"


_HALVES_JOINED = re.compile(r"(?:mov\.|cvt\.|bfi\.b64\s+%\w+\s*,\s*%\w+\s*,\s*%\w+\s*,\s*32\s*,\s*32\s*;?$)")
_BARRIER_ADDRESS = re.compile(r"add\.s64\s+%\w+\s*,\s*%\w+\s*,\s*4\s*;?$")
"""The word is the second of `struct grid_workspace` (cooperative_groups/details/driver_abi.h)."""
_LOOK = re.compile(r"(?:ld\.(?:acquire|volatile|relaxed)|atom\.(?:\w+\.)*add)\.(?:\w+\.)*[bsu]32$")
"""Reads of the whole word: reads of two widths would differ by its value."""
_COPY = re.compile(r"mov\.[bsu](?:32|64)\s+%\w+\s*,\s*%\w+\s*;?$")
_COMPARED_TO_NULL = re.compile(r"setp\.(?:eq|ne)\.[bsu]64\s+%\w+\s*,\s*%\w+\s*,\s*0\s*;?$")
"""Comparison with null, valid only for an address, which has 64 bits."""
_ADDRESS_OPERAND = re.compile(r"\[(?P<address>[^\]]*)\]")


def functions_with_only_a_grid_barrier(ptx: PtxText) -> frozenset[str]:
    """Return the functions that use the workspace registers only for a grid barrier."""
    return frozenset(name for name, function in functions_of(ptx).items() if _is_only_a_barrier(function))


# --- below: what follows from the registers


def _is_only_a_barrier(function: Function) -> bool:
    start = dict.fromkeys(WORKSPACE_REGISTERS, _Kind.ADDRESS)
    kinds = function.inferred(start, _result_kind, lambda first, _: first)
    return all(_is_allowed(statement, kinds) for statement in function.body)


def _result_kind(statement: Statement, kinds: Mapping[str, _Kind]) -> _Kind | None:
    used, text = _kinds_used(statement.sources, kinds), statement.text.strip()
    if used and _LOOK.match(statement.opcode):
        return _Kind.WORD
    if used == {_Kind.ADDRESS} and _BARRIER_ADDRESS.match(text):
        return _Kind.BARRIER
    if used == {_Kind.ADDRESS} and _HALVES_JOINED.match(text) and _all_followed(statement, kinds):
        return _Kind.ADDRESS
    return next(iter(used)) if len(used) == 1 and _COPY.match(text) else None


def _is_allowed(statement: Statement, kinds: Mapping[str, _Kind]) -> bool:
    used = _kinds_used(statement.sources, kinds)
    results = [kinds[name] for name in statement.results if name in kinds]
    if statement.text.startswith(".") or not (used or results):
        return True
    result = _result_kind(statement, kinds)
    if any(kind is not result for kind in results):
        return False  # the register has several kinds and cannot be tracked
    if result is None:
        is_null_check = used == {_Kind.ADDRESS} and _COMPARED_TO_NULL.match(statement.text.strip())
        return not used or bool(is_null_check) or _is_change(statement, kinds)
    return not _LOOK.match(statement.opcode) or _is_look_at_the_barrier(statement, kinds)


def _is_look_at_the_barrier(statement: Statement, kinds: Mapping[str, _Kind]) -> bool:
    operand = _ADDRESS_OPERAND.search(statement.text)
    address = operand["address"].replace(" ", "") if operand else ""
    first, plus, offset = address.partition("+")
    is_barrier = kinds.get(first) is (_Kind.ADDRESS if plus else _Kind.BARRIER) and offset == ("4" if plus else "")
    return is_barrier and not _kinds_used(_ADDRESS_OPERAND.sub("", statement.sources), kinds)


def _all_followed(statement: Statement, kinds: Mapping[str, _Kind]) -> bool:
    return all(name in kinds for name in statement.source_names)


def _is_change(statement: Statement, kinds: Mapping[str, _Kind]) -> bool:
    """Return True when it yields only the change between two reads of the word, not its value."""
    names = [name for name in statement.source_names if name.startswith("%")]
    looks = [name for name in names if kinds.get(name) is _Kind.WORD]
    return statement.opcode.startswith("xor.") and len(looks) == len(names) == len(set(names)) == 2


def _kinds_used(text: str, kinds: Mapping[str, _Kind]) -> set[_Kind]:
    return {kinds[name] for name in mentioned(text) if name in kinds}
