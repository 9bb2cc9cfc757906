"""Choose which tensors gather their updates row by row instead of adding them atomically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernel_lsp.generate.fusion.scatters import n_whole_dims
from kernel_lsp.generate.ir.index import product
from kernel_lsp.generate.ir.tensor import Scatter, Tensor
from kernel_lsp.generate.schedule.knobs import OperationPlanner

MIN_GATHERED_ELEMENTS = 1 << 20
"""Minimum elements of updates that rows gather by default: below, another launch costs more than atomic additions."""


def pick_gathered(live: Sequence[Tensor], planner: OperationPlanner) -> Iterator[Tensor]:
    """Yield the tensors whose rows gather their updates: many of them, atomic additions to a tensor past the L2 cache
    wait for memory twice."""
    for tensor in live:
        definition = tensor.definition
        if not isinstance(definition, Scatter) or not n_whole_dims(tensor, definition):
            continue
        name = f"{planner.operation}.{planner.names.take(tensor.name)}.gathered"
        n_updates = planner.workload.size(product(variable.extent for variable in definition.variables))
        is_worth_it = n_updates >= MIN_GATHERED_ELEMENTS
        if planner.choices.pick_int(name, (0, 1), int(is_worth_it), "rows gather their updates"):
            yield tensor
