"""Whether a function reads the time only to pace a wait: to sleep longer, the longer it has waited.

So do the waits of libcu++ (``cuda::barrier``, ``cuda::pipeline``): between two looks at a barrier they compare clocks
and sleep. Nothing that such a function computes depends on time, as long as what comes of a clock goes into arithmetic,
into how long it sleeps, and into branches whose two ways do nothing else before they meet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from kernel_lsp.toolchain.integrity.ptx_text import PtxText, Statement, mentioned

CLOCK_REGISTERS = ("%clock", "%globaltimer", "%pm")
_OF_NUMBERS = "mov add sub mul min max and or xor not neg abs shl shr div rem cvt"
_ARITHMETIC = frozenset([*_OF_NUMBERS.split(), "setp", "selp"])
_SLEEP, _BRANCH = "nanosleep", "bra"
_JUMP = re.compile(r"bra(?:\.uni)?\s+(?P<target>[$%\w]+)$")
END, UNKNOWN = -1, -2
"""Where a way leaves its function, and where it cannot be followed."""


def functions_that_only_pace_waits(ptx: PtxText) -> frozenset[str]:
    """The functions that read a clock, and in which nothing but the length of sleeps comes of it."""
    bodies: dict[str, list[Statement]] = {}
    for statement in ptx.statements:
        bodies.setdefault(statement.function, []).append(statement)
    return frozenset(name for name, body in bodies.items() if name and _Body(body).only_paces_waits())


class _Body:
    """One function. Registers are followed by name, wherever they are set: more seems to come of time than does."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self._statements = statements
        self._labels = {label: index for index, each in enumerate(statements) for label in each.labels}
        self._timed = self._registers_of_time()
        self._only_slept = self._registers_only_slept()

    def only_paces_waits(self) -> bool:
        """Whether time goes nowhere but into sleeps."""
        return bool(self._timed) and all(map(self._is_harmless, range(len(self._statements))))

    # --- below: what comes of a clock

    def _registers_of_time(self) -> frozenset[str]:
        """To a fixed point. What is set under a predicate that came of time came of time, too."""
        found: set[str] = set()
        n_before = -1
        while len(found) > n_before:
            n_before = len(found)
            for each in self._statements:
                if self._uses(each, found) and _kind(each) != _BRANCH:
                    found.update(each.results)
        return frozenset(found)

    def _registers_only_slept(self) -> frozenset[str]:
        """Those that nothing but a sleep reads."""
        read: dict[str, bool] = {}
        for each in self._statements:
            for name in (*each.source_names, *([each.guard] if each.guard else [])):
                read[name] = read.get(name, True) and _kind(each) == _SLEEP
        return frozenset(name for name, is_slept in read.items() if is_slept)

    def _uses(self, statement: Statement, timed: Collection[str]) -> bool:
        """Of what is no arithmetic, any operand may be read."""
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
        """It sets what came of time, or what is only slept, or sleeps."""
        statement = self._statements[index]
        if statement.opcode.startswith("."):
            return True
        if _kind(statement) == _SLEEP:
            return True
        is_arithmetic = _kind(statement) in _ARITHMETIC and "[" not in statement.text and bool(statement.results)
        return is_arithmetic and all(name in self._timed | self._only_slept for name in statement.results)

    def _ends(self, index: int) -> set[int]:
        """The first statements, on all ways from a branch, that do more than pace; ways that go round end nowhere."""
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
        """Where control goes after a statement; a branch that cannot be followed may go anywhere."""
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
