"""Execute the statements of a kernel for one block, all threads side by side."""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.members import plain_name
from kernel_lsp.rules.cuda.parsing import ParsedCuda
from kernel_lsp.rules.cuda.simulation.values import (
    BLOCK,
    DATA,
    ELECTED,
    FOREIGN,
    GUESSED,
    SIZE,
    UNKNOWN,
    WARP,
    Cell,
    Mask,
    Memory,
    Place,
    Value,
    cell_of,
    held,
    joined,
    selected,
    truths,
    unknown,
)
from kernel_lsp.rules.cuda.variables import Variable, type_bytes, variables_of

MAX_OPERATIONS = 300_000
"""Maximum operations of single threads per kernel, about 45 ms."""
MAX_CALLS = 8
INTEGERS = re.compile(r"\b(?:unsigned|int|long|short|char|size_t|u?int\d+_t|uint|bool|ptrdiff_t)\b")
_FLOATS = re.compile(r"float|double|half")
_SKIPPED = frozenset(("comment", "preproc_call", "using_declaration", "alias_declaration", "static_assert_declaration"))


class Stopped(Exception):
    """The text is beyond what the simulation knows, or its budget is spent."""


@dataclass(slots=True)
class Split:
    """A condition that some threads of a block may not satisfy, and `is_of_warps` where all of a warp do or do not."""

    condition: Node
    depth: int
    is_of_warps: bool
    is_of_round: bool = False
    """True for a `continue`, behind which the threads meet again."""
    is_exact: bool = False
    """True where the threads' own indices decide, whatever the sizes are."""


@dataclass(slots=True)
class Frame:
    """A call: where it is, its variables by block, and the threads that have returned."""

    parsed: ParsedCuda
    call: Node | None
    is_macro: bool = False
    scopes: list[dict[str, Cell]] = field(default_factory=list)
    constants: dict[str, Value] = field(default_factory=dict)
    left: list[Split] = field(default_factory=list)
    result: Value | Place | None = None
    returns_reference: bool = False
    returned: list[bool] = field(default_factory=list)
    entered: list[bool] | None = None
    """The threads that make the call; None for all."""
    owner: Cell | Place | None = None
    """The structure whose method is called, with the name of its type."""
    structure: str = ""


@dataclass(slots=True)
class Loop:
    """The threads that a loop's body has left, or left for its next iteration."""

    node: Node
    broken: list[bool]
    continued: list[bool]
    splits: int
    round_: int = 0
    depth: int = 0
    """The number of calls around the loop."""
    is_open: bool = False
    """True where the number of iterations is unknown."""
    n_exchanges: int = 0
    """The exchanges between threads before the loop."""


@cache
def methods_of(machine: type, prefix: str) -> dict[str, Callable]:
    """Return the methods of a machine for types of nodes, by the type, which is the rest of their names."""
    return {name.removeprefix(prefix): getattr(machine, name) for name in dir(machine) if name.startswith(prefix)}


class Machine(ABC):
    """The state of one block. Subclasses evaluate expressions and watch accesses."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self.mask: Mask = None
        self.frames: list[Frame] = []
        self.loops: list[Loop] = []
        """The loops of the current call, innermost last."""
        self.outer_loops: list[Loop] = []
        """Those of its callers."""
        self.splits: list[Split] = []
        self.origins = 0
        """Those of the conditions around the current statement."""
        self.conditions: list[Value] = []
        self.path: tuple[tuple[str, int], ...] = ()
        """Conditions that all threads share and whose result is unknown, with the one assumed."""
        self.shared_memories: dict[int, Memory] = {}
        """Shared variables by the place of their declaration."""
        self.n_operations = 0
        self.dynamic_bytes: int | None = None
        self.n_exchanges = 0
        """Number of reads of other threads' values."""
        self.n_fresh = 0
        self.has_skipped = False
        """True where iterations of a loop were not run."""

    # what a subclass does

    @abstractmethod
    def value(self, node: Node | None) -> Value:
        """Evaluate an expression."""

    @abstractmethod
    def place(self, node: Node) -> Cell | Place:
        """Find the variable or the element that an expression names."""

    @abstractmethod
    def variable_of(self, value: Value, type_text: str) -> Cell:
        """Return a variable with this value, and with its members where these may be indices."""

    @abstractmethod
    def left_loop(self, loop: Loop) -> None:
        """Watch the end of a loop."""

    @abstractmethod
    def needs_all_rounds(self, loop: Loop) -> bool:
        """Return whether the iterations of a loop differ in what they exchange between threads."""

    # names

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def source(self, node: Node) -> str:
        parsed = self.frames[-1].parsed
        text = parsed.ascii_text
        return parsed.source(node) if text is None else text[node.start_byte : node.end_byte]

    def fresh(self, origins: int = SIZE) -> Value:
        """Return a number in general position: larger than every earlier one, and no multiple of a block's size."""
        self.n_fresh += 1
        return Value(self.n_fresh * 73_687_091 + 1_000_003, origins)

    def declare(self, name: str, cell: Cell) -> None:
        self.frame.scopes[-1][name] = cell

    def cell(self, name: str) -> Cell | None:
        index = len(self.frames) - 1
        while index >= 0:
            frame = self.frames[index]
            for scope in reversed(frame.scopes):
                if name in scope:
                    return scope[name]
            if name in frame.constants:
                return Cell(frame.constants[name])
            if not frame.is_macro:
                return None
            index -= 1
        return None

    def spend(self, n_operations: int) -> None:
        self.n_operations += n_operations
        if self.n_operations > MAX_OPERATIONS:
            raise Stopped

    # threads

    def is_active(self) -> bool:
        return self.mask is None or any(self.mask)

    def threads(self) -> list[bool]:
        return [True] * self.n_threads if self.mask is None else self.mask

    def narrowed(self, by: list[bool]) -> Mask:
        return by if self.mask is None else list(map(operator.and_, self.mask, by))

    def stop_threads(self, where: list[bool]) -> None:
        """Take the active threads out, and note them in `where`."""
        where[:] = map(operator.or_, where, self.threads())
        self.mask = [False] * self.n_threads

    # statements

    def run(self, node: Node | None) -> None:
        kind = "comment" if node is None else node.type
        if node is None or kind in _SKIPPED or not self.is_active():
            return
        self.spend(20)
        method = methods_of(type(self), "_run_").get(kind)
        if method is None:
            if kind.startswith("preproc") or kind in (
                "goto_statement",
                "labeled_statement",
                "gnu_asm_expression",
            ):
                raise Stopped
            self.value(node)
        else:
            method(self, node)

    def _run_compound_statement(self, node: Node) -> None:
        self.frame.scopes.append({})
        for child in node.named_children:
            self.run(child)
        self.frame.scopes.pop()

    def _run_expression_statement(self, node: Node) -> None:
        for child in node.named_children:
            self.value(child)

    def _run_else_clause(self, node: Node) -> None:
        for child in node.named_children:
            self.run(child)

    def _run_init_statement(self, node: Node) -> None:
        self._run_else_clause(node)

    def _run_preproc_ifdef(self, node: Node) -> None:
        """Run both sides of an `#if`: all threads share its condition, which the text does not say."""
        condition = node.child_by_field_id(fields.CONDITION) or node.child_by_field_id(fields.NAME)
        other = node.child_by_field_id(fields.ALTERNATIVE)
        inner = [each for each in node.named_children if each not in (condition, other)]

        def then() -> None:
            for each in inner:
                self.run(each)

        self._both(Value(None), condition or node, then, lambda: self.run(other), node)

    _run_preproc_if = _run_preproc_elif = _run_preproc_ifdef
    _run_preproc_else = _run_else_clause

    def _run_declaration(self, node: Node) -> None:
        for variable in variables_of(self.frame.parsed, node, node):
            self.declare(variable.name, self.declared(variable))

    def declared(self, variable: Variable) -> Cell:
        """Return the cell of a declared variable, with its memory or initial value."""
        text = variable.type_text
        if variable.is_reference and variable.value is not None:
            place = self.place(variable.value)
            value = place.value if isinstance(place, Cell) else UNKNOWN
            return Cell(value, text, place)
        if variable.is_shared or (variable.is_array and variable.sizes) or "__shared__" in text:
            return Cell(self._array(variable), text)
        if variable.value is None:
            memory = Memory(variable.name, "global", type_bytes(variable.element) or 4) if variable.is_pointer else None
            return Cell(Value(None, 0, False, memory, width=memory.width if memory else 4), text)
        value = self.value(variable.value)
        if variable.is_pointer and value.memory is not None and value.dims:
            value = replace(value, dims=())
        return self.variable_of(self.converted(value, variable), text)

    def converted(self, value: Value, variable: Variable) -> Value:
        """Return the value as a variable's type holds it."""
        if variable.is_pointer and value.memory is None:
            memory = Memory(variable.name, "global", type_bytes(variable.element) or 4)
            memory.is_volatile = self._is_result(variable.value)
            return Value(0 if not value.differs else None, value.origins, value.differs, memory, memory.width)
        return self.cast(value, variable.element) if not variable.is_pointer else value

    def _is_result(self, node: Node | None) -> bool:
        """Return whether a call returns the pointer: ``Shared<T>()``, whose memory may be that of the block."""
        is_call = node is not None and node.type == "call_expression"
        return is_call and node is not None and "_cast" not in self.source(node).partition("(")[0]

    def cast(self, value: Value, type_text: str) -> Value:
        """Return the number as another type holds it: floats have no known number."""
        if value.memory is not None or value.group:
            return value
        is_float = _FLOATS.search(type_text) and not INTEGERS.search(type_text)
        return unknown(value) if is_float else held(value, type_text)

    def _array(self, variable: Variable) -> Value:
        """Return the memory of an array, or of a shared variable."""
        sizes = [self.value(size) if size is not None else Value(None) for size in variable.sizes]
        extents = tuple(size.number if isinstance(size.number, int) and not size.origins else None for size in sizes)
        dims = tuple(size.number if isinstance(size.number, int) else None for size in sizes)
        width = type_bytes(variable.element) or 4
        kind = "shared" if "__shared__" in variable.type_text else "local"
        memory = self._known_memory(variable, kind) or Memory(variable.name, kind, width, extents)
        memory.is_float = not variable.type_facts.is_integer and variable.element not in ("bool", "char")
        memory.is_volatile, memory.element = "volatile" in variable.type_text, plain_name(variable.type_text)
        if kind == "shared":
            self.shared_memories[variable.name_node.start_byte] = memory
        memory.is_set = memory.is_set or "extern" in variable.type_text or variable.value is not None
        memory.limit = self.dynamic_bytes if "extern" in variable.type_text else None
        if kind == "local" and variable.value is not None:
            given = self.value(variable.value)
            for each in (given.members or {"": Cell(given)}).values():
                memory.hold(UNKNOWN, each.value)
        if not variable.is_array:
            return Value(0, 0, False, memory, width, ())
        return Value(0, 0, False, memory, width, dims or (None,))

    def _known_memory(self, variable: Variable, kind: str) -> Memory | None:
        """Return the memory of a shared variable that was declared before: it is one for all calls of its function."""
        if kind != "shared":
            return None
        return self.shared_memories.get(variable.name_node.start_byte)

    # branches

    def _run_if_statement(self, node: Node) -> None:
        clause = node.child_by_field_id(fields.CONDITION)
        self.frame.scopes.append({})
        condition = self._condition_of(clause)
        then, other = node.child_by_field_id(fields.CONSEQUENCE), node.child_by_field_id(fields.ALTERNATIVE)
        self.branch(self.value(condition), condition or node, lambda: self.run(then), lambda: self.run(other), node)
        self.frame.scopes.pop()

    def _condition_of(self, clause: Node | None) -> Node | None:
        if clause is None or clause.type != "condition_clause":
            return clause
        for child in clause.named_children[:-1]:
            self.run(child)
        return clause.named_children[-1] if clause.named_children else None

    def branch(self, value: Value, condition: Node, then, other, node: Node) -> None:
        """Run both sides of a branch, each for the threads that take it."""
        before, origins, path = self.mask, self.origins, self.path
        self.origins |= value.origins
        self.conditions.append(value)
        if value.is_open:
            self._both(value, condition, then, other, node)
        else:
            taken = truths(value.number, self.n_threads)
            split = self._split_of(value, condition, taken)
            self._note_exits(split, node)
            self._push(split)
            self.mask = self.narrowed(taken)
            if self.is_active():
                then()
            first = self.mask
            self.mask = before
            self.mask = self.narrowed(list(map(operator.not_, taken)))
            if self.is_active():
                other()
            self._pop(split)
            self.mask = None if first is None or self.mask is None else list(map(operator.or_, first, self.mask))
            if self.mask is not None and all(self.mask):
                self.mask = None
        self.conditions.pop()
        self.origins, self.path = origins, path

    def _both(self, value: Value, condition: Node, then, other, node: Node) -> None:
        """Run both sides for all threads: nothing is known about the condition."""
        before, key = self.mask, self.source(condition)
        known = dict(self.path).get(key)
        may_split = value.differs and not value.origins & FOREIGN
        split = Split(condition, len(self.frames), value.is_of_warps) if may_split else None
        self._note_exits(split, node)
        self._push(split)
        path = self.path
        for is_true, side in ((True, then), (False, other)):
            if known is None or known is is_true:
                self.mask = before
                if is_true and value.possible is not None:
                    self.mask = self.narrowed(value.possible)
                self.path = path if value.differs else (*path, (key, is_true))
                side()
        self._pop(split)
        self.mask = before

    def _split_of(self, value: Value, condition: Node, taken: list[bool]) -> Split | None:
        """Return how a condition with known numbers divides the block; None where all its threads go one way."""
        if not value.differs or value.origins & FOREIGN:
            return None
        if value.origins & (SIZE | BLOCK | DATA):
            return Split(condition, len(self.frames), value.is_of_warps)
        if (
            value.origins & GUESSED
            or len({side for side, is_active in zip(taken, self.threads(), strict=True) if is_active}) < 2
        ):
            return None
        return Split(condition, len(self.frames), not self.splits_warps(taken), is_exact=True)

    def splits_warps(self, mask: Mask) -> bool:
        warps = range(0, self.n_threads, WARP)
        return mask is not None and any(len(set(mask[first : first + WARP])) == 2 for first in warps)

    def _push(self, split: Split | None) -> None:
        if split is not None:
            self.splits.append(split)

    def _pop(self, split: Split | None) -> None:
        if split is not None:
            self.splits.pop()

    def _note_exits(self, split: Split | None, node: Node) -> None:
        """Note that some threads may leave the function, or the loop, in a branch."""
        if split is None:
            return
        text = self.source(node)
        if "return" in text and any(each.type == "return_statement" for each in _descendants(node)):
            self.frame.left.append(split)
        if self.loops and "break" in text and _has_exit(node, "break_statement"):
            self.splits.append(split)
        elif self.loops and "continue" in text and _has_exit(node, "continue_statement"):
            self.splits.append(replace(split, is_of_round=True))

    def _is_unsure(self) -> bool:
        return any(value.is_open for value in self.conditions)

    def _run_return_statement(self, node: Node) -> None:
        inner = node.named_children[0] if node.named_children else None
        frame = self.frame
        if inner is not None:
            result: Value | Place = self.place_or_value(inner) if frame.returns_reference else self.value(inner)
            if isinstance(result, Value) and isinstance(frame.result, Value):
                result = (
                    unknown(frame.result, result)
                    if self._is_unsure()
                    else selected(self.threads(), result, frame.result)
                )
                result = replace(result, members=None)
            frame.result = result
        if not self._is_unsure():
            self.stop_threads(frame.returned)

    def place_or_value(self, node: Node) -> Value | Place:
        found = self.place(node)
        return found if isinstance(found, Place) else found.value

    # assignments

    def assign(self, cell: Cell, value: Value) -> None:
        """Set a variable in the active threads."""
        old = cell.value
        if self._is_unsure() and any(c.differs and c.number is None for c in self.conditions):
            memory = value.memory or old.memory
            same = value.number == old.number and value.memory is old.memory
            origins, loads = value.origins | old.origins | DATA, value.loads | old.loads
            either = value if same else Value(None, origins, True, memory, value.width, (), loads)
            cell.value = replace(either, parts=joined(value.parts, old.parts))
        elif self.mask is None:
            cell.value = value
        else:
            cell.value = selected(self.mask, value, old)
        if cell.members or value.members:
            self._assign_members(cell, value)
        origins = cell.value.origins | self.origins & (SIZE | ELECTED)
        if cell.value.number is None or origins != cell.value.origins:  # an unknown number is known by its identity
            cell.value = replace(cell.value, origins=origins)

    def _assign_members(self, cell: Cell, value: Value) -> None:
        """Set the members of a structure, which are unknown where some threads alone do so."""
        is_sure = self.mask is None and not self._is_unsure()
        cell.members = cell_of(value).members if is_sure else {}
        if cell.value.members:
            cell.value = replace(cell.value, members=None)


def _descendants(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        if each.type != "lambda_expression":
            waiting += each.named_children


def _has_exit(branch: Node, kind: str) -> bool:
    """Return whether a `break` or `continue` in the branch ends the iteration around it."""
    waiting = list(branch.named_children)
    while waiting:
        each = waiting.pop()
        if each.type == kind:
            return True
        if each.type not in ("for_statement", "while_statement", "do_statement", "switch_statement"):
            waiting += each.named_children
    return False
