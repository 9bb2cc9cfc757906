"""Pick how many blocks share a sequence of a recurrent layer, and how many threads a unit."""

from __future__ import annotations

from kernel_lsp.errors import TargetError
from kernel_lsp.generate.codegen.routines.recurrence import Recurrence
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.schedule.knobs import Choices


def choose_recurrence(choices: Choices, name: str, layer: Recurrence, workload: Workload) -> tuple[int, int]:
    """Return blocks per sequence and threads per unit. Raises TargetError where a block has too few threads."""
    values = [blocks for blocks in (8, 4, 2, 1) if layer.is_valid(blocks, 1)]
    if not values or workload.capability < HOPPER:
        values = [1]
    blocks = choices.pick_int(f"{name}.blocks", values, values[0], "blocks per sequence")
    n_parts = [parts for parts in (8, 16, 4, 32, 2, 1) if layer.is_valid(blocks, parts)]
    if not n_parts:
        raise TargetError(
            f"the generator cannot do a recurrent layer of {layer.n_units} units: a block has too few threads",
            next_step="use fewer hidden units, or leave this layer outside the target",
        )
    default = next((parts for parts in n_parts if layer.keeps_weights(blocks, parts)), n_parts[0])
    return blocks, choices.pick_int(f"{name}.parts", n_parts, default, "threads per unit")
