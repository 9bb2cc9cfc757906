"""Find the variables in device memory that a compiled text writes: they would keep state between launches.

A read-only table is harmless however it is declared, so the analysis tracks each variable's address, over all functions
and through pointer variables, ignoring execution order.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kernel_lsp.toolchain.integrity.definition_use import Function, functions_of
from kernel_lsp.toolchain.integrity.ptx_text import Place, PtxText, Statement, mentioned

READING_FUNCTIONS = frozenset(("vprintf", "__assertfail"))
"""System functions that receive addresses of strings and only read them."""

_DECLARATION = re.compile(r"^(?:\.\w+\s+)*\.(?:global|const)\b(?P<rest>[^=]*)(?:=(?P<initial>.*))?", re.DOTALL)
_WRITES = ("st", "atom", "red", "cp", "stmatrix", "multimem", "wmma.store")
_BRACKETED = re.compile(r"\[([^\]]*)\]")

_Holders = dict[str, frozenset[str]]
"""Variables whose addresses each register may hold."""


def written_variables(ptx: PtxText) -> list[tuple[str, Place]]:
    """Return each variable of the module that is written or whose address escapes, with the first location."""
    variables = {name for statement in ptx.statements if (name := _declared(statement))}
    if not variables:
        return []
    points_to = _points_to(ptx, variables)
    functions = functions_of(ptx).values()
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
