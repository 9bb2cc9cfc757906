"""Find elementwise factors of small contractions that each kernel may compute where it stages them.

A launch that only writes such a factor takes longer than all that read its operands again: the gradients of a linear
layer with a ReLU, (64, 1600) to 128, took 7.5 us on an H200 with it in memory, 5.7 us so. Where a plan leaves the
layer's sizes open, too, each read checks its bounds again: there they took 9.2 and 12.4 us.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from kernel_lsp.generate.fusion.graph import COSTLY, scalars_of
from kernel_lsp.generate.ir.index import product
from kernel_lsp.generate.ir.scalar import Access, Loop, Operation, accesses, nodes
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.contraction_defaults import MAX_SPLIT_PRODUCTS, converts_bytes
from kernel_lsp.generate.schedule.knobs import OperationPlanner
from kernel_lsp.generate.structure.sum_rewrites import with_pointwise_inlined

MAX_NODES = 10
"""Maximum nodes of the expression of a factor."""
MAX_READS = 2


class ContractionPlanner(OperationPlanner, Protocol):
    """Give the results of an operation with contractions."""

    outputs: frozenset[Tensor]


def pick_recomputed(
    live: Sequence[Tensor], planner: ContractionPlanner, contractions: Sequence[tuple[Tensor, str, int]]
) -> Iterator[Tensor]:
    """Yield the factors that kernels compute where they stage them: those that only small sums on CUDA cores read,
    `contractions` (with the way of each) among them, and bytes that tensor cores convert."""
    ways = {tensor: way for tensor, way, _ in contractions}
    readers = _direct_readers(live, planner.outputs)
    for tensor in live:
        definition, sums = tensor.definition, readers[tensor]
        if tensor in planner.outputs or not isinstance(definition, Pointwise) or ways.keys().isdisjoint(sums):
            continue
        if all(_may_recompute(each, ways, planner.workload) for each in sums) and _is_cheap(definition):
            name = f"{planner.operation}.{planner.names.take(tensor.name)}.inlined"
            is_worth_it = not tensor.shape or tensor.shape[-1].constant is not None
            if planner.choices.pick_int(name, (0, 1), int(is_worth_it), "computed by each kernel that reads it"):
                yield tensor


def _is_cheap(definition: Pointwise) -> bool:
    """Return True if an element takes a few operations and reads; False for a view."""
    found = list(nodes(with_pointwise_inlined(definition.body)))
    operations = [node for node in found if isinstance(node, Operation)]
    n_reads = sum(isinstance(node, Access) for node in found)
    is_plain = not any(isinstance(node, Loop) for node in found) and not any(op.name in COSTLY for op in operations)
    return bool(operations) and is_plain and len(found) <= MAX_NODES and n_reads <= MAX_READS


def _direct_readers(live: Sequence[Tensor], outputs: Collection[Tensor]) -> Mapping[Tensor, set[Tensor]]:
    """Return the tensors that read each, by way of views or not."""
    readers: dict[Tensor, set[Tensor]] = {tensor: set() for tensor in live}
    for reader in reversed(live):
        definition = reader.definition
        is_view = isinstance(definition, Pointwise) and isinstance(definition.body, Access) and reader not in outputs
        for access in accesses(*scalars_of(definition)):
            readers.setdefault(access.tensor, set()).update(readers[reader] if is_view else (reader,))
    return readers


def _may_recompute(reader: Tensor, ways: Mapping[Tensor, str], workload: Workload) -> bool:
    """Return True for a small sum on CUDA cores, and for a product on tensor cores that converts bytes."""
    definition, way = reader.definition, ways.get(reader)
    if not isinstance(definition, Reduction) or way == "library":
        return False
    if way == "tensor_cores":
        return converts_bytes(reader, definition, workload)
    return workload.size(product(variable.extent for variable in definition.domain)) <= MAX_SPLIT_PRODUCTS
