"""Dims that a plan leaves open and its task holds: nothing was tried at another size, so nothing is promised there.

A module's parameters have the sizes of the module that was captured, and code that computes with a size (a scale of
``1 / sqrt(D)``) is captured for that size alone. A kernel with such a number in it is right for no other.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.core.expression import Name
from kernel_lsp.core.expression_parser import parse
from kernel_lsp.core.plan import Condition, LaunchPlan, Operation, TensorParameter
from kernel_lsp.core.task import Graph, Task


def with_fixed_dims(plan: LaunchPlan, task: Task) -> LaunchPlan:
    """The plan with a condition ``D == 320`` for each such dim; the plan itself where there are none."""
    graphs = [graph for graph in (task.forward, task.backward) if graph is not None]
    of_graphs = list(zip(plan.operations, graphs, strict=False))
    if not any(fixed_dims(operation, graph) for operation, graph in of_graphs):
        return plan
    changed = [_with_conditions(operation, fixed_dims(operation, graph)) for operation, graph in of_graphs]
    return replace(plan, operations=(*changed, *plan.operations[len(changed) :]))


def fixed_dims(operation: Operation, graph: Graph) -> dict[str, int]:
    """The size of each dim that has a name in the operation and a number in the graph, by the inputs' shapes."""
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
