"""Find the variables in device memory that a compiled text writes: they would keep state between launches.

A read-only table is harmless however it is declared, so the analysis tracks each variable's address, over all functions
and through pointer variables, ignoring execution order.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from kernel_lsp.toolchain.integrity.ptx_text import Function, OncePerCode, Place, PtxText, Source, Statement, mentioned

READING_FUNCTIONS = frozenset(("vprintf", "__assertfail"))
"""System functions that receive addresses of strings and only read them."""

_DECLARATION = re.compile(r"^(?:\.\w+\s+)*\.(?:global|const)\b(?P<rest>[^=]*)(?:=(?P<initial>.*))?", re.DOTALL)
_WRITES = ("st", "atom", "red", "cp", "stmatrix", "multimem", "wmma.store")
_BRACKETED = re.compile(r"\[([^\]]*)\]")

_Holders = dict[str, frozenset[str]]
"""Variables whose addresses each register may hold."""
WORKSPACE_REGISTERS = frozenset(Source.WORKSPACE.value)
"""Halves of the workspace address."""
CLOCK_REGISTERS = Source.CLOCK.value
_OF_NUMBERS = "mov add sub mul min max and or xor not neg abs shl shr div rem cvt"
_ARITHMETIC = frozenset([*_OF_NUMBERS.split(), "setp", "selp"])
_SLEEP, _BRANCH = "nanosleep", "bra"
_JUMP = re.compile(r"bra(?:\.uni)?\s+(?P<target>[$%\w]+)$")
END, UNKNOWN = -1, -2
"""Targets of control flow: the function's end, and an unknown address."""


def written_variables(ptx: PtxText) -> list[tuple[str, Place]]:
    """Return each variable of the module that is written or whose address escapes, with the first location."""
    variables = {name for statement in ptx.statements if (name := _declared(statement))}
    if not variables:
        return []
    points_to = _points_to(ptx, variables)
    functions = ptx.functions.values()
    exchanged = _exchanged(functions, ptx, variables, points_to)
    found: dict[str, Place] = {}
    for one in functions:
        holders = _holders(one, _Known(variables, points_to, exchanged, one.name, one.name in ptx.entries))
        for statement in one.body:
            for variable in sorted(_written_by(statement, holders)):
                found.setdefault(variable, statement.place)
    return list(found.items())


def _declared(statement: Statement) -> str | None:
    """Return the name declared by a `.global` statement; None for any other statement."""
    match = _DECLARATION.match(statement.text)
    if match is None:
        return None
    names = re.findall(
        r"(?<![.\w$%])([$A-Za-z_%][\w$]*)", re.sub(r"\.attribute\([^)]*\)|\[[^\]]*\]", " ", match["rest"])
    )
    return names[-1] if names else None


def _points_to(ptx: PtxText, variables: set[str]) -> dict[str, frozenset[str]]:
    """Return the variables whose addresses are reachable from another's initial value, directly or indirectly."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in variables}
    for statement in ptx.statements:
        match = _DECLARATION.match(statement.text)
        if match and match["initial"]:
            found[_declared(statement) or ""] = frozenset(mentioned(match["initial"])) & variables
    for _ in variables:
        found = {name: near.union(*(found[other] for other in near)) for name, near in found.items()}
    return found


@dataclass(frozen=True)
class _Known:
    """Facts about the body of `function`. A kernel's parameters come from the launch and hold no variable."""

    variables: set[str]
    points_to: Mapping[str, frozenset[str]]
    exchanged: _Exchanged
    function: str
    is_kernel: bool

    def of_parameter(self, statement: Statement) -> frozenset[str]:
        if f"{self.function}_param_" not in statement.text:
            return self.exchanged.returned
        return frozenset() if self.is_kernel else self.exchanged.passed


@dataclass(frozen=True)
class _Exchanged:
    """Variables whose address is passed by any call, and those returned by any function."""

    passed: frozenset[str] = frozenset()
    returned: frozenset[str] = frozenset()

    def __or__(self, other: _Exchanged) -> _Exchanged:
        return _Exchanged(self.passed | other.passed, self.returned | other.returned)


def _exchanged(
    functions: Collection[Function],
    ptx: PtxText,
    variables: set[str],
    points_to: Mapping[str, frozenset[str]],
) -> _Exchanged:
    """Compute the exchange over all functions: every parameter may hold what any call passes."""
    passed = _Exchanged()
    while True:
        more = passed
        for one in functions:
            known = _Known(variables, points_to, passed, one.name, one.name in ptx.entries)
            more |= _exchanged_by(one.body, _holders(one, known))
        if more == passed:
            return passed
        passed = more


def _exchanged_by(body: Sequence[Statement], holders: Mapping[str, frozenset[str]]) -> _Exchanged:
    passed: frozenset[str] = frozenset()
    arguments: frozenset[str] = frozenset()
    for statement in body:
        if statement.opcode.startswith("st.param"):
            arguments |= _held(statement.text, holders)
        elif statement.opcode.startswith("call"):
            if not READING_FUNCTIONS & statement.names:
                passed |= arguments
            arguments = frozenset()
    return _Exchanged(passed, returned=arguments)  # operands that are not arguments are the function's results


def _holders(function: Function, known: _Known) -> _Holders:
    """Return the variables that each register may hold: a result holds what its operands hold, a loaded value what the
    source variables point to, a parameter what was passed, and a load from the stack what any store left there."""
    on_stack: frozenset[str] = frozenset()
    while True:
        start = {variable: frozenset((variable,)) for variable in known.variables}
        holders = function.inferred(start, partial(_result, known=known, on_stack=on_stack), operator.or_)
        stored = on_stack.union(*(_stored(one, holders) for one in function.body if _is_on_stack(one)))
        if stored == on_stack:
            return holders
        on_stack = stored


def _result(
    statement: Statement, holders: Mapping[str, frozenset[str]], *, known: _Known, on_stack: frozenset[str]
) -> frozenset[str] | None:
    if statement.text.startswith("."):
        return None
    if statement.opcode.startswith("ld.param"):
        return known.of_parameter(statement) or None
    held = _carried(statement, holders, known.points_to)
    return (held | on_stack if statement.opcode.startswith(("ld.local", "ld.v", "ld.u", "ld.b")) else held) or None


def _carried(
    statement: Statement, holders: Mapping[str, frozenset[str]], points_to: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    if statement.opcode.startswith("ld"):
        held = _held(_operands(statement).partition(",")[2], holders)
        return frozenset().union(*(points_to[variable] for variable in held))
    if statement.opcode.startswith(("tex", "setp", *_WRITES)) or statement.text.startswith("."):
        return frozenset()
    return _held(_operands(statement).partition(",")[2], holders)


def _operands(statement: Statement) -> str:
    return statement.text.partition(" ")[2]


def _held(text: str, holders: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*(holders.get(name, frozenset()) for name in mentioned(text)))


def _written_by(statement: Statement, holders: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the variables that a statement writes, or whose address it stores where it cannot be tracked."""
    if statement.opcode.startswith("st.param") or not _is_write(statement.opcode):
        return frozenset()
    destination = _BRACKETED.search(statement.text)
    stored = frozenset() if _is_on_stack(statement) else _stored(statement, holders)
    return _held(destination[1] if destination else "", holders) | stored


def _is_on_stack(statement: Statement) -> bool:
    """Return True for a store to the thread's own stack, whose later loads are tracked."""
    return statement.opcode.startswith("st.local")


def _stored(statement: Statement, holders: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the variables whose address it stores."""
    if not statement.opcode.startswith("st"):
        return frozenset()
    return _held(_BRACKETED.sub(" ", _operands(statement)), holders)


def _is_write(opcode: str) -> bool:
    return any(opcode == write or opcode.startswith(f"{write}.") for write in _WRITES)


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
    return frozenset(name for name, function in ptx.functions.items() if _is_only_a_barrier(function))


@OncePerCode
def _is_only_a_barrier(function: Function) -> bool:
    if not any(_names_one_of(statement, WORKSPACE_REGISTERS) for statement in function.body):
        return True
    start = dict.fromkeys(WORKSPACE_REGISTERS, _Kind.ADDRESS)
    kinds = function.inferred(start, _result_kind, lambda first, _: first)
    return all(_is_allowed(statement, kinds) for statement in function.body)


def _names_one_of(statement: Statement, registers: Collection[str]) -> bool:
    """Check whether the statement has one of the registers. Few do, and reading the names of all takes long."""
    return any(name in statement.text and name in statement.names for name in registers)


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


def functions_that_only_pace_waits(ptx: PtxText) -> frozenset[str]:
    """Return the functions that read a clock and use it only for the duration of sleeps."""
    return frozenset(name for name, one in ptx.functions.items() if name and _only_paces_waits(one))


@OncePerCode
def _only_paces_waits(function: Function) -> bool:
    may_read = (each for each in function.body if any(clock in each.text for clock in CLOCK_REGISTERS))
    names = (name for statement in may_read for name in statement.names)
    return any(name.startswith(CLOCK_REGISTERS) for name in names) and _Body(function).only_paces_waits()


class _Body:
    """One function. Registers are tracked by name, ignoring order, which overestimates those derived from time."""

    def __init__(self, function: Function) -> None:
        self._statements = function.body
        self._labels = {label: index for index, each in enumerate(function.body) for label in each.labels}
        self._timed = frozenset(function.inferred({}, self._derived, operator.or_))
        self._only_slept = self._registers_only_slept()

    def only_paces_waits(self) -> bool:
        """Return True when time affects nothing but sleeps."""
        return bool(self._timed) and all(map(self._is_harmless, range(len(self._statements))))

    def _derived(self, statement: Statement, timed: Mapping[str, bool]) -> bool | None:
        """Return True for a value derived from time. One that is set under a predicate derived from time is."""
        return True if self._uses(statement, timed) and _kind(statement) != _BRANCH else None

    def _registers_only_slept(self) -> frozenset[str]:
        """Return the registers read by nothing but sleeps."""
        read: dict[str, bool] = {}
        for each in self._statements:
            for name in (*each.source_names, *([each.guard] if each.guard else [])):
                read[name] = read.get(name, True) and _kind(each) == _SLEEP
        return frozenset(name for name, is_slept in read.items() if is_slept)

    def _uses(self, statement: Statement, timed: Container[str]) -> bool:
        """Return True when the statement reads a time value; any operand of a non-arithmetic statement may be read."""
        operands = statement.sources if _kind(statement) in _ARITHMETIC else statement.text
        names = (*mentioned(operands), statement.guard)
        return any(name in timed or name.startswith(CLOCK_REGISTERS) for name in names)

    def _is_harmless(self, index: int) -> bool:
        statement = self._statements[index]
        if not self._uses(statement, self._timed):
            return True
        if _kind(statement) == _BRANCH:
            return len(self._ends(index)) == 1
        return self._is_pacing(index)

    def _is_pacing(self, index: int) -> bool:
        """Return True when it sets a time value, or one that is only slept, or sleeps."""
        statement = self._statements[index]
        if statement.opcode.startswith("."):
            return True
        if _kind(statement) == _SLEEP:
            return True
        is_arithmetic = _kind(statement) in _ARITHMETIC and "[" not in statement.text and bool(statement.results)
        return is_arithmetic and all(name in self._timed | self._only_slept for name in statement.results)

    def _ends(self, index: int) -> set[int]:
        """Return the first statements on all paths from a branch that do more than pace; loops have none."""
        ends: set[int] = set()
        seen: set[int] = set()
        ways = self._next(index)
        while ways:
            at = ways.pop()
            if at in seen:
                continue
            seen.add(at)
            if at < 0 or not self._is_on_the_way(at):
                ends.add(at)
            else:
                ways += self._next(at)
        return ends

    def _is_on_the_way(self, index: int) -> bool:
        statement = self._statements[index]
        if _kind(statement) == _BRANCH:
            is_known = _JUMP.match(statement.text) is not None
            return is_known and (not statement.guard or statement.guard in self._timed)
        return self._is_pacing(index)

    def _next(self, index: int) -> list[int]:
        """Return the successors of a statement; an unresolved branch may go anywhere."""
        statement = self._statements[index]
        following = index + 1 if index + 1 < len(self._statements) else END
        if _kind(statement) != _BRANCH:
            return [following]
        match = _JUMP.match(statement.text)
        if match is None or match["target"] not in self._labels:
            return [END, UNKNOWN]
        return [self._labels[match["target"]], *([following] if statement.guard else [])]


def _kind(statement: Statement) -> str:
    return statement.opcode.split(".")[0]
