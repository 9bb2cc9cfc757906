"""Check that a plan implements a task: names, dtypes, shapes and order, before anything is compiled."""

from __future__ import annotations

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import LaunchPlan, Operation, ScalarParameter, TensorParameter
from kernel_lsp.core.task import Graph, GraphOutput, Task, TaskScalar, TensorType


def check_contract(plan: LaunchPlan, task: Task, *, operation_names: tuple[str, ...]) -> tuple[Finding, ...]:
    """Return findings where the plan's operations lack the task's inputs or outputs. `operation_names` are those that
    the task needs, forward first."""
    findings: list[Finding] = []
    for name, graph in zip(operation_names, _graphs(task), strict=False):
        operation = plan.operation(name)
        if operation is None:
            found = ", ".join(operation.name for operation in plan.operations)
            findings.append(_finding(f"the task needs `op: {name}(...)`; the plan has {found}", 1))
            continue
        findings += _check_operation(operation, graph, task)
    return tuple(findings)


def operation_names(task: Task, plan: LaunchPlan) -> tuple[str, ...]:
    """Return the operations to check: the plan's forward, and its backward when the task has one."""
    forward = plan.forward.name
    return (forward, f"{forward}_backward") if task.backward is not None else (forward,)


# --- below: one operation against one graph


def _graphs(task: Task) -> tuple[Graph, ...]:
    return (task.forward,) if task.backward is None else (task.forward, task.backward)


def _check_operation(operation: Operation, graph: Graph, task: Task) -> list[Finding]:
    types = dict(zip(graph.inputs, graph.input_types, strict=True))
    scalars = {argument.name for argument in task.arguments if isinstance(argument, TaskScalar)}
    findings = [
        _finding(f"{operation.name}: {_not_an_input(parameter.name, types, scalars)}", line)
        for parameter in operation.parameters
        for line in [parameter.span.line]
        if parameter.name not in types and parameter.name not in scalars
    ]
    tensors = [p for p in operation.parameters if isinstance(p, TensorParameter) and p.name in types]
    missing = [p.name for p in operation.parameters if isinstance(p, ScalarParameter) and p.name in types]
    findings += [
        _finding(f"{operation.name}: '{name}' is a tensor, not a number", operation.span.line) for name in missing
    ]
    for parameter in tensors:
        findings += _check_type(operation, parameter, types[parameter.name])
    return findings + _check_results(operation, [output for output in graph.outputs if output.node is not None])


def _check_results(operation: Operation, outputs: list[GraphOutput]) -> list[Finding]:
    if len(operation.results) != len(outputs):
        expected = ", ".join(output.name for output in outputs)
        message = f"{operation.name}: {len(operation.results)} results, and the task has {len(outputs)}: ({expected})"
        return [_finding(message, operation.span.line)]
    findings: list[Finding] = []
    for result, output in zip(operation.results, outputs, strict=True):
        assert output.type is not None
        findings += _check_type(operation, result, output.type)
    return findings


def _check_type(operation: Operation, parameter: TensorParameter, type_: TensorType) -> list[Finding]:
    place = f"{operation.name}: '{parameter.name}'"
    if parameter.dtype is not type_.dtype:
        return [_finding(f"{place} is {parameter.dtype}, and the task has {type_.dtype}", parameter.span.line)]
    if len(parameter.dims) != len(type_.shape):
        message = f"{place} has {len(parameter.dims)} dims, and the task has {len(type_.shape)}"
        return [_finding(f"{message}: [{', '.join(type_.shape)}]", parameter.span.line)]
    return []


def _not_an_input(name: str, types: dict[str, TensorType], scalars: set[str]) -> str:
    return f"'{name}' is no input of the task: {', '.join([*types, *sorted(scalars)])}"


def _finding(message: str, line: int) -> Finding:
    return Finding(code="plan-task-mismatch", severity=Severity.ERROR, message=message, source="plan", line=line)
