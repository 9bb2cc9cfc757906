"""Find reads of shared memory that no barrier orders after another thread's write, for KL207.

From a write the search follows program order, out of the enclosing branches and loops. It ends at a barrier, or at
anything that could be one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import conditions_around
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.nodes import LOOPS
from kernel_lsp.rules.cuda.threads.threads import depends_on_thread, growth, is_loop_variable, may_depend_on_thread
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.rule import words

MAX_STATEMENTS = 40
"""Maximum statements after a write that are searched for a read."""
MAX_FIRST_THREADS = 32
"""Threads that every block is assumed to have. One of them writes `tile[0]`."""
MAX_SUBSTITUTIONS = 3
_PASSED = frozenset(("if_statement", "else_clause", *LOOPS))
_ENDS = frozenset(("return_statement", "break_statement", "continue_statement", "goto_statement"))
_STOPS = re.compile(rb"#|\basm\b|\bvolatile\b|\[[&=]\]|\[[&=]?\w*\]\s*\(")
"""Preprocessor conditions, inline PTX and lambdas. Nothing is reported after them."""
_UNROLL = re.compile(rb"#\s*pragma\s+(?:unroll|nounroll)[^\n]*")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_HARMLESS_CALLS = words(
    """
    min max fminf fmaxf expf exp logf log sqrtf sqrt rsqrtf fabsf abs float int static_cast reinterpret_cast
    __ldg make_float2 make_float4 make_int2 make_int4 __float2half __half2float __float2bfloat16
    __bfloat162float powf tanhf fmaf fma __expf __fdividef size_t unsigned log1pf expm1f erff log2f exp2f sinf cosf
    fmax fmin pow rsqrt tanh double make_float3 __popc __saturatef
    """
)
"""Calls that are provably no barrier. After any other call nothing is reported about shared memory."""


@dataclass(frozen=True)
class Unordered:
    """An unordered read, and the statement before which a barrier would order it."""

    read: Node
    statement: Node


_GROUP_QUERIES = words(
    """
    thread_rank thread_index group_index size num_threads dim_threads group_dim meta_group_rank meta_group_size
    this_thread_block tiled_partition
    """
)
"""Functions of cooperative groups that order nothing."""


def is_harmless(function: Function, call: Node) -> bool:
    """Return whether the call is provably no barrier: of arithmetic, of a group's rank, or of a function of the file
    that has none."""
    name = function.callee(call)
    is_query = name.rpartition(".")[2].rpartition("::")[2] in _GROUP_QUERIES and name not in _GROUP_QUERIES
    is_functor = any(variable in function.parameters for variable in function.named(name))
    return name in _HARMLESS_CALLS or is_query or is_functor or name in function.file.barrier_free_functions


def shared_array(function: Function, subscript: Node | None) -> Variable | None:
    """Return the shared array that a subscript (of any number of dims) accesses."""
    for _ in range(4):
        if subscript is None or subscript.type != "subscript_expression":
            break
        subscript = subscript.child_by_field_id(fields.ARGUMENT)
    variable = function.variable(subscript)
    return variable if variable is not None and function.is_in_shared(variable) else None


def following(function: Function, statement: Node) -> Iterator[Node]:
    """Yield the statements that run after one, in program order, up to the end of the body."""
    node = statement
    while (parent := function.parent(node)) is not None:
        if parent.type == "compound_statement":
            yield from _behind(node)
        elif parent.type not in _PASSED:
            return
        node = parent


def unordered_read(function: Function, write: Node, array: Variable) -> Unordered | None:
    """Return the first read of another thread's element after the write that no barrier orders."""
    statement, left = function.parent(write), write.child_by_field_id(fields.LEFT)
    if statement is None or statement.type != "expression_statement" or left is None:
        return None
    question = _Question(function, write, left, array)
    for count, behind in enumerate(following(function, statement)):
        if count == MAX_STATEMENTS or _may_order(function, behind):
            return None
        stop = _first_call(function, behind)
        read = next((r for r in question.reads(behind) if stop is None or r.start_byte < stop.start_byte), None)
        read = read or (question.counted(stop) if stop is not None else None)
        if read is not None:
            return Unordered(read, behind)
        if stop is not None or behind.type in _ENDS:
            return None
    return None


def overtaken_read(function: Function, write: Node, array: Variable) -> Node | None:
    """Return the statement of a write to a thread's own element, if all threads read the element of one thread before,
    ``m = red[0];``, and no barrier keeps that thread from writing while others still read."""
    statement, left = function.parent(write), write.child_by_field_id(fields.LEFT)
    if statement is None or statement.type != "expression_statement" or left is None:
        return None
    if function.operator(write) != "=" or any(
        may_depend_on_thread(function, c) for c in conditions_around(function, write)
    ):
        return None
    node = statement.prev_named_sibling
    for _ in range(MAX_STATEMENTS):
        if node is None or _may_order(function, node) or _first_call(function, node) is not None:
            return None
        if any(_is_read_by_all(function, read, array) for read in function.subscripts.within(node)):
            return statement
        node = node.prev_named_sibling
    return None


def _is_read_by_all(function: Function, read: Node, array: Variable) -> bool:
    """Return whether every thread reads an element that one of the first threads owns."""
    indices = indices_of(read)
    if shared_array(function, read) is not array or len(indices) != 1 or not _is_read(function, read):
        return False
    value = function.constant(indices[0])
    is_by_all = not any(may_depend_on_thread(function, condition) for condition in conditions_around(function, read))
    return value is not None and 0 <= value < MAX_FIRST_THREADS and is_by_all


def _behind(statement: Node) -> Iterator[Node]:
    sibling = statement.next_named_sibling
    while sibling is not None:
        if sibling.type != "comment":
            yield sibling
        sibling = sibling.next_named_sibling


def _may_order(function: Function, statement: Node) -> bool:
    """Return whether a statement cannot be analysed: `#if`, `asm`, a macro on its own."""
    data = _UNROLL.sub(b"", function.file.parsed.data[statement.start_byte : statement.end_byte])
    is_macro = statement.type == "expression_statement" and any(
        child.type == "identifier" for child in statement.named_children[:1]
    )
    return is_macro or statement.type in ("labeled_statement", "case_statement") or _STOPS.search(data) is not None


def _first_call(function: Function, statement: Node) -> Node | None:
    return next((call for call in function.calls.within(statement) if not is_harmless(function, call)), None)


class _Question:
    """One write, and the test whether a read accesses an element that another thread writes there."""

    def __init__(self, function: Function, write: Node, left: Node, array: Variable) -> None:
        self._function, self._left, self._array = function, left, array
        self._indices = indices_of(left)
        self._guards = _guards(function, write)
        known = function.caches.setdefault("written", {})
        if id(array) not in known:  # once for all writes of the array
            targets = _targets_of(function).get(id(array), [])
            is_in_loop = any(_has_loop_variable(function, target) for target in targets)
            known[id(array)] = {self._canonical(target) for target in targets}, is_in_loop
        self._written, self._is_written_in_loop = known[id(array)]
        self._exchanged = {
            function.source(each) for each in function.subscripts.within(function.parent(write) or write)
        }

    def reads(self, statement: Node) -> Iterator[Node]:
        """Yield the reads of other threads' elements in a statement, in source order."""
        function = self._function
        for read in function.subscripts.within(statement):
            if shared_array(function, read) is self._array and _is_read(function, read) and self._is_others(read):
                yield read

    def counted(self, call: Node) -> Node | None:
        """Return the element of ``atomicAdd(&counts[bin], 1)``, which any thread may own."""
        function = self._function
        arguments = function.arguments(call) if function.callee(call).startswith("atomic") else []
        target = arguments[0].child_by_field_id(fields.ARGUMENT) if arguments else None
        if target is None or arguments[0].type != "pointer_expression":
            return None
        is_same = function.source(target) == function.source(self._left)
        names = function.names_in(target) - {self._array.name}
        is_unknown = any(name in function.variables for name in names) and not may_depend_on_thread(function, target)
        is_of_array = shared_array(function, target) is self._array
        return target if is_of_array and not is_same and not is_unknown else None

    def _is_others(self, read: Node) -> bool:
        function, indices = self._function, indices_of(read)
        if len(indices) != len(self._indices) or not self._guards.isdisjoint(_guards(function, read)):
            return False
        if self._canonical(read) in self._written or function.source(read) in self._exchanged:
            return bool(self._guards) and self._canonical(read) == self._canonical(self._left)
        if len(indices) == 1 and _is_own_constant(function, indices[0], _guards(function, read)):
            return False
        pairs = list(zip(self._indices, indices, strict=True))
        if any(self._is_of_another_buffer(own, other) for own, other in pairs):
            return False
        return any(self._differs(own, other) for own, other in pairs)

    def _is_of_another_buffer(self, own: Node, other: Node) -> bool:
        """Return whether two indices that all threads share may differ, as of the halves of a double buffer."""
        is_shared = not any(may_depend_on_thread(self._function, index) for index in (own, other))
        return is_shared and self._canonical(own) != self._canonical(other)

    def _differs(self, own: Node, other: Node) -> bool:
        function = self._function
        if not depends_on_thread(function, own):
            return False
        if not may_depend_on_thread(function, other):
            return _is_everyones(function, other)
        if not depends_on_thread(function, other) or self._canonical(own) == self._canonical(other):
            return False
        one, two = growth(function, own), growth(function, other)
        if isinstance(one, int) and isinstance(two, int):
            return one != two or (one == 1 and not self._is_written_in_loop)
        return bool(self._guards)

    def _canonical(self, node: Node) -> str:
        """Return the text with variables that are set once replaced by their values."""
        function, text = self._function, self._function.source(node)
        for _ in range(MAX_SUBSTITUTIONS):
            text = _WORD.sub(lambda found: _value_text(function, found[0]), text)
        return re.sub(r"[\s()]", "", text)


def indices_of(subscript: Node) -> list[Node]:
    found: list[Node] = []
    node: Node | None = subscript
    while node is not None and node.type == "subscript_expression":
        inner = node.child_by_field_id(fields.INDICES)
        found += [] if inner is None else inner.named_children[:1]
        node = node.child_by_field_id(fields.ARGUMENT)
    return found


def _value_text(function: Function, name: str) -> str:
    known = function.named(name)
    if len(known) != 1 or known[0].value is None or known[0].writes or is_loop_variable(function, known[0]):
        return name
    return f"({function.source(known[0].value)})"


def _targets_of(function: Function) -> dict[int, list[Node]]:
    """Return the elements of shared memory that the function assigns, by the identity of their array."""
    if "shared targets" not in function.caches:
        found: dict[int, list[Node]] = {}
        for write in function.assignments:
            left = write.child_by_field_id(fields.LEFT)
            array = None if left is None or left.type != "subscript_expression" else shared_array(function, left)
            if left is not None and array is not None:
                found.setdefault(id(array), []).append(left)
        function.caches["shared targets"] = found
    return function.caches["shared targets"]


def _has_loop_variable(function: Function, target: Node) -> bool:
    names = (name for index in indices_of(target) for name in function.names_in(index))
    return any(variable.writes for name in names for variable in function.named(name))


def _is_everyones(function: Function, index: Node) -> bool:
    """Return whether threads write the element at this uniform index: a small constant, or a loop variable."""
    value = function.constant(index)
    if value is not None:
        return 0 <= value < MAX_FIRST_THREADS
    variable = function.variable(index)
    return variable is not None and is_loop_variable(function, variable)


def _is_own_constant(function: Function, index: Node, guards: frozenset[str]) -> bool:
    """Return whether the access is ``tile[0]`` by the thread with ``threadIdx.x == 0``."""
    value = function.constant(index)
    return value is not None and any(guard.endswith(f"=={value}") for guard in guards)


def _guards(function: Function, node: Node) -> frozenset[str]:
    """Return the conditions around a node that select single threads: ``lane == 0``."""
    return frozenset(
        "".join(function.source(condition).split()).strip("()")
        for condition in conditions_around(function, node)
        if "==" in function.source(condition) and depends_on_thread(function, condition)
    )


def _is_read(function: Function, subscript: Node) -> bool:
    """Return whether the value is used: it is no plain assignment target, no part of another subscript, and no
    operand of `&`."""
    parent = function.parent(subscript)
    if parent is None or parent.type in ("subscript_expression", "pointer_expression", "sizeof_expression"):
        return False
    left = parent.child_by_field_id(fields.LEFT)
    is_target = left is not None and left.id == subscript.id and parent.type == "assignment_expression"
    return not (is_target and function.operator(parent) == "=")
