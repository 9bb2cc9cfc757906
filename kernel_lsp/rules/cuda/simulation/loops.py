"""Execute loops and switches: in full where their bounds are known, and else a few iterations."""

from __future__ import annotations

import operator
import re
from itertools import pairwise

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.simulation.machine import MAX_OPERATIONS, Loop, Machine, Split
from kernel_lsp.rules.cuda.simulation.values import (
    DATA,
    FOREIGN,
    SIZE,
    WARP,
    Cell,
    Value,
    applied,
    lanes,
    truths,
    unknown,
)

MAX_EXACT_ROUNDS, MAX_OPEN_ROUNDS, MAX_REPEATED_ROUNDS = 300, 2, 2
"""Maximum iterations of a loop whose bound is known, of one whose bound is not, and of one that steps evenly, before
its last iteration."""
MAX_EXCHANGING_ROUNDS = 32
"""Maximum iterations of an even loop in which threads read values of others, before its last iteration."""


class Looper(Machine):
    """Executes the statements of a kernel with their loops."""

    def _run_for_statement(self, node: Node) -> None:
        self.frame.scopes.append({})
        initializer = node.child_by_field_name("initializer")
        self.run(initializer)
        update = node.child_by_field_name("update")
        self._loop(node, node.child_by_field_id(fields.CONDITION), update)
        self.frame.scopes.pop()

    def _run_while_statement(self, node: Node) -> None:
        self.frame.scopes.append({})
        clause = node.child_by_field_id(fields.CONDITION)
        condition = clause.named_children[-1] if clause is not None and clause.named_children else clause
        self._loop(node, condition, None)
        self.frame.scopes.pop()

    def _run_do_statement(self, node: Node) -> None:
        self._loop(node, node.child_by_field_id(fields.CONDITION), None, is_behind=True)

    def _run_for_range_loop(self, node: Node) -> None:
        name = node.child_by_field_id(fields.DECLARATOR)
        self.frame.scopes.append({})
        if name is not None:
            self.declare(self.source(name), Cell(unknown()))
        self.run(node.child_by_field_id(fields.BODY))
        self.frame.scopes.pop()

    def _loop(self, node: Node, condition: Node | None, update: Node | None, is_behind: bool = False) -> None:
        entered, origins, body = self.threads(), self.origins, node.child_by_field_id(fields.BODY)
        loop = Loop(node, [False] * self.n_threads, [False] * self.n_threads, len(self.splits), 0, len(self.frames) - 1)
        loop.n_exchanges = self.n_exchanges
        self.loops.append(loop)
        n_conditions = len(self.conditions)
        for round_ in range(MAX_EXACT_ROUNDS):
            if (
                condition is not None
                and (round_ or not is_behind)
                and not self._goes_on(condition, update, loop, round_)
            ):
                break
            loop.round_ = round_
            self.run(body)
            self.mask = self.threads()
            self.splits[loop.splits :] = [split for split in self.splits[loop.splits :] if not split.is_of_round]
            if any(loop.continued):
                self.mask = list(map(operator.or_, self.mask, loop.continued))
                loop.continued = [False] * self.n_threads
            if not self.is_active():
                break
            if update is not None:
                self._step(update, n_conditions)
                n_repeated = MAX_EXCHANGING_ROUNDS if self.needs_all_rounds(loop) else self._n_repeated()
                if round_ == n_repeated and condition is not None:
                    self._skip_to_last(condition, update)
            loop.is_open = loop.is_open or condition is None
            if condition is None and round_ >= MAX_OPEN_ROUNDS:
                break
        self.loops.pop()
        self.left_loop(loop)
        self._forget_counter(condition, update, loop)
        del self.splits[loop.splits :]
        del self.conditions[n_conditions:]
        self.origins = origins
        returned = self.frame.returned
        self.mask = [a and not b for a, b in zip(entered, returned, strict=True)]
        if all(self.mask):
            self.mask = None

    def _n_repeated(self) -> int:
        """Return the iterations of an even loop before its last one: fewer once much of the budget is spent."""
        return MAX_REPEATED_ROUNDS if self.n_operations < MAX_OPERATIONS // 4 else 0

    def _step(self, update: Node, n_conditions: int) -> None:
        """Run the update of a loop as the threads see it that go on: within the loop there are no others."""
        conditions, self.conditions = self.conditions, self.conditions[:n_conditions]
        self.value(update)
        self.conditions = conditions

    def _forget_counter(self, condition: Node | None, update: Node | None, loop: Loop) -> None:
        """Forget the counter of a loop that threads leave at different values, which are not known."""
        left = None if condition is None else condition.child_by_field_id(fields.LEFT)
        cell = None if left is None or left.type != "identifier" else self.cell(self.source(left))
        if cell is not None and update is not None and loop.is_open and cell.value.memory is None:
            cell.value = unknown(cell.value, origins=DATA)

    def _skip_to_last(self, condition: Node, update: Node) -> None:
        """Count up to the last iteration of a loop that steps evenly: those in between do as the first ones did."""
        left = condition.child_by_field_id(fields.LEFT)
        cell = None if left is None or left.type != "identifier" else self.cell(self.source(left))
        if cell is None or not re.search(r"\+\+|--|\+=|-=", self.source(update)):
            return
        last, self.has_skipped = cell.value, True
        for _ in range(MAX_EXACT_ROUNDS):
            before, value = cell.value, self.value(condition)
            if not isinstance(cell.value.number, int) or value.is_open or value.number is None:
                return
            if not value.number:
                cell.value = last
                return
            last = before
            self.value(update)

    def _goes_on(self, condition: Node, update: Node | None, loop: Loop, round_: int) -> bool:
        """Take the threads out that a loop's condition ends, and return whether any goes on."""
        value = self.value(condition)
        self.origins |= value.origins
        is_open = value.number is None or bool(value.origins & (SIZE | DATA))
        loop.is_open = loop.is_open or is_open
        if is_open and round_ >= MAX_OPEN_ROUNDS:
            return False
        if round_ == 0:
            if value.differs:
                self.conditions.append(value)
            if value.differs and value.origins and not value.origins & FOREIGN:
                n_together = self._n_together(condition, update)
                if n_together < self.n_threads:
                    is_of_warps = value.is_of_warps or n_together == WARP
                    self.splits.append(Split(condition, len(self.frames), is_of_warps))
        if value.is_open:
            return True
        self.mask = self.narrowed(truths(value.number, self.n_threads))
        return self.is_active()

    def _n_together(self, condition: Node, update: Node | None) -> int:
        """Return how many neighbouring threads run a loop equally often: the block or a warp where the bound is rounded
        up to whole ones, and else 1."""
        left, right = condition.child_by_field_id(fields.LEFT), condition.child_by_field_id(fields.RIGHT)
        if condition.type != "binary_expression" or left is None or left.type != "identifier" or update is None:
            return 1
        cell = self.cell(self.source(left))
        if cell is None or right is None:
            return 1
        before, bound = cell.value, self.value(right)
        self.value(update)
        step = applied("-", cell.value, before)
        cell.value = before
        steps = set(lanes(step.number, 1))
        length = steps.pop() if step.number is not None and len(steps) == 1 else 0
        if length <= 0 or not isinstance(bound.number, int) or before.number is None:
            return 1
        firsts = lanes(before.number, self.n_threads)
        if not step.origins & SIZE:
            rounds = [(bound.number - first + length - 1) // length for first in firsts]
            return self.n_threads if len(set(rounds)) == 1 else WARP if Value(rounds).is_of_warps else 1
        together = (size for size in (self.n_threads, WARP) if self.n_threads % size == 0)
        return next((size for size in together if _is_whole(bound.number, firsts, size)), 1)

    def _run_break_statement(self, node: Node) -> None:
        if self.loops:
            self._leave_loop(self.loops[-1].broken)

    def _run_continue_statement(self, node: Node) -> None:
        if self.loops:
            self._leave_loop(self.loops[-1].continued)

    def _leave_loop(self, where: list[bool]) -> None:
        """Take the threads out of an iteration, or leave them in where it is unknown which of them go."""
        if not self._is_unsure():
            self.stop_threads(where)

    def _run_switch_statement(self, node: Node) -> None:
        clause = node.child_by_field_id(fields.CONDITION)
        value = self.value(self._condition_of(clause))
        body = node.child_by_field_id(fields.BODY)
        before, origins = self.mask, self.origins
        may_split = value.differs and not value.origins & FOREIGN
        if may_split:
            self.splits.append(Split(clause or node, len(self.frames), value.is_of_warps))
        self.origins |= value.origins
        self.conditions.append(unknown(value))
        self.loops.append(Loop(node, [False] * self.n_threads, [False] * self.n_threads, 0))
        path = self.path
        cases = [] if body is None else body.named_children
        for place, case in enumerate(cases):
            self.mask = before
            self.path = path if value.differs else (*path, (f"case {node.start_byte}", place))
            for child in case.named_children if case.type == "case_statement" else [case]:
                self.run(child)
        self.loops.pop()
        self.conditions.pop()
        if may_split:
            self.splits.pop()
        self.mask, self.origins, self.path = before, origins, path


def _is_whole(bound: int, firsts: list[int], size: int) -> bool:
    """Return whether no bound that differs by whole groups of so many threads ends a loop within a group."""
    distance = firsts[1] - firsts[0] if len(firsts) > 1 else 0
    if distance <= 0 or any(two - one != distance for one, two in pairwise(firsts[:size])):
        return len(set(firsts)) == 1
    rest = (bound - firsts[0]) % (distance * size)
    return rest == 0 or rest > distance * (size - 1)
