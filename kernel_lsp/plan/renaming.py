"""Rename tensors, dims and scalars of an operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernel_lsp.core.expression import Binary, Call, Expression, Name, Unary
from kernel_lsp.core.plan import (
    Condition,
    Fill,
    Launch,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarParameter,
    Step,
    TensorParameter,
)

Names = Mapping[str, str]


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
