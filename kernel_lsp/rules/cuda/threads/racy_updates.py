"""KL219: updates of shared elements by several threads or blocks without an atomic operation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.array_bounds import ELEMENTS, root_of
from kernel_lsp.rules.cuda.bounds.thread_range import bare, bounds_grid
from kernel_lsp.rules.cuda.declare import THREAD_WORDS, WARNING, conditions_around, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.simulation.hits import and_simulated
from kernel_lsp.rules.cuda.threads.threads import (
    block_names,
    depends_on_thread,
    has_hiding_call,
    may_depend_on_thread,
    thread_names,
    values_of,
)
from kernel_lsp.rules.cuda.threads.unordered import indices_of
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

_OF_THREADS = frozenset(("threadIdx", "blockDim"))
_UPDATES = ("+=", "-=", "*=", "|=", "&=", "^=")
_ATOMICS = {"+=": "atomicAdd", "-=": "atomicSub", "|=": "atomicOr", "&=": "atomicAnd", "^=": "atomicXor"}
_EXCHANGES = ("atomicExch", "atomicCAS")
_SUMMED = ("int", "unsigned", "unsigned int", "float", "double", "uint32_t")


def is_of_all_blocks(kernel: Function, update: Node, target: Node, array: Variable) -> bool:
    """Return whether each block of a grid that shares work executes the update, and the element depends on the thread
    alone. A `return`, a condition on anything loaded, or a barrier of the grid may leave one block."""
    if (
        array.is_shared
        or not kernel.is_kernel
        or "blockIdx" not in kernel.text
        or "grid.sync" in kernel.text
        or kernel.returns
    ):
        return False
    names = {*kernel.names_in(target)} - {array.name}
    for condition in conditions_around(kernel, update):
        names |= kernel.names_in(condition)
    shared = {name for name in names if any(v.is_shared and v.is_array for v in kernel.named(name))}
    return all(_is_of_thread(kernel, name) for name in names - shared)


def _is_of_thread(kernel: Function, name: str) -> bool:
    """Return whether the name is a thread's index, a parameter, a constant, or a counter made of these."""
    if name in _OF_THREADS or name in kernel.file.constants:
        return True
    return all(_is_made_of_threads(kernel, variable) for variable in kernel.named(name)) and bool(kernel.named(name))


def _is_made_of_threads(kernel: Function, variable: Variable) -> bool:
    if variable in kernel.parameters:
        return not variable.is_pointer and not variable.writes
    names = [kernel.names_in(value) for value in values_of(variable)]
    return bool(names) and all(name in _OF_THREADS or name in kernel.file.constants for each in names for name in each)


@declare(
    "KL219",
    "racy-update",
    WARNING,
    on="device",
    needs=(THREAD_WORDS, "[ ++ -- +="),
    summary="Threads or blocks update the same elements without an atomic operation",
    why="""
    Two threads that load the same index read the same old value, and one of the two updates is lost; so do the blocks
    of a grid where the index is that of the thread alone. Use an atomic operation, or bins of each thread's own. Two
    atomic operations, one that tests a flag and one that sets it, let several threads pass: use the result of
    `atomicExch`.
    """,
    bad="""
    __global__ void count(const int* __restrict__ v, int* __restrict__ bins, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) bins[v[i]] += 1;
    }
    """,
    good="""
    __global__ void count(const int* __restrict__ v, int* __restrict__ bins, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&bins[v[i]], 1);
    }
    """,
)
@and_simulated("KL219")
def racy_update(function: Function) -> Iterator[Hit]:
    for comparison in _unordered_extremes(function):
        message = "racy update: threads compare and set this element at once, use an atomic operation or a reduction"
        yield hit(function.file, comparison, message)
    for flag in _claimed_apart(function):
        yield hit(function.file, flag, "racy update: threads test this flag before one sets it, test `atomicExch`")
    for update in (*function.assignments, *function.updates):
        target = update.child_by_field_id(fields.LEFT) or update.child_by_field_id(fields.ARGUMENT)
        target = None if target is None else bare(target)
        if target is not None and _is_total_of_file(function, update, target):
            yield hit(function.file, target, "racy update: all threads update this variable, use an atomic operation")
        if target is None or target.type not in ELEMENTS or not _reads_itself(function, update, target):
            continue
        array = root_of(function, target)
        is_common = array is not None and (array.is_shared or (array.is_pointer and array in function.parameters))
        axes = _axes(function)[: 1 if array is not None and array.is_shared else 2]
        is_by_data = is_common and any(_is_by_data(function, target, axis) for axis in axes)
        if array is not None and is_common and _is_one_for_all(function, update, target, array):
            message = "racy update: all threads update this element, use an atomic operation or a reduction"
            yield hit(function.file, target, message, *_atomic_fix(function, update, target, array))
        elif is_by_data and not _is_for_one(function, update) and not _is_in_a_segment(function, update, target):
            message = "racy update: threads with the same index lose updates, use an atomic operation"
            yield hit(function.file, target, message, *_atomic_fix(function, update, target, array))
        elif (
            array is not None
            and not array.is_shared
            and is_common
            and is_of_all_blocks(function, update, target, array)
        ):
            message = "racy update: each block of the grid updates this element, use an atomic operation"
            yield hit(function.file, target, message, *_atomic_fix(function, update, target, array))


def _claimed_apart(function: Function) -> Iterator[Node]:
    """Yield the flags that one atomic operation tests, ``atomicAdd(&seen[v], 0)``, and another one sets, before the
    thread takes a place in a list. Where the result of an exchange is used, that may be a claim or a lock."""
    exchanges = function.calls_named(_EXCHANGES)
    sets = {_first_argument(function, call): call for call in exchanges if _is_dropped(function, call)}
    if not sets or len(sets) < len(exchanges):
        return
    places = [call for call in function.calls_named(("atomicAdd", "atomicInc")) if not _is_dropped(function, call)]
    for read in function.calls_named(("atomicAdd", "atomicOr")):
        given, loop = function.arguments(read), function.loop_around(read)
        target = given[0].child_by_field_id(fields.ARGUMENT) if len(given) > 1 else None
        write = sets.get(_first_argument(function, read))
        if target is None or target.type not in ELEMENTS or write is None or function.constant(given[1]) != 0:
            continue
        behind = [each for each in (write, *places) if each.start_byte > read.end_byte]
        in_order = [each for each in behind if function.loop_around(each) == loop]
        is_claim = write in in_order and len(in_order) > 1
        if is_claim and any(_is_by_data(function, target, axis) for axis in _axes(function)):
            yield target


def _first_argument(function: Function, call: Node) -> str:
    return next((function.source(each) for each in function.arguments(call)), "")


def _is_dropped(function: Function, call: Node) -> bool:
    parent = function.parent(call)
    return parent is not None and parent.type == "expression_statement"


def _is_total_of_file(function: Function, update: Node, target: Node) -> bool:
    """Return whether every thread that comes here updates a `__device__` variable of the file."""
    is_total = target.type == "identifier" and function.source(target) in function.file.device_symbols
    is_read = update.type == "update_expression" or function.operator(update) in _UPDATES
    return is_total and is_read and not function.named(function.source(target)) and not _is_for_one(function, update)


def _unordered_extremes(function: Function) -> Iterator[Node]:
    """Yield the targets of ``if (x[i] > *best) *best = x[i];``, an element of global memory that all threads share."""
    for write in function.assignments if function.is_kernel else ():
        target, value = write.child_by_field_id(fields.LEFT), write.child_by_field_id(fields.RIGHT)
        if target is None or target.type not in ELEMENTS or value is None or function.operator(write) != "=":
            continue
        array, text = root_of(function, target), function.source(target)
        is_given = array is not None and array.is_pointer and array in function.parameters
        is_one = all(function.constant(index) is not None for index in indices_of(target))
        conditions = list(conditions_around(function, write))
        compares = [
            c for c in conditions if text in function.source(c) and re.search(r"[^<>]=?[<>]=?[^<>]", function.source(c))
        ]
        is_for_few = any("==" in function.source(c) and may_depend_on_thread(function, c) for c in conditions)
        if is_given and is_one and compares and not is_for_few and may_depend_on_thread(function, value):
            yield target


def _is_one_for_all(function: Function, update: Node, target: Node, array: Variable) -> bool:
    """Return whether every thread adds a value of its own to one element of global memory: ``out[0] += x[i]``."""
    if not function.is_kernel or array.is_shared or "threadIdx" not in function.text:
        return False
    right = update.child_by_field_id(fields.RIGHT)
    conditions = list(conditions_around(function, update))
    chosen = [each for condition in conditions for each in function.subscripts.within(condition)]
    own = chosen if right is None else [right, *function.subscripts.within(right), *chosen]
    if not any(depends_on_thread(function, each) for each in own) or any(
        function.constant(index) is None for index in indices_of(target)
    ):
        return False
    return all(_admits_threads(function, condition) for condition in conditions) and not any(
        node.start_byte < update.start_byte for node in function.returns
    )


def _admits_threads(function: Function, condition: Node) -> bool:
    """Return whether several threads may pass: the condition is the same for all, bounds the grid, or asks for data."""
    is_by_data = any(depends_on_thread(function, load) for load in function.subscripts.within(condition))
    is_free = not may_depend_on_thread(function, condition) or bounds_grid(function, condition)
    return is_free or (
        is_by_data and "threadIdx" not in function.source(condition) and "==" not in function.source(condition)
    )


def _reads_itself(function: Function, update: Node, target: Node) -> bool:
    """Return whether the update is a read-modify-write: ``a[i] += x``, ``a[i]++`` or ``a[i] = a[i] + x``."""
    if update.type == "update_expression" or function.operator(update) in _UPDATES:
        return True
    right, text = update.child_by_field_id(fields.RIGHT), function.source(target)
    names = () if right is None else function.names_in(right)
    known = [function.named(name) for name in names]
    values = [value for variables in known if len(variables) == 1 for value in values_of(variables[0])]
    loads = () if right is None else function.subscripts.within(right)
    return any(function.source(each) == text for each in (*loads, *values))


@dataclass(frozen=True)
class _Axis:
    """The index of a thread or of a block, and the names that depend on it."""

    source: str
    names: frozenset[str]


def _axes(function: Function) -> tuple[_Axis, _Axis]:
    return _Axis("threadIdx", thread_names(function)), _Axis("blockIdx", block_names(function))


def _is_by_data(function: Function, target: Node, axis: _Axis) -> bool:
    """Return whether only loaded values make the element differ between the threads or blocks of an axis."""
    chosen = False
    for index in indices_of(target):
        loads = list(function.subscripts.within(index))
        text = function.source(index)
        for load in loads:
            text = text.replace(function.source(load), "")
        plain = names_in_text(text)
        loaded = {name for name in plain if _is_loaded(function, name, axis)}
        if loaded or any(_depends(function, load, axis) for load in loads):
            chosen = True
        if any(_varies(function, name, axis) and not _is_remainder(function, name) for name in plain - loaded):
            return False
    return chosen


def _is_in_a_segment(function: Function, update: Node, target: Node) -> bool:
    """Return whether a loop counts the index from one element of an array to another one: ``first[i]`` to
    ``first[i + 1]``, the segment of one thread."""
    loop = function.loop_around(update)
    condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    if condition is None:
        return False
    ends = [root_of(function, each) for each in function.subscripts.within(condition)]
    names = {name for index in indices_of(target) for name in names_in_text(function.source(index))}
    counters = [each for name in names & function.names_in(condition) for each in function.named(name)]
    values = [value for variable in counters for value in values_of(variable)]
    starts = [root_of(function, each) for value in values for each in function.subscripts.within(value)]
    return any(each is not None and each in ends for each in starts)


def _depends(function: Function, load: Node, axis: _Axis) -> bool:
    """Return whether an element of an array differs along the axis. The simulation follows what a thread's own array
    holds."""
    array = root_of(function, load)
    if array is not None and array.is_array and not array.is_shared and array not in function.parameters:
        return False
    return not function.names_in(load).isdisjoint(axis.names) and not has_hiding_call(function, load)


def _is_loaded(function: Function, name: str, axis: _Axis) -> bool:
    """Return whether every value of the variable is loaded at an index that depends on the thread or block. The
    simulation follows the members of a structure that is made of several values."""
    values = [value for variable in function.named(name) for value in values_of(variable)]
    return bool(values) and all(
        not _is_composed(function, value)
        and any(_depends(function, load, axis) for load in function.subscripts.within(value))
        for value in values
    )


def _is_composed(function: Function, value: Node) -> bool:
    """Return whether the value is a list of members or a vector: ``{i, x[i]}``, ``Pair{i, x[i]}``, ``make_int2``."""
    is_list = value.type in ("initializer_list", "compound_literal_expression")
    return is_list or (value.type == "call_expression" and function.callee(value).startswith("make_"))


def _is_remainder(function: Function, name: str) -> bool:
    """Return whether the value is ``i % width``, which many threads share."""
    values = [value for variable in function.named(name) for value in values_of(variable)]
    return bool(values) and all(function.operator(value) == "%" for value in values)


def _varies(function: Function, name: str, axis: _Axis) -> bool:
    """Return whether the value may differ along the axis. An index across the grid differs along both."""
    if name in ("threadIdx", "blockIdx"):
        return name == axis.source or axis.source == "threadIdx"
    values = [value for variable in function.named(name) for value in values_of(variable)]
    if axis.source == "threadIdx":
        return any(may_depend_on_thread(function, v) or "blockIdx" in function.source(v) for v in values)
    return name in axis.names or any("blockIdx" in function.source(v) for v in values)


def _is_for_one(function: Function, node: Node) -> bool:
    return any(
        "==" in function.source(condition) and may_depend_on_thread(function, condition)
        for condition in conditions_around(function, node)
    )


def _atomic_fix(function: Function, update: Node, target: Node, array: Variable | None) -> Iterator[QuickFix]:
    parent, operator = function.parent(update), function.operator(update)
    is_statement = parent is not None and parent.type == "expression_statement"
    right = update.child_by_field_id(fields.RIGHT)
    value = "1" if update.type == "update_expression" else "" if right is None else function.source(right)
    name = {"++": "atomicAdd", "--": "atomicSub"}.get(operator) or _ATOMICS.get(operator)
    if name is None or not value or not is_statement or array is None or array.element not in _SUMMED:
        return
    if name == "atomicSub" and array.element in ("float", "double"):
        return
    text = f"{name}(&{function.source(target)}, {value})"
    yield QuickFix(f"Use `{name}`", (function.file.parsed.replace(update, text),), True)
