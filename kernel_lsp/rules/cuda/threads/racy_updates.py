"""KL219: updates of shared elements by several threads or blocks without an atomic operation."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.array_bounds import ELEMENTS, indices_of, root_of
from kernel_lsp.rules.cuda.bounds.thread_range import bare
from kernel_lsp.rules.cuda.declare import THREAD_WORDS, WARNING, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.simulation.watcher import Fault
from kernel_lsp.rules.cuda.threads.threads import is_read_from_memory, may_depend_on_thread
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

_ATOMICS = {
    **{"+=": "atomicAdd", "++": "atomicAdd", "-=": "atomicSub", "--": "atomicSub"},
    **{"|=": "atomicOr", "&=": "atomicAnd", "^=": "atomicXor"},
}
_EXCHANGES = ("atomicExch", "atomicCAS")
_SUMMED = ("int", "unsigned", "unsigned int", "float", "double", "uint32_t")


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
def racy_update(function: Function) -> Iterator[Hit]:
    for flag in _claimed_apart(function):
        yield hit(function.file, flag, "racy update: threads test this flag before one sets it, test `atomicExch`")
    yield from simulated_hits(function, "KL219", _atomic_fix)


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
        if is_claim and any(_is_by_data(function, index) for index in indices_of(target)):
            yield target


def _is_by_data(function: Function, index: Node) -> bool:
    return may_depend_on_thread(function, index) and is_read_from_memory(function, index)


def _first_argument(function: Function, call: Node) -> str:
    return next((function.source(each) for each in function.arguments(call)), "")


def _is_dropped(function: Function, call: Node) -> bool:
    parent = function.parent(call)
    return parent is not None and parent.type == "expression_statement"


def _atomic_fix(function: Function, fault: Fault) -> Iterator[QuickFix]:
    target, update = bare(fault.node), function.parent(fault.node)
    statement = None if update is None else function.parent(update)
    if update is None or statement is None or statement.type != "expression_statement" or target.type not in ELEMENTS:
        return
    array, operator, right = (
        root_of(function, target),
        function.operator(update),
        update.child_by_field_id(fields.RIGHT),
    )
    value = "1" if update.type == "update_expression" else "" if right is None else function.source(right)
    name = _ATOMICS.get(operator)
    if name is None or not value or array is None or array.element not in _SUMMED:
        return
    if name == "atomicSub" and array.element in ("float", "double"):
        return
    text = f"{name}(&{function.source(target)}, {value})"
    yield QuickFix(f"Use `{name}`", (function.file.parsed.replace(update, text),), True)
