"""Check that a function reads clocks only to pace a wait: to sleep longer, the longer it has waited.

The waits of libcu++ (``cuda::barrier``, ``cuda::pipeline``) do so: between two polls of a barrier they compare clocks
and sleep. The results of such a function are independent of time if values derived from a clock are used only in
arithmetic, in the duration of sleeps, and in branches whose two paths do nothing else before they join.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Mapping

from kernel_lsp.toolchain.integrity.definition_use import Function, Source, functions_of
from kernel_lsp.toolchain.integrity.ptx_text import PtxText, Statement, mentioned

CLOCK_REGISTERS = Source.CLOCK.value
_OF_NUMBERS = "mov add sub mul min max and or xor not neg abs shl shr div rem cvt"
_ARITHMETIC = frozenset([*_OF_NUMBERS.split(), "setp", "selp"])
_SLEEP, _BRANCH = "nanosleep", "bra"
_JUMP = re.compile(r"bra(?:\.uni)?\s+(?P<target>[$%\w]+)$")
END, UNKNOWN = -1, -2
"""Targets of control flow: the function's end, and an unknown address."""


def functions_that_only_pace_waits(ptx: PtxText) -> frozenset[str]:
    """Return the functions that read a clock and use it only for the duration of sleeps."""
    return frozenset(name for name, one in functions_of(ptx).items() if name and _Body(one).only_paces_waits())


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

    # --- below: what comes of a clock

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

    # --- below: what may be done with it

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
