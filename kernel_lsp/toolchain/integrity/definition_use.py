"""Relate the registers of a PTX function: which statements define and read each, and what a value depends on.

Execution order is ignored, which overestimates what a register may hold. A question about the code is a rule over this
graph: `inferred` carries facts forward to a fixed point, `behind` and `provenance` look back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import TypeVar

from kernel_lsp.toolchain.integrity.ptx_text import PtxText, Statement

Fact = TypeVar("Fact")


class Source(Enum):
    """Origin of a value, by the prefixes of special registers, or of the opcodes that load it."""

    THREAD = ("%tid.",)
    BLOCK = ("%ctaid.",)
    LAUNCH = ("%ntid.", "%nctaid.", "ld.param")
    CLOCK = ("%clock", "%globaltimer", "%pm")
    WORKSPACE = ("%envreg1", "%envreg2")
    LOADED = ("ld.global", "ld.shared", "ld.local", "atom", "shfl", "call")


class Function:
    """The definition-use graph of one function."""

    def __init__(self, name: str, body: Sequence[Statement]) -> None:
        self.name, self.body = name, body

    @cached_property
    def definitions(self) -> dict[str, list[Statement]]:
        """Map each register to the statements that set it."""
        found: dict[str, list[Statement]] = {}
        for statement in self.body:
            for register in statement.results:
                found.setdefault(register, []).append(statement)
        return found

    @cached_property
    def _mentions(self) -> dict[str, list[int]]:
        """Map each name to the positions of the statements that mention it, or are guarded by it."""
        found: dict[str, list[int]] = {}
        for position, statement in enumerate(self.body):
            for name in statement.names | {statement.guard}:
                found.setdefault(name, []).append(position)
        return found

    def behind(self, statement: Statement) -> Iterator[Statement]:
        """Yield the statements that the value depends on, each once; the first definition of each register."""
        pending, seen = [statement], set[str]()
        while pending:
            for name in pending.pop().source_names:
                if name in self.definitions and name not in seen:
                    seen.add(name)
                    pending.append(self.definitions[name][0])
                    yield self.definitions[name][0]

    def provenance(self, statement: Statement) -> frozenset[Source]:
        """Return the origins of the value that a statement computes from."""
        behind = list(self.behind(statement))
        words = {one.opcode for one in behind}
        words.update(name for one in (statement, *behind) for name in one.source_names if name.startswith("%"))
        return frozenset(source for source in Source if any(word.startswith(source.value) for word in words))

    def inferred(
        self,
        start: Mapping[str, Fact],
        rule: Callable[[Statement, Mapping[str, Fact]], Fact | None],
        join: Callable[[Fact, Fact], Fact],
    ) -> dict[str, Fact]:
        """Return a fact for each register, by iteration to a fixed point: the `join` of those that the `rule` gives for
        the statements that set it, None for a statement without one."""
        facts, waiting = dict(start), deque(range(len(self.body)))
        queued = set(waiting)
        while waiting:
            position = waiting.popleft()
            queued.discard(position)
            statement = self.body[position]
            fact = rule(statement, facts)
            if fact is None:
                continue
            for name in statement.results:
                joined = join(facts[name], fact) if name in facts else fact
                if name not in facts or joined != facts[name]:
                    facts[name] = joined
                    again = [other for other in self._mentions.get(name, ()) if other not in queued]
                    waiting.extend(again)
                    queued.update(again)
        return facts


def functions_of(ptx: PtxText) -> dict[str, Function]:
    """Return the functions of a text, by symbol; those outside of functions by the empty name."""
    bodies: dict[str, list[Statement]] = {}
    for statement in ptx.statements:
        bodies.setdefault(statement.function, []).append(statement)
    return {name: Function(name, body) for name, body in bodies.items()}
