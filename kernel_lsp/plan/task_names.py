"""Map a plan's tensor names to the task's.

A name reserved in CUDA, C++ or Python gets an underscore in a task (``cos_``), since kernels are written around it. A
plan may omit it: with kernels of its own it can name a parameter `cos`. A plan may also choose its results' names, with
a ``grad_`` prefix for their gradients.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.core.expression import Name, parse
from kernel_lsp.core.plan import Condition, LaunchPlan, Operation, TensorParameter
from kernel_lsp.core.task import Graph, Task
from kernel_lsp.plan.checking import GRADIENT_PREFIX
from kernel_lsp.plan.renaming import with_names


def with_task_names(plan: LaunchPlan, task: Task) -> LaunchPlan:
    """Return the plan with ``cos_`` for ``cos`` if the task's inputs have only the former, and with the task's names of
    the forward's results where a backward takes their gradients. Unchanged where names agree."""
    inputs = task.input_names
    declared = {tensor.name for operation in plan.operations for tensor in operation.tensors}
    declared |= {parameter.name for operation in plan.operations for parameter in operation.parameters}
    changed = {
        name: f"{name}_"
        for name in declared
        if name not in inputs and f"{name}_" in inputs and f"{name}_" not in declared
    }
    results, outputs = plan.forward.results, task.forward.outputs
    if plan.backward is not None and len(results) == len(outputs):
        changed |= {
            result.name: output.name
            for result, output in zip(results, outputs, strict=True)
            if output.name not in declared and result.name not in inputs
        }
    if not changed:
        return plan
    changed |= {f"{GRADIENT_PREFIX}{old}": f"{GRADIENT_PREFIX}{new}" for old, new in changed.items()}
    return replace(plan, operations=tuple(with_names(operation, changed) for operation in plan.operations))


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


def _with_conditions(operation: Operation, sizes: dict[str, int]) -> Operation:
    known = {str(condition.expression) for condition in operation.where}
    wanted = [parse(f"{name} == {size}") for name, size in sizes.items()]
    added = [Condition(expression, operation.span) for expression in wanted if str(expression) not in known]
    return replace(operation, where=(*operation.where, *added))
