"""Facts about a kernel, by the names that hints require. See `prompts/hints.toml`.

memory_bound, compute_bound, latency_bound, launch_bound   the bottleneck
rereads           traffic above 1.3 times the task's compulsory bytes
uncoalesced       the executor found uncoalesced accesses
several_launches  more than one launch in the plan
spills            register spills
shared_memory     shared memory is used
bank_conflicts, low_occupancy   found in its profile, see `kernel_lsp.evolve.propose.profiling`
reduction, contraction, half_precision   properties of the task
"""

from __future__ import annotations

import re

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict

REREAD_FACTOR = 1.3
"""Traffic above compulsory bytes, as a factor, that counts as rereading; less is indices, statistics and partial
sums."""

_REDUCTIONS = re.compile(
    r"aten\.(?:sum|mean|amax|amin|max|min|var|std|norm|_?softmax|_log_softmax|native_layer_norm|prod)"
)
_CONTRACTIONS = re.compile(r"aten\.(?:mm|bmm|addmm|matmul|baddbmm|convolution|_scaled_dot_product)")


def facts_of_task(task: Task) -> frozenset[str]:
    """Return the facts that hold for every kernel of the task."""
    nodes = (*task.forward.nodes, *(task.backward.nodes if task.backward is not None else ()))
    tests = {
        "reduction": any(_REDUCTIONS.match(node.op) for node in nodes),
        "contraction": any(_CONTRACTIONS.match(node.op) for node in nodes),
        "half_precision": any(tensor.type.dtype in (DType.F16, DType.BF16) for tensor in task.tensors),
    }
    return frozenset(name for name, holds in tests.items() if holds)


def facts_of_kernel(verdict: Verdict, floor_bytes: int) -> frozenset[str]:
    """Return the facts in a kernel's estimate, compilation and findings. `floor_bytes` is the task's compulsory
    traffic."""
    estimate = verdict.estimate
    tests = {
        "spills": any(kernel.spill_store_bytes or kernel.spill_load_bytes for kernel in verdict.kernels),
        "shared_memory": any(kernel.shared_bytes for kernel in verdict.kernels),
        "uncoalesced": any("coalesc" in finding.code for finding in verdict.findings),
    }
    if estimate is not None:
        tests[f"{estimate.bound}_bound"] = True
        tests["several_launches"] = estimate.n_launches > 1
        tests["rereads"] = estimate.bytes_moved > REREAD_FACTOR * floor_bytes
    return frozenset(name for name, holds in tests.items() if holds)
