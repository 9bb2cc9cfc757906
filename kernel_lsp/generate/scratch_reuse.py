"""Let intermediate tensors whose uses do not overlap share memory, where a network has much of it.

SqueezeNet's intermediates at batch 64 take 9.9 GB one beside the other, and 2.1 GB of them are in use at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernel_lsp.core.plan import LibraryStep, Operation, touched
from kernel_lsp.generate.ir.index import is_nonnegative
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.plan.renaming import with_names

MIN_BYTES = 1 << 30
"""Minimum bytes of all intermediates for which memory is shared: as many are allowed whatever a task's tensors take."""


@dataclass
class _Holder:
    """A tensor whose memory others use, too. `uses` are the first and the last step of each."""

    tensor: Tensor
    uses: list[tuple[int, int]]

    def takes(self, tensor: Tensor, use: tuple[int, int]) -> bool:
        is_free = all(use[1] < first or last < use[0] for first, last in self.uses)
        is_large = tensor.dtype == self.tensor.dtype and is_nonnegative(self.tensor.n_elements - tensor.n_elements)
        return is_free and is_large


def with_shared_scratch(operation: Operation, stored: Mapping[str, Tensor], workload: Workload) -> Operation:
    """Return the operation with fewer scratch tensors: `stored` are those that may share, by name. The largest come
    first, so that smaller ones find a place in them."""
    n_bytes = {name: workload.size(tensor.n_elements) * tensor.dtype.itemsize for name, tensor in stored.items()}
    if sum(n_bytes.values()) < MIN_BYTES:
        return operation
    uses = _uses(operation)
    holders: dict[str, _Holder] = {}
    names: dict[str, str] = {}
    for name in sorted(uses.keys() & stored.keys(), key=lambda name: (-n_bytes[name], name)):
        tensor, use = stored[name], uses[name]
        found = next((holder for holder in holders if holders[holder].takes(tensor, use)), None)
        if found is None:
            holders[name] = _Holder(tensor, [use])
        else:
            holders[found].uses.append(use)
            names[name] = found
    kept = tuple(tensor for tensor in operation.scratch if tensor.name not in names)
    return with_names(replace(operation, scratch=kept), names)


def _uses(operation: Operation) -> dict[str, tuple[int, int]]:
    """Return the first and the last step that uses each tensor. Those of library steps, which make their results
    themselves, are left out."""
    uses: dict[str, tuple[int, int]] = {}
    of_libraries: set[str] = set()
    for position, step in enumerate(operation.steps):
        if isinstance(step, LibraryStep):
            of_libraries |= touched(step)
        for name in touched(step):
            uses[name] = (uses.get(name, (position, position))[0], position)
    return {name: use for name, use in uses.items() if name not in of_libraries}
