"""Rename tensors, dims and scalars of an operation, map a plan's tensor names to the task's, and chain a backward
behind its forward.

A name reserved in CUDA, C++ or Python gets an underscore in a task (``cos_``), since kernels are written around it. A
plan may omit it: with kernels of its own it can name a parameter `cos`. A plan may also choose its results' names, with
a ``grad_`` prefix for their gradients.

A verdict, a count and a bound plan need the values of kept tensors, which only the forward's steps make: a backward
that takes them is chained behind its forward, as one operation of the task's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernel_lsp.core.expression import Binary, Call, Expression, Name, Unary, parse
from kernel_lsp.core.plan import (
    Condition,
    Fill,
    Launch,
    LaunchPlan,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarParameter,
    Step,
    TensorParameter,
)
from kernel_lsp.core.task import Graph, Task

Names = Mapping[str, str]
GRADIENT_PREFIX = "grad_"


def with_names(operation: Operation, names: Names) -> Operation:
    """Return the operation with other names of its tensors, dims and scalars."""
    return replace(
        operation,
        parameters=tuple(_parameter(parameter, names) for parameter in operation.parameters),
        results=tuple(_tensor(result, names) for result in operation.results),
        kept=tuple(_tensor(tensor, names) for tensor in operation.kept),
        scratch=tuple(_tensor(tensor, names) for tensor in operation.scratch),
        where=tuple(Condition(_expression(each.expression, names), each.span) for each in operation.where),
        steps=tuple(_step(step, names) for step in operation.steps),
    )


def _parameter(parameter: TensorParameter | ScalarParameter, names: Names) -> TensorParameter | ScalarParameter:
    if isinstance(parameter, TensorParameter):
        return _tensor(parameter, names)
    return replace(parameter, name=names.get(parameter.name, parameter.name))


def _tensor(tensor: TensorParameter, names: Names) -> TensorParameter:
    dims = tuple(_expression(dim, names) for dim in tensor.dims)
    same_as = names.get(tensor.same_as, tensor.same_as)
    return replace(tensor, name=names.get(tensor.name, tensor.name), dims=dims, same_as=same_as)


def _step(step: Step, names: Names) -> Step:
    match step:
        case Fill(tensor, value):
            return replace(step, tensor=names.get(tensor, tensor), value=_expression(value, names))
        case LibraryStep():
            return replace(
                step,
                arguments=tuple(_library_argument(argument, names) for argument in step.arguments),
                results=tuple(names.get(result, result) for result in step.results),
                condition=None if step.condition is None else _expression(step.condition, names),
            )
        case Launch():
            return _launch(step, names)


def _launch(launch: Launch, names: Names) -> Launch:
    grid, block = ([_expression(size, names) for size in sizes] for sizes in (launch.grid, launch.block))
    return replace(
        launch,
        template_arguments=tuple(
            argument if isinstance(argument, str) else _expression(argument, names)
            for argument in launch.template_arguments
        ),
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        shared_bytes=_expression(launch.shared_bytes, names),
        arguments=tuple(_expression(argument, names) for argument in launch.arguments),
        condition=None if launch.condition is None else _expression(launch.condition, names),
    )


def _library_argument(argument: LibraryArgument, names: Names) -> LibraryArgument:
    match argument:
        case None:
            return None
        case str():
            return names.get(argument, argument)
        case Expression():
            return _expression(argument, names)
        case _:
            return tuple(_library_argument(item, names) for item in argument)


def _expression(expression: Expression, names: Names) -> Expression:
    match expression:
        case Name(id):
            return Name(names.get(id, id))
        case Unary(operator, operand):
            return Unary(operator, _expression(operand, names))
        case Binary(operator, left, right):
            return Binary(operator, _expression(left, names), _expression(right, names))
        case Call(function, arguments):
            return Call(function, tuple(_expression(argument, names) for argument in arguments))
    return expression


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
    of_graphs = list(zip(plan.operations, task.graphs, strict=False))
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


def given_by_forward(plan: LaunchPlan) -> tuple[TensorParameter, ...]:
    """Return the parameters of the backward that its forward computes: kept tensors and results."""
    if plan.backward is None:
        return ()
    computed = {tensor.name for tensor in plan.forward.keepable}
    parameters = (p for p in plan.backward.parameters if isinstance(p, TensorParameter))
    return tuple(parameter for parameter in parameters if parameter.name in computed)


def chained_backward(plan: LaunchPlan) -> Operation | None:
    """Return the backward with the steps of its forward before its own where it takes what that one computes, and the
    backward as it is elsewhere. All of the forward's tensors but its parameters are scratch then."""
    backward, forward = plan.backward, plan.forward
    given = {tensor.name for tensor in given_by_forward(plan)}
    if backward is None or not given:
        return backward
    own = tuple(parameter for parameter in backward.parameters if parameter.name not in given)
    known = {parameter.name for parameter in own}
    forward = with_names(forward, _distinct(forward, backward, given))
    return replace(
        backward,
        parameters=(*own, *(parameter for parameter in forward.parameters if parameter.name not in known)),
        where=(*forward.where, *backward.where),
        scratch=(*forward.outputs, *forward.kept, *forward.scratch, *backward.scratch),
        steps=(*forward.steps, *backward.steps),
        n_before=len(forward.steps),
    )


def without_kept(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan for callers that hand nothing from a forward to its backward: the backward has the steps of its
    forward before its own, and what the forward keeps is scratch."""
    chained = chained_backward(plan)
    if chained is None or not given_by_forward(plan):
        return plan
    forward = replace(plan.forward, kept=(), scratch=(*plan.forward.kept, *plan.forward.scratch))
    return replace(plan, operations=(forward, replace(chained, n_before=0)))


def _distinct(forward: Operation, backward: Operation, given: set[str]) -> dict[str, str]:
    """Return other names for the tensors of the forward that are called as something else of the backward."""
    dims = (dim.id for tensor in backward.tensors for dim in tensor.dims if isinstance(dim, Name))
    scalars = (p.name for p in backward.parameters if isinstance(p, ScalarParameter))
    taken = {*dims, *scalars, *(tensor.name for tensor in backward.tensors)}
    own = {tensor.name for tensor in (*forward.outputs, *forward.kept, *forward.scratch)} - given
    names: dict[str, str] = {}
    for name in sorted(own & taken):
        found = f"forward_{name}"
        while found in taken | own:
            found += "_"
        names[name] = found
    return names
