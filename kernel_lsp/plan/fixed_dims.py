"""Dims symbolic in the plan but fixed by the task: no other size was tested, so none is promised.

A module's parameters have the sizes of the captured module, and code that computes with a size (a scale of ``1 /
sqrt(D)``) is captured for that size alone. A kernel with such a constant is correct for no other size.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.core.expression import Name
from kernel_lsp.core.expression_parser import parse
from kernel_lsp.core.plan import Condition, LaunchPlan, Operation, TensorParameter
from kernel_lsp.core.task import Graph, Task


def with_fixed_dims(plan: LaunchPlan, task: Task) -> LaunchPlan:
    """Return the plan with a condition ``D == 320`` for each such dim, unchanged without any."""
    graphs = [graph for graph in (task.forward, task.backward) if graph is not None]
    of_graphs = list(zip(plan.operations, graphs, strict=False))
    if not any(fixed_dims(operation, graph) for operation, graph in of_graphs):
        return plan
    changed = [_with_conditions(operation, fixed_dims(operation, graph)) for operation, graph in of_graphs]
    return replace(plan, operations=(*changed, *plan.operations[len(changed) :]))


def fixed_dims(operation: Operation, graph: Graph) -> dict[str, int]:
    """Return the size of each dim that is symbolic in the operation and constant in the graph, by the inputs'
    shapes."""
    types = dict(zip(graph.inputs, graph.input_types, strict=True))
    return {
        dim.id: int(size)
        for parameter in operation.parameters
        if isinstance(parameter, TensorParameter) and parameter.name in types
        for dim, size in zip(parameter.dims, types[parameter.name].shape, strict=False)
        if isinstance(dim, Name) and size.isdigit()
    }


# --- below


def _with_conditions(operation: Operation, sizes: dict[str, int]) -> Operation:
    known = {str(condition.expression) for condition in operation.where}
    wanted = [parse(f"{name} == {size}") for name, size in sizes.items()]
    added = [Condition(expression, operation.span) for expression in wanted if str(expression) not in known]
    return replace(operation, where=(*operation.where, *added))
