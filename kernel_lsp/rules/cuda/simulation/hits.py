"""Turn the faults that a simulation found into hits of the rules they belong to."""

from __future__ import annotations

from collections.abc import Container, Iterator

from kernel_lsp.rules.cuda.declare import hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.watcher import Fault, simulated
from kernel_lsp.rules.rule import Hit

MAX_CONDITION = 40
"""Maximum characters of a condition in a message."""
_MESSAGES = {
    ("KL202", "branch"): "`__syncthreads()` in divergent control flow: `{}` is not uniform across the block",
    ("KL202", "exact"): "`__syncthreads()` in divergent control flow: some threads of the block never reach it",
    ("KL203", "return"): "barrier after a divergent `return`: threads that left never reach it",
    ("KL206", "exact"): "shuffle mask names inactive lanes: shuffle before the branch",
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
    ("KL248", "unset"): "`{}` is never set: shared memory is not zeroed",
}


def simulated_hits(function: Function, code: str, reported: Container[int] = ()) -> Iterator[Hit]:
    """Yield the simulation's hits of one rule, except on lines that the rule has reported."""
    if not function.is_kernel and _is_called(function):
        return
    lines: set[int] = set()
    for fault in simulated(function):
        line = fault.node.start_point[0]
        if fault.code == code and line not in reported and line not in lines:
            lines.add(line)
            yield hit(function.file, fault.node, _message(fault))


def _is_called(function: Function) -> bool:
    """Return whether the file calls the function: it is then simulated with its callers."""
    return (
        function.file.parsed.text.count(f"{function.name}(") + function.file.parsed.text.count(f"{function.name}<") > 1
    )


def _message(fault: Fault) -> str:
    detail = " ".join(fault.detail.split()).strip("()")
    detail = detail if len(detail) <= MAX_CONDITION or fault.code != "KL202" else detail[: MAX_CONDITION - 1] + "…"
    return _MESSAGES[fault.code, fault.kind].format(detail)
