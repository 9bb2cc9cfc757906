"""Resolve a candidate's text before anything runs: its plan, its kernels' signatures, and whether they fit the task."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Number
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import (
    BoundOperation,
    KernelSignature,
    LaunchPlan,
    LibraryStep,
    Operation,
    ScalarParameter,
    TensorParameter,
)
from kernel_lsp.core.task import Graph, GraphOutput, Task, TaskScalar, TensorType
from kernel_lsp.core.verdict import BuildFailed
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.binding import bind_in, blocks_by_line, decisions, has_grids_that_fit
from kernel_lsp.plan.checking import check
from kernel_lsp.plan.contract import ContractError, Scope, contract_holds, open_scope
from kernel_lsp.plan.parser import parse
from kernel_lsp.plan.renaming import chained_backward, fixed_dims, with_fixed_dims, with_task_names
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.verify.model.cases import OperationKind, Sizes, graph_of, n_largest, shapes_for

Value = TypeVar("Value")
_Place: TypeAlias = tuple[Hashable, ...]
"""A direction and sizes."""
MIN_SCRATCH_BYTES = 1 << 30
SCRATCH_FACTOR = 16
"""Maximum bytes of scratch, as a multiple of the bytes of all inputs and outputs, and of the largest tensor that the
graph computes: the backward of an attention stores several matrices of all pairs. A split sum needs a few times as
much as its inputs."""


@dataclass(frozen=True)
class Prepared:
    """A plan that fits its kernels and its task. `findings` are warnings. Bindings are cached by sizes, since choosing
    cases asks for each hundreds of times."""

    text: str
    task: Task
    plan: LaunchPlan
    signatures: tuple[KernelSignature, ...]
    findings: tuple[Finding, ...]
    _scopes: dict[_Place, Scope | PlanError] = field(default_factory=dict, init=False, repr=False, compare=False)
    _holding: dict[_Place, bool | PlanError] = field(default_factory=dict, init=False, repr=False, compare=False)
    _bound: dict[_Place, BoundOperation | PlanError] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def directions(self) -> tuple[OperationKind, ...]:
        return ("forward", "backward") if self.task.backward is not None else ("forward",)

    def operation(self, direction: OperationKind) -> Operation:
        """Return the operation of one direction: a backward that takes what its forward kept has its steps first."""
        operation = self.plan.forward if direction == "forward" else chained_backward(self.plan)
        assert operation is not None, "the contract was checked"
        return operation

    def bind(self, direction: OperationKind, sizes: Sizes) -> BoundOperation:
        """Return the operation bound to the sizes. Raises PlanError, ContractError outside the contract."""
        return _kept(self._bound, (direction, *sizes.items()), lambda: self._bind(direction, sizes))

    def holds(self, direction: OperationKind, sizes: Sizes) -> bool:
        """Check that the sizes are inside the operation's contract and no grid exceeds CUDA's limits. A grid that
        cannot be evaluated means a broken plan, which binding reports."""
        return _kept(self._holding, (direction, *sizes.items()), lambda: self._holds(direction, sizes))

    def can_bind(self, direction: OperationKind, sizes: Sizes) -> bool:
        """Check that the sizes are inside the contract and give launches that a GPU accepts."""
        try:
            return self.holds(direction, sizes) and bool(self.bind(direction, sizes).steps)
        except PlanError:
            return False

    def holds_with(self, numbers: Mapping[str, Number], sizes: Sizes) -> bool:
        """Check that the sizes are inside the forward's contract with other scalars than the task's."""
        operation = self.plan.forward
        scalars = self._scalars(operation)
        other = {name: numbers.get(name, value) for name, value in scalars.items()}
        return contract_holds(operation, self._shapes("forward", sizes), other)

    def decisions(self, direction: OperationKind, sizes: Sizes) -> tuple[str, ...]:
        """Return the decision of each step at these sizes. Raises PlanError, ContractError outside the contract."""
        return decisions(self._scope(direction, sizes))

    def blocks_by_line(self, direction: OperationKind, sizes: Sizes) -> dict[int, int]:
        """Return the number of blocks of each launch at these sizes, by line. Omits launches that are not made. Raises
        PlanError, ContractError outside the contract."""
        return blocks_by_line(self._scope(direction, sizes))

    @property
    def fixed_dims(self) -> dict[str, int]:
        """Return dims that are symbolic in the plan but fixed by the task, with their sizes."""
        return fixed_dims(self.plan.forward, self.task.forward)

    @property
    def library_steps(self) -> tuple[str, ...]:
        """Return the distinct vendor library functions that the plan may call."""
        steps = (step for operation in self.plan.operations for step in operation.steps)
        return tuple(dict.fromkeys(step.function for step in steps if isinstance(step, LibraryStep)))

    def _scope(self, direction: OperationKind, sizes: Sizes) -> Scope:
        operation = self.operation(direction)
        return _kept(
            self._scopes,
            (direction, *sizes.items()),
            lambda: open_scope(operation, self._shapes(direction, sizes), self._scalars(operation)),
        )

    def _holds(self, direction: OperationKind, sizes: Sizes) -> bool:
        try:
            scope = self._scope(direction, sizes)
        except ContractError:
            return False
        try:
            return has_grids_that_fit(scope)
        except PlanError:
            return True

    def _bind(self, direction: OperationKind, sizes: Sizes) -> BoundOperation:
        bound = bind_in(self._scope(direction, sizes), self.signatures)
        largest_bytes = n_largest(graph_of(self.task, direction), sizes) * DType.F32.itemsize
        _refuse_vast_scratch(bound, self.operation(direction), largest_bytes)
        return bound

    def _shapes(self, direction: OperationKind, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        wanted = {p.name for p in self.operation(direction).parameters if isinstance(p, TensorParameter)}
        shapes = shapes_for(graph_of(self.task, direction), sizes)
        return {name: shape for name, shape in shapes.items() if name in wanted}

    def _scalars(self, operation: Operation) -> Mapping[str, Number]:
        wanted = {p.name for p in operation.parameters if isinstance(p, ScalarParameter)}
        scalars = (argument for argument in self.task.arguments if isinstance(argument, TaskScalar))
        return {scalar.name: scalar.value for scalar in scalars if scalar.name in wanted}


def prepare(text: str, task: Task) -> Prepared | BuildFailed:
    """Return the candidate's resolved plan, or the reasons why it has none."""
    parsed = parse(text)
    if parsed.plan is None:
        return BuildFailed(findings=parsed.findings)
    signatures = kernel_signatures(text)
    findings = [*parsed.findings, *check(parsed.plan, signatures)]
    plan = with_fixed_dims(with_task_names(parsed.plan, task), task)
    findings += check_contract(plan, task, operation_names=operation_names(task, plan))
    if any(finding.severity is Severity.ERROR for finding in findings):
        return BuildFailed(findings=tuple(sorted(findings, key=lambda f: f.severity is not Severity.ERROR)))
    return Prepared(text, task, plan, signatures, tuple(findings))


def _kept(known: dict[_Place, Value | PlanError], place: _Place, make: Callable[[], Value]) -> Value:
    """Return the cached value of a place, or raise its cached error."""
    if place not in known:
        try:
            known[place] = make()
        except PlanError as error:
            known[place] = error
    found = known[place]
    if isinstance(found, PlanError):
        raise found
    return found


def _refuse_vast_scratch(bound: BoundOperation, operation: Operation, largest_bytes: int) -> None:
    """Raises PlanError for more scratch than any algorithm needs: it would exhaust the device's memory.
    `largest_bytes` are those of the largest tensor that PyTorch computes at these sizes."""
    n_own = sum(tensor.n_bytes for tensor in bound.tensors if tensor.role != "scratch")
    n_scratch = sum(tensor.n_bytes for tensor in bound.scratch)
    n_allowed = max(MIN_SCRATCH_BYTES, SCRATCH_FACTOR * max(n_own, largest_bytes))
    if n_scratch > n_allowed:
        raise PlanError(
            f"{bound.name} asks for {n_scratch:,} bytes of scratch beside tensors of {n_own:,} bytes, "
            f"and {n_allowed:,} are allowed",
            line=operation.scratch[0].span.line,
        )


def kernel_names(bound: BoundOperation) -> set[str]:
    """Return the name expressions that the operation launches."""
    return {launch.kernel for launch in bound.launches}


def plan_failure(error: PlanError) -> BuildFailed:
    """Convert a plan that cannot be bound into an outcome."""
    finding = Finding(
        code="plan-not-bound", severity=Severity.ERROR, message=error.message, source="plan", line=error.line
    )
    return BuildFailed(findings=(finding,))


def check_contract(plan: LaunchPlan, task: Task, *, operation_names: tuple[str, ...]) -> tuple[Finding, ...]:
    """Return findings where the plan's operations lack the task's inputs or outputs. `operation_names` are those that
    the task needs, forward first."""
    findings: list[Finding] = []
    for name, graph in zip(operation_names, task.graphs, strict=False):
        operation = plan.operation(name)
        if operation is not None and operation is plan.backward:
            operation = chained_backward(plan)
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


def _check_operation(operation: Operation, graph: Graph, task: Task) -> list[Finding]:
    types = dict(zip(graph.inputs, graph.input_types, strict=True))
    scalars = {argument.name for argument in task.arguments if isinstance(argument, TaskScalar)}
    findings = [
        _finding(f"{operation.name}: {_not_an_input(parameter.name, types, scalars)}", parameter.span.line)
        for parameter in operation.parameters
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
