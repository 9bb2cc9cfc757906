"""Simulate a function once for all rules, and turn the faults that were found into hits of the rules they belong to."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace

from tree_sitter import Node

from kernel_lsp.rules.cuda.declare import hit
from kernel_lsp.rules.cuda.model import Function, read_function
from kernel_lsp.rules.cuda.simulation.assumed_block import Shape, larger_shape_of, shape_of
from kernel_lsp.rules.cuda.simulation.watcher import Fault, Watcher
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

MAX_SHAPES = 5
"""Maximum blocks that are tried where the text does not say how many threads there are."""
MAX_CONDITION = 40
"""Maximum characters of a condition in a message."""
_MESSAGES = {
    ("KL202", "branch"): "`__syncthreads()` in divergent control flow: `{}` is not uniform across the block",
    ("KL202", "exact"): "`__syncthreads()` in divergent control flow: some threads of the block never reach it",
    ("KL203", "return"): "barrier after a divergent `return`: threads that left never reach it",
    ("KL206", "branch"): "shuffle mask names inactive lanes: shuffle before the branch",
    ("KL206", "return"): "shuffle mask names lanes that have returned: shuffle before the `return`",
    ("KL207", "unordered"): "missing `__syncthreads()`: another thread writes this element of shared memory above",
    ("KL207", "overtaken"): "missing `__syncthreads()`: other threads may still read the element that this overwrites",
    ("KL208", "round"): "missing barrier: the next iteration overwrites what other threads may still read",
    ("KL208", "step"): "missing `__syncthreads()`: each iteration reads what other threads wrote in the one before",
    ("KL210", "stride"): "uncoalesced access: consecutive threads are a variable stride apart",
    ("KL211", "banks"): "bank conflict: the 32 threads of a warp read one bank, pad the row by one element",
    ("KL218", "index"): "index out of bounds: {}",
    ("KL219", "index"): "racy update: threads with the same index lose updates, use an atomic operation",
    ("KL219", "all"): "racy update: all threads update this element, use an atomic operation or a reduction",
    ("KL219", "blocks"): "racy update: each block of the grid updates this element, use an atomic operation",
    ("KL273", "lost"): "incomplete reduction: the values of some threads never reach the result",
    ("KL248", "part"): "`{}` is set in part: the block has fewer threads than it has elements",
    ("KL248", "unset"): "`{}` is never set: shared memory is not zeroed",
}


def _no_fixes(function: Function, fault: Fault) -> Iterable[QuickFix]:
    return ()


Fixes = Callable[[Function, Fault], Iterable[QuickFix]]


def simulated_hits(
    function: Function, code: str, fixes: Fixes = _no_fixes, reported: Container[int] = ()
) -> Iterator[Hit]:
    """Yield the simulation's hits of one rule, except on lines that the rule has reported."""
    if not function.is_kernel and _is_called(function):
        return
    lines: set[int] = set()
    for fault in simulated(function):
        line = fault.node.start_point[0]
        if fault.code == code and line not in reported and line not in lines:
            lines.add(line)
            yield hit(function.file, fault.node, _message(fault), *fixes(_holder(function, fault.node), fault))


def _holder(function: Function, node: Node) -> Function:
    """Return the function whose body has the node: that which is simulated, or one that it calls."""
    place, file = node.start_byte, function.file
    if function.body.start_byte <= place < function.body.end_byte:
        return function
    around = (each for each in file.definitions if each.outer.start_byte <= place < each.outer.end_byte)
    return next(filter(None, (read_function(each, file) for each in around)), function)


def _is_called(function: Function) -> bool:
    """Return whether the file calls the function: it is then simulated with its callers."""
    file = function.file
    return file.parsed.mentions[function.name] > len(file.functions_by_name.get(function.name, (function,)))


def _message(fault: Fault) -> str:
    detail = " ".join(fault.detail.split()).strip("()")
    detail = detail if len(detail) <= MAX_CONDITION or fault.code != "KL202" else detail[: MAX_CONDITION - 1] + "…"
    return _MESSAGES[fault.code, fault.kind].format(detail)


def simulated(function: Function) -> tuple[Fault, ...]:
    """Return the faults that a simulation of the function's first block finds, once for all rules."""
    if "simulated" not in function.caches and not _may_be_faulty(function):
        function.caches["simulated"] = {0: ()}
    if "simulated" not in function.caches:
        function.caches["simulated"] = {0: tuple(_simulate(function))}
    return function.caches["simulated"][0]


_MAY_BE_FAULTY = re.compile(
    r"shared|smem|sdata|sync|shfl|atomic|[-+*|&^]=|\+\+|--|\[[^\]]*\[|(?:[;{})]\s*\*\s*\w+|\[\d+\])\s*=[^=]|(?:\.|->)\w+\["
)
"""Races, and arrays of structures, whose strides no other rule follows."""
MAX_PLAIN_ACCESSES = 8


def _may_be_faulty(function: Function) -> bool:
    """Return whether a simulation may find anything: threads of a plain kernel only write elements of their own."""
    if _MAY_BE_FAULTY.search(function.text) or function.text.count("[") > MAX_PLAIN_ACCESSES:
        return True
    return bool(function.file.helper_texts) and bool(function.file.helpers_of(function.text.encode()))


def _simulate(function: Function) -> Iterator[Fault]:
    shape = shape_of(function)
    for _ in range(MAX_SHAPES):
        watcher = Watcher(function, shape)
        watcher.run_kernel()
        if not watcher.is_misfit:
            yield from watcher.faults.values()
            yield from _beyond_in_larger(function, shape)
            return
        x, y, z = shape.block
        shape = replace(shape, block=(x // 2, y, z) if y == 1 else (x, max(1, y // 2), z))


def _beyond_in_larger(function: Function, shape: Shape) -> Iterator[Fault]:
    """Yield the indices out of bounds in the launch of the most threads: arrays may have the size of another one."""
    larger = larger_shape_of(function, shape)
    if larger is not None:
        watcher = Watcher(function, larger)
        watcher.run_kernel()
        yield from (fault for fault in watcher.faults.values() if fault.code == "KL218")
