"""Analyse thread dependence: the names that differ between threads, the stride of an index between them, and values
that are uniform across a block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.rule import words

THREAD_SOURCES = frozenset(("threadIdx", "thread_rank", "thread_index", "meta_group_rank"))
BLOCK_SOURCES = frozenset(("blockIdx", "block_rank", "group_index"))
_PURE_FUNCTIONS = words(
    """
    min max abs fminf fmaxf int size_t unsigned float long __umulhi __mul24 fabsf
    """
)
_CASTS = frozenset(("cast_expression", "parenthesized_expression"))
_CAST_CALLS = frozenset(("static_cast", "int", "size_t", "unsigned", "long", "int64_t", "uint32_t", "float"))
WARP = 32


class Stride(Enum):
    """A stride that the text does not give as a number."""

    VARIABLE = "variable"
    UNKNOWN = "unknown"


Growth = int | Stride
"""The change of a value from thread x to thread x + 1 of the same warp."""


def thread_names(function: Function) -> frozenset[str]:
    """Return the thread's own index and the variables whose values provably differ between the threads of a block."""
    return _dependent_names(function, "thread names", THREAD_SOURCES)


def block_names(function: Function) -> frozenset[str]:
    """Return the block's own index and the variables that provably depend on it."""
    return _dependent_names(function, "block names", BLOCK_SOURCES)


def depends_on_thread(function: Function, node: Node | None) -> bool:
    """Return whether the value provably differs between threads. Results of calls are unknown and count as uniform."""
    return _mentions(function, node, thread_names(function))


def may_depend_on_thread(function: Function, node: Node | None) -> bool:
    """Return whether the value could differ between threads: it depends on the thread index, even transitively."""
    return not function.names_in(node).isdisjoint(possible_names(function))


def growth(function: Function, node: Node | None, depth: int = 0) -> Growth:
    """Return the change of the value with `threadIdx.x`."""
    if node is None or depth > MAX_DEPTH:
        return Stride.UNKNOWN
    if node.type == "number_literal":
        return 0
    cache, meaning = function.growths, function.meaning(node)
    known = cache.get(meaning)
    if known is None:
        cache[meaning] = Stride.UNKNOWN  # guard against a name defined by itself
        known = cache[meaning] = _new_growth(function, node, depth)
    return known


def summed(left: Growth, right: Growth, operator: str) -> Growth:
    """Return the change of a sum or difference."""
    if left == 0 and right == 0:
        return 0
    if Stride.UNKNOWN in (left, right):
        return Stride.UNKNOWN
    if isinstance(left, int) and isinstance(right, int):
        return left + right if operator == "+" else left - right
    both = isinstance(left, Stride) and isinstance(right, Stride)
    return Stride.UNKNOWN if both else Stride.VARIABLE


def _dependent_names(function: Function, key: str, sources: frozenset[str]) -> frozenset[str]:
    """Return the names that depend on the sources. A name that several variables share counts only if all of them
    depend."""
    if key not in function.caches:
        function.caches[key] = {0: _find_dependent(function, sources)}
    return function.caches[key][0]


def _find_dependent(function: Function, sources: frozenset[str]) -> frozenset[str]:
    if not _mentions_any(function, sources):
        return sources
    reached = set(sources)
    waiting = given_values(function)
    for _ in range(2):  # a loop-carried value may reach an earlier line
        waiting = {name: values for name, values in waiting.items() if not _reach_for_sure(name, values, reached)}
    return frozenset(reached)


def _reach_for_sure(name: str, values: Values, reached: set[str]) -> bool:
    """Add the name to `reached` if each of its variables has a value that depends on the reached names. Return
    whether it was added."""
    if not values.mention(reached):
        return False
    function, alone = values.function, values.alone
    if alone is not None:
        is_reached = not has_hiding_call(function, alone)
    else:
        is_reached = all(_is_made_of(function, nodes, reached) for nodes in values.of_each)
    if is_reached:
        reached.add(name)
    return is_reached


def _mentions_any(function: Function, sources: frozenset[str]) -> bool:
    return any(source in function.text for source in sources)


def _is_made_of(function: Function, values: list[Node], names: set[str]) -> bool:
    """Return whether a value mentions one of the names and contains no call whose result may be uniform."""
    return any(_mentions(function, value, names) for value in values)


def possible_names(function: Function) -> frozenset[str]:
    """Return the thread's own index and the variables whose values could differ between the threads of a block."""
    if "possible" not in function.caches:
        function.caches["possible"] = {0: _find_possible(function)}
    return function.caches["possible"][0]


def _find_possible(function: Function) -> frozenset[str]:
    if not _mentions_any(function, THREAD_SOURCES):
        return THREAD_SOURCES
    reached = set(THREAD_SOURCES)
    waiting = given_values(function)
    for _ in range(3):
        n_before = len(reached)
        waiting = {name: values for name, values in waiting.items() if not _reach_perhaps(name, values, reached)}
        if len(reached) == n_before:
            break
    return frozenset(reached)


def _reach_perhaps(name: str, values: Values, reached: set[str]) -> bool:
    if values.mention(reached):
        reached.add(name)
        return True
    return False


class Values:
    """The initial and assigned values of the variables of one name, as nodes for each variable."""

    __slots__ = ("function", "names", "of_each", "unread")

    def __init__(self, function: Function, of_each: list[list[Node]]) -> None:
        self.function, self.of_each = function, of_each
        self.unread = iter([node for nodes in of_each for node in nodes])
        self.names: set[str] = set()
        """The names in the nodes read so far."""

    @property
    def nodes(self) -> list[Node]:
        """All value nodes of all variables."""
        return [node for nodes in self.of_each for node in nodes]

    @property
    def alone(self) -> Node | None:
        """The single value of the single variable, if there are no others. Its names are then exact."""
        return self.of_each[0][0] if len(self.of_each) == 1 and len(self.of_each[0]) == 1 else None

    def mention(self, names: set[str]) -> bool:
        """Return whether any value mentions one of the names. Values are read lazily, because a sum may have
        thousands of them."""
        if not names.isdisjoint(self.names):
            return True
        for node in self.unread:
            found = self.function.names_in(node)
            self.names |= found
            if not names.isdisjoint(found):
                return True
        return False

    @property
    def all_names(self) -> set[str]:
        """Return the names in all nodes."""
        for node in self.unread:
            self.names |= self.function.names_in(node)
        return self.names


def given_values(function: Function) -> dict[str, Values]:
    """Return the values by name. Names that are never assigned are left out."""
    if "values" not in function.caches:
        function.caches["values"] = dict(_given_values(function))
    return function.caches["values"]


def _given_values(function: Function) -> Iterator[tuple[str, Values]]:
    for name, variables in function.variables.items():
        of_each = [values_of(variable) for variable in variables]
        if any(of_each):
            yield name, Values(function, of_each)


def values_of(variable: Variable) -> list[Node]:
    """Return the nodes of a variable's initial and assigned values."""
    nodes = [] if variable.value is None else [variable.value]
    if variable.writes:
        nodes += filter(None, [write.child_by_field_id(fields.RIGHT) for write in variable.writes])
    return nodes


def _mentions(function: Function, node: Node | None, names: frozenset[str] | set[str]) -> bool:
    if node is None or function.names_in(node).isdisjoint(names):
        return False
    return not has_hiding_call(function, node)


_GROUPS = frozenset(("this_thread_block", "this_cluster", "this_grid", "tiled_partition"))
"""Functions of cooperative groups that name the threads of a group."""


def has_hiding_call(function: Function, node: Node) -> bool:
    """Return whether the node contains a call whose result is unknown or may be uniform."""
    known = function.caches.setdefault("hiding", {})
    hides = known.get(node.id)
    if hides is None:
        calls = function.calls.within(node) if "(" in function.source(node) else ()
        hides = known[node.id] = any(_hides(function, call) for call in calls)
    return hides


def _hides(function: Function, call: Node) -> bool:
    """Return whether the call's result may be uniform: votes, shuffles and unknown functions."""
    name = function.callee(call).partition("<")[0].rpartition("::")[2].rpartition(".")[2]
    return name not in _PURE_FUNCTIONS | THREAD_SOURCES | _GROUPS and name != "static_cast"


MAX_COMMON_CHARACTERS, MAX_COMMON_DEPTH = 80, 8
"""Maximum characters and depth of an expression whose growth is cached for all functions. At this depth it cannot
exceed `MAX_DEPTH`."""
MAX_KEPT_GROWTHS = 4096
_BUILTINS = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))
_growth_of_builtins: dict[str, Growth] = {}
"""Growth of expressions that use only builtins, by text. Files repeat them often."""


def _new_growth(function: Function, node: Node, depth: int) -> Growth:
    """Return the growth of an expression that is not cached for the function."""
    names = function.names_in(node)
    if not names or not names <= _BUILTINS or depth > MAX_COMMON_DEPTH or not names.isdisjoint(function.variables):
        return _growth(function, node, depth)
    text = function.source(node)
    known = _growth_of_builtins.get(text)
    if known is None:
        known = _growth(function, node, depth)
        if len(text) <= MAX_COMMON_CHARACTERS and len(_growth_of_builtins) < MAX_KEPT_GROWTHS:
            _growth_of_builtins[text] = known
    return known


def _growth(function: Function, node: Node, depth: int) -> Growth:
    kind = node.type
    if kind == "field_expression":
        return _index_growth(function, node)
    if kind == "identifier":
        return _variable_growth(function, node, depth)
    if kind in _CASTS:
        inner = node.child_by_field_id(fields.VALUE) or (node.named_children[-1] if node.named_children else None)
        return growth(function, inner, depth + 1)
    if kind == "call_expression":
        arguments = function.arguments(node)
        if function.callee(node) in _CAST_CALLS and len(arguments) == 1:
            return growth(function, arguments[0], depth + 1)
    if kind == "binary_expression":
        return _binary_growth(function, node, depth)
    return _uniform_or_unknown(function, node)


_GROUP_INDEX = re.compile(r"^\w+\.thread_index\(\)")


def _index_growth(function: Function, node: Node) -> Growth:
    """Return the growth of an index. `threadIdx.x` grows by one; y and z count as equal within a warp, as in blocks
    32 wide."""
    text = _GROUP_INDEX.sub("threadIdx", function.source(node).replace(" ", ""))
    if text == "threadIdx.x":
        return 1
    return 0 if text in ("threadIdx.y", "threadIdx.z") else _uniform_or_unknown(function, node)


def _uniform_or_unknown(function: Function, node: Node) -> Growth:
    return Stride.UNKNOWN if may_depend_on_thread(function, node) else 0


def _variable_growth(function: Function, node: Node, depth: int) -> Growth:
    variable = function.variable(node)
    if variable is None:
        return _uniform_or_unknown(function, node)
    if variable.value is None:
        return 0 if not variable.writes and not may_depend_on_thread(function, node) else Stride.UNKNOWN
    if any(not _keeps_growth(function, write) for write in variable.writes):
        return _uniform_or_unknown(function, node)
    return growth(function, variable.value, depth + 1)


def _keeps_growth(function: Function, write: Node) -> bool:
    """Return whether the write moves all threads alike: ``i += blockDim.x`` or ``i++``."""
    if write.type == "update_expression":
        return True
    return function.operator(write) in ("+=", "-=") and not may_depend_on_thread(
        function, write.child_by_field_id(fields.RIGHT)
    )


def _binary_growth(function: Function, node: Node, depth: int) -> Growth:
    left_node, right_node = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    operator = function.operator(node)
    left = growth(function, left_node, depth + 1)
    if operator in ("+", "-") and right_node is not None and right_node.type == "number_literal":
        return left
    right = growth(function, right_node, depth + 1)
    if left == 0 and right == 0:
        return 0
    if Stride.UNKNOWN in (left, right):
        return Stride.UNKNOWN
    if operator in ("+", "-"):
        return summed(left, right, operator)
    if operator == "*" and 0 in (left, right):
        factor = function.constant(right_node if right == 0 else left_node)
        return _product(left if right == 0 else right, factor)
    if operator == "<<" and right == 0:
        shift = function.constant(right_node)
        return _product(left, None if shift is None or not 0 <= shift < 32 else 1 << shift)
    if operator in ("%", "&") and left == 1 and right == 0:
        modulus = function.constant(right_node)
        lanes = None if modulus is None else modulus + (operator == "&")
        return 1 if lanes is not None and lanes > 0 and lanes % WARP == 0 else Stride.UNKNOWN
    return Stride.UNKNOWN


def _product(value: Growth, factor: int | None) -> Growth:
    if isinstance(value, Stride) or factor is None:
        return Stride.VARIABLE
    return value * factor


def is_loop_variable(function: Function, variable: Variable) -> bool:
    """Return whether the variable is declared in the head of a `for`."""
    parent = function.parent(variable.declaration)
    return parent is not None and parent.type == "for_statement"


_DEREFERENCE = re.compile(r"(?:^|[-+*/%=(,&|!<>?:\[])\s*\*\s*[\w(]")
"""A dereferencing star rather than a product: it precedes its operand."""
_KNOWN_NAMES = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "true", "false", "nullptr"))


def is_uniform(function: Function, node: Node) -> bool:
    """Return whether the value is provably uniform across the block: it depends on parameters, constants and the
    block index alone. Results of calls, and names that the text does not declare, are unknown."""
    waiting: list[Node] = [node]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if may_depend_on_thread(function, node) or has_hiding_call(function, node):
            return False
        for name in function.names_in(node) - seen:
            seen.add(name)
            values = _values_of_name(function, name)
            if values is None:
                return False
            waiting += values
    return True


def is_read_from_memory(function: Function, node: Node) -> bool:
    """Return whether the value depends on memory or a call, even transitively, rather than on indices and sizes
    alone."""
    waiting: list[Node] = [node]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        is_read = function.subscripts.within(node) or _DEREFERENCE.search(function.source(node)) is not None
        if is_read or has_hiding_call(function, node):
            return True
        for name in function.names_in(node) - seen:
            seen.add(name)
            waiting += _values_of_name(function, name) or ()
    return False


def _values_of_name(function: Function, name: str) -> list[Node] | None:
    """Return the values of all variables of a name. None for a name that may have other values."""
    variables = function.named(name)
    if not variables and name not in _KNOWN_NAMES and name not in function.file.constants:
        return None
    found: list[Node] = []
    for variable in variables:
        values = values_of(variable)
        if not values and variable not in function.parameters:
            return None
        found += values
    return found
