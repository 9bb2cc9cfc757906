"""An operation's contract: its dims, scalars and `where:` lines, checked against concrete shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kernel_lsp.core.expression import Expression, ExpressionError, Name, Number, evaluate, evaluate_int, free_names
from kernel_lsp.core.plan import BoundTensor, Operation, ScalarParameter, Span, TensorParameter
from kernel_lsp.errors import PlanError

Role = Literal["input", "output", "scratch"]


class ContractError(PlanError):
    """The shapes or scalars violate the operation's contract (its dims and `where:` lines). The plan itself is valid:
    the operator falls back to PyTorch."""


def contract_holds(operation: Operation, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]) -> bool:
    """Return True when shapes and scalars satisfy the operation's contract. Raises PlanError for a broken plan."""
    try:
        open_scope(operation, shapes, scalars)
    except ContractError:
        return False
    return True


@dataclass(frozen=True)
class Scope:
    """Values of names for one set of shapes."""

    operation: Operation
    dims: dict[str, int]
    values: dict[str, Number]
    """Dims and scalars."""

    @cached_property
    def tensors(self) -> dict[str, BoundTensor]:
        """Return every tensor of the operation with its shape. Raises PlanError for an invalid shape."""
        inputs = (parameter for parameter in self.operation.parameters if isinstance(parameter, TensorParameter))
        of_roles: dict[Role, Iterable[TensorParameter]] = {
            "input": inputs,
            "output": self.operation.outputs,
            "scratch": (*self.operation.kept, *self.operation.scratch),
        }
        return {each.name: self._tensor(each, role) for role, tensors in of_roles.items() for each in tensors}

    def number(self, expression: Expression, what: str, span: Span) -> Number:
        """Evaluate an expression; `what` names its purpose in an error."""
        return self._evaluated(evaluate, expression, what, span)

    def integer(self, expression: Expression, what: str, span: Span) -> int:
        """Evaluate an expression that must be an integer."""
        return int(self._evaluated(evaluate_int, expression, what, span))

    def holds(self, condition: Expression | None, span: Span) -> bool:
        """Return True when a step's condition holds, or there is none."""
        return condition is None or bool(self.number(condition, "the condition", span))

    def fault(self, message: str, span: Span, next_step: str = "") -> PlanError:
        """Make an error of the plan, at a position in the `.cu`."""
        return PlanError(f"{self.operation.name}: {message}", line=span.line, next_step=next_step)

    def _tensor(self, tensor: TensorParameter, role: Role) -> BoundTensor:
        shape = tuple(self.integer(dim, f"a dim of '{tensor.name}',", tensor.span) for dim in tensor.dims)
        if any(size < 0 for size in shape):
            raise self.fault(f"'{tensor.name}' would have the shape {shape}", tensor.span)
        return BoundTensor(name=tensor.name, dtype=tensor.dtype, shape=shape, role=role)

    def _evaluated(
        self, how: Callable[[Expression, Mapping[str, Number]], Number], expression: Expression, what: str, span: Span
    ) -> Number:
        try:
            return how(expression, self.values)
        except ExpressionError as error:
            raise self.fault(f"{what} '{expression}': {error.message}", span) from None


def open_scope(operation: Operation, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]) -> Scope:
    """Bind names for these shapes and scalars. Raises ContractError outside the contract, and PlanError where the plan
    is at fault; errors in a result's shape are raised when the tensors are requested."""
    scope = Scope(operation, {}, _check_scalars(operation, scalars))
    inputs = [parameter for parameter in operation.parameters if isinstance(parameter, TensorParameter)]
    for tensor in inputs:
        _bind_names(tensor, _shape_of(tensor, shapes, operation), scope)
    for tensor in inputs:
        _check_dims(tensor, shapes[tensor.name], scope)
    for condition in operation.where:
        _check_where(condition.expression, condition.span, scope)
    return scope


def _check_scalars(operation: Operation, scalars: Mapping[str, Number]) -> dict[str, Number]:
    values: dict[str, Number] = {}
    for parameter in operation.parameters:
        if not isinstance(parameter, ScalarParameter):
            continue
        if parameter.name not in scalars:
            message = f"{operation.name}: no value for the scalar '{parameter.name}'"
            raise PlanError(message, line=parameter.span.line)
        values[parameter.name] = _check_scalar(operation, parameter, scalars[parameter.name])
    return values


def _check_scalar(operation: Operation, parameter: ScalarParameter, value: Number) -> Number:
    """Check a scalar's type; only an int may stand for a float."""
    fits = {"float": (int, float), "int": (int,), "bool": (bool,)}[parameter.type]
    is_stray_bool = isinstance(value, bool) and parameter.type != "bool"
    if is_stray_bool or not isinstance(value, fits):
        message = f"{operation.name}: the scalar '{parameter.name}' is {parameter.type}, and got {value!r}"
        raise PlanError(message, line=parameter.span.line)
    return float(value) if parameter.type == "float" else value


def _shape_of(tensor: TensorParameter, shapes: Mapping[str, tuple[int, ...]], operation: Operation) -> tuple[int, ...]:
    if tensor.name not in shapes:
        raise PlanError(f"{operation.name}: no shape for the tensor '{tensor.name}'", line=tensor.span.line)
    shape = shapes[tensor.name]
    if len(shape) != len(tensor.dims):
        message = f"{operation.name}: '{tensor.name}' has {len(shape)} dims, and the plan says {len(tensor.dims)}"
        raise ContractError(message, line=tensor.span.line)
    return shape


def _bind_names(tensor: TensorParameter, shape: tuple[int, ...], scope: Scope) -> None:
    for dim, size in zip(tensor.dims, shape, strict=True):
        if isinstance(dim, Name) and dim.id not in scope.values:
            scope.dims[dim.id] = size
            scope.values[dim.id] = size


def _check_dims(tensor: TensorParameter, shape: tuple[int, ...], scope: Scope) -> None:
    for position, (dim, size) in enumerate(zip(tensor.dims, shape, strict=True)):
        _refuse_unknown(dim, tensor.span, scope)
        try:
            expected: int | str = evaluate_int(dim, scope.values)
        except ExpressionError as error:
            expected = error.message
        if expected != size:
            raise _wrong_size(scope.operation, tensor, position, size, expected)


def constant_dim_violated(operation: Operation, shapes: Mapping[str, tuple[int, ...]]) -> ContractError | None:
    """Return the error of a dim of an input that is a constant and has another size in these shapes, whatever the
    operation's scalars are; None without one. Inputs with other ranks, or without a shape, are left out."""
    for tensor in operation.parameters:
        shape = shapes.get(tensor.name, ())
        if not isinstance(tensor, TensorParameter) or len(shape) != len(tensor.dims):
            continue
        for position, (dim, size) in enumerate(zip(tensor.dims, shape, strict=True)):
            if not free_names(dim) and (expected := evaluate_int(dim, {})) != size:
                return _wrong_size(operation, tensor, position, size, expected)
    return None


def _wrong_size(
    operation: Operation, tensor: TensorParameter, position: int, size: int, expected: int | str
) -> ContractError:
    message = f"dim {position} of '{tensor.name}' is {size}, and '{tensor.dims[position]}' is {expected}"
    return ContractError(f"{operation.name}: {message}", line=tensor.span.line)


def _check_where(condition: Expression, span: Span, scope: Scope) -> None:
    """Check a condition; one that cannot be evaluated for these shapes, e.g. a remainder by 0, does not hold."""
    _refuse_unknown(condition, span, scope)
    try:
        holds = bool(evaluate(condition, scope.values))
    except ExpressionError:
        holds = False
    if not holds:
        values = ", ".join(f"{name} = {scope.values[name]}" for name in sorted(free_names(condition)))
        raise ContractError(f"{scope.operation.name}: 'where: {condition}' does not hold for {values}", line=span.line)


def _refuse_unknown(expression: Expression, span: Span, scope: Scope) -> None:
    unknown = sorted(free_names(expression) - scope.values.keys())
    if unknown:
        next_step = "let the dim stand alone in the shape of some input, or pass it as an int"
        raise scope.fault(f"'{unknown[0]}' in '{expression}' has no value", span, next_step)
