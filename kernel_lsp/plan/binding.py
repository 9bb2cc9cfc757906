"""An operation with symbolic dims + actual shapes -> the launches to make, with every number computed and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.expression import Call, Constant, Expression, ExpressionError, Name, Number, free_names, parts
from kernel_lsp.core.expression_value import evaluate, evaluate_int
from kernel_lsp.core.plan import (
    BoundFill,
    BoundLaunch,
    BoundLibraryStep,
    BoundOperation,
    BoundStep,
    BoundTensor,
    Fill,
    KernelParameter,
    KernelSignature,
    Launch,
    LibraryArgument,
    LibraryStep,
    Operation,
    ScalarArgument,
    ScalarParameter,
    Span,
    TensorArgument,
    TensorParameter,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.cuda_types import INTEGER_RANGES, convert_scalar, resolve_template, scalar_type

MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MAX_SHARED_BYTES = 227 * 1024
"""Limits of compute capability 7.0 to 10.0 (CUDA C++ Programming Guide, technical specifications per compute
capability); shared memory as on 9.0. A device with less refuses the launch itself."""


class ContractError(PlanError):
    """The shapes or scalars are outside what the operation promises (its dims and its `where:` lines). The plan is
    fine: the operator falls back to PyTorch."""


class SharedMemoryError(PlanError):
    """At these sizes a launch asks for more shared memory than a block can have."""


def bind(
    operation: Operation,
    shapes: Mapping[str, tuple[int, ...]],
    scalars: Mapping[str, Number],
    signatures: Sequence[KernelSignature],
) -> BoundOperation:
    """The operation for these shapes (one per tensor parameter) and scalars.

    Steps whose condition is false are left out, and so is a launch whose grid has a dim of 0: there is nothing to do.
    Raises ContractError outside the contract, and PlanError where the plan itself is at fault (line in the `.cu`),
    also when the conditions of its launches leave a result unwritten.
    """
    scope = _open_scope(operation, shapes, scalars)
    taken = (_bind_step(step, scope, signatures) for step in operation.steps)
    steps = tuple(step for step in taken if step is not None)
    _check_variants(steps, scope)
    return BoundOperation(name=operation.name, dims=scope.dims, tensors=tuple(scope.tensors.values()), steps=steps)


def contract_holds(operation: Operation, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]) -> bool:
    """Whether shapes and scalars are inside the operation's dims and `where:`. Raises PlanError for a broken plan."""
    try:
        _open_scope(operation, shapes, scalars)
    except ContractError:
        return False
    return True


def decisions(
    operation: Operation, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]
) -> tuple[str, ...]:
    """What each step comes to: the kernel's name with its template arguments and which side of each `min` and `max` its
    grid takes, the library's function, or nothing where it is left out.

    Raises ContractError outside the contract, PlanError for a broken plan."""
    scope = _open_scope(operation, shapes, scalars)
    return tuple(_decision(step, scope) for step in operation.steps)


def kernel_name(launch: Launch, values: Mapping[str, Number]) -> str:
    """The C++ name expression, e.g. ``rows<256, true, float>``, for these dims and scalars. Raises ExpressionError."""
    arguments = ", ".join(template_texts(launch, values))
    return f"{launch.kernel}<{arguments}>" if launch.template_arguments else launch.kernel


def template_texts(launch: Launch, values: Mapping[str, Number]) -> tuple[str, ...]:
    """The template arguments as C++ text. Raises ExpressionError for one that cannot be evaluated or is a float."""
    return tuple(_template_text(argument, values) for argument in launch.template_arguments)


def shared_bound(launch: Launch, n_static_bytes: int = 0) -> str:
    """What to write so that a launch is made only where its shared memory fits, beside so much of the kernel's own."""
    fits = f"{launch.shared_bytes} <= {MAX_SHARED_BYTES - n_static_bytes}"
    if launch.condition is None:
        return f"; leave larger sizes to PyTorch by '// where: {fits}'"
    return f"; leave larger sizes to another launch by 'launch[({launch.condition}) and {fits}]', or exclude them"


def find_signature(launch: Launch, signatures: Sequence[KernelSignature]) -> KernelSignature | None:
    """The kernel that a launch names; among overloads the first that takes as many arguments."""
    name = launch.kernel.removeprefix("::")
    named = [signature for signature in signatures if signature.name == name]
    counted = (signature for signature in named if len(signature.parameters) == len(launch.arguments))
    return next(counted, named[0] if named else None)


# --- below: dims and tensors


@dataclass(frozen=True)
class _Scope:
    """What names mean for one set of shapes."""

    operation: Operation
    dims: dict[str, int]
    values: dict[str, Number]
    """Dims and scalars."""
    tensors: dict[str, BoundTensor]

    def number(self, expression: Expression, what: str, span: Span) -> Number:
        return self._evaluated(evaluate, expression, what, span)

    def integer(self, expression: Expression, what: str, span: Span) -> int:
        return int(self._evaluated(evaluate_int, expression, what, span))

    def holds(self, condition: Expression | None, span: Span) -> bool:
        return condition is None or bool(self.number(condition, "the condition", span))

    def fault(self, message: str, span: Span, next_step: str = "") -> PlanError:
        return PlanError(f"{self.operation.name}: {message}", line=span.line, next_step=next_step)

    def _evaluated(
        self, how: Callable[[Expression, Mapping[str, Number]], Number], expression: Expression, what: str, span: Span
    ) -> Number:
        try:
            return how(expression, self.values)
        except ExpressionError as error:
            raise self.fault(f"{what} '{expression}': {error.message}", span) from None


def _open_scope(operation: Operation, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, Number]) -> _Scope:
    scope = _Scope(operation, {}, _check_scalars(operation, scalars), {})
    inputs = [parameter for parameter in operation.parameters if isinstance(parameter, TensorParameter)]
    for tensor in inputs:
        _bind_names(tensor, _shape_of(tensor, shapes, operation), scope)
    for tensor in inputs:
        _check_dims(tensor, shapes[tensor.name], scope)
    for condition in operation.where:
        _check_where(condition.expression, condition.span, scope)
    _allocate(inputs, "input", scope)
    _allocate(operation.results, "output", scope)
    _allocate(operation.scratch, "scratch", scope)
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
    """An int may stand for a float, and nothing else for another type."""
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


def _bind_names(tensor: TensorParameter, shape: tuple[int, ...], scope: _Scope) -> None:
    for dim, size in zip(tensor.dims, shape, strict=True):
        if isinstance(dim, Name) and dim.id not in scope.values:
            scope.dims[dim.id] = size
            scope.values[dim.id] = size


def _check_dims(tensor: TensorParameter, shape: tuple[int, ...], scope: _Scope) -> None:
    for position, (dim, size) in enumerate(zip(tensor.dims, shape, strict=True)):
        _refuse_unknown(dim, tensor.span, scope)
        try:
            expected: int | str = evaluate_int(dim, scope.values)
        except ExpressionError as error:
            expected = error.message
        if expected != size:
            message = f"dim {position} of '{tensor.name}' is {size}, and '{dim}' is {expected}"
            raise ContractError(f"{scope.operation.name}: {message}", line=tensor.span.line)


def _check_where(condition: Expression, span: Span, scope: _Scope) -> None:
    """A condition that cannot be evaluated for these shapes, e.g. a remainder by 0, does not hold."""
    _refuse_unknown(condition, span, scope)
    try:
        holds = bool(evaluate(condition, scope.values))
    except ExpressionError:
        holds = False
    if not holds:
        values = ", ".join(f"{name} = {scope.values[name]}" for name in sorted(free_names(condition)))
        raise ContractError(f"{scope.operation.name}: 'where: {condition}' does not hold for {values}", line=span.line)


def _refuse_unknown(expression: Expression, span: Span, scope: _Scope) -> None:
    unknown = sorted(free_names(expression) - scope.values.keys())
    if unknown:
        next_step = "let the dim stand alone in the shape of some input, or pass it as an int"
        raise scope.fault(f"'{unknown[0]}' in '{expression}' has no value", span, next_step)


def _allocate(tensors: Sequence[TensorParameter], role: Literal["input", "output", "scratch"], scope: _Scope) -> None:
    for tensor in tensors:
        shape = tuple(scope.integer(dim, f"a dim of '{tensor.name}',", tensor.span) for dim in tensor.dims)
        if any(size < 0 for size in shape):
            raise scope.fault(f"'{tensor.name}' would have the shape {shape}", tensor.span)
        scope.tensors[tensor.name] = BoundTensor(name=tensor.name, dtype=tensor.dtype, shape=shape, role=role)


# --- steps


def _decision(step: Fill | Launch | LibraryStep, scope: _Scope) -> str:
    if isinstance(step, Fill) or not scope.holds(step.condition, step.span):
        return ""
    if isinstance(step, LibraryStep):
        return step.function
    try:
        sides = (side for size in step.grid for side in _sides(size, scope.values))
        return " ".join((kernel_name(step, scope.values), *sides))
    except ExpressionError as error:
        raise scope.fault(error.message, step.span) from None


def _sides(expression: Expression, values: Mapping[str, Number]) -> Iterator[str]:
    """Which argument each `min` and `max` in it is."""
    for part in parts(expression):
        if isinstance(part, Call) and part.function in ("min", "max"):
            result = evaluate(part, values)
            yield str([evaluate(argument, values) for argument in part.arguments].index(result))


def _bind_step(
    step: Fill | Launch | LibraryStep, scope: _Scope, signatures: Sequence[KernelSignature]
) -> BoundStep | None:
    """None for a step that these shapes do not take."""
    match step:
        case Fill():
            return _bind_fill(step, scope)
        case Launch():
            return _bind_launch(step, scope, signatures) if scope.holds(step.condition, step.span) else None
        case LibraryStep():
            return _bind_library(step, scope) if scope.holds(step.condition, step.span) else None


def _check_variants(steps: tuple[BoundStep, ...], scope: _Scope) -> None:
    """Every result that has elements is handed to some step, whatever variants these shapes take."""
    handed = {name for step in steps for name in _tensors_handed_to(step)}
    for result in scope.operation.results if scope.operation.steps else ():
        if result.name not in handed and scope.tensors[result.name].n_elements > 0:
            dims = ", ".join(f"{name} = {size}" for name, size in scope.dims.items())
            next_step = "add a launch for such shapes, or exclude them with '// where:'"
            raise scope.fault(f"no step writes '{result.name}' for {dims}", result.span, next_step)


def _tensors_handed_to(step: BoundStep) -> tuple[str, ...]:
    match step:
        case BoundFill(tensor=tensor):
            return (tensor,)
        case BoundLaunch(arguments=arguments):
            return tuple(argument.tensor for argument in arguments if isinstance(argument, TensorArgument))
        case BoundLibraryStep(results=results):
            return results


def _bind_fill(fill: Fill, scope: _Scope) -> BoundFill:
    tensor = _known_tensor(fill.tensor, fill.span, scope)
    value = scope.number(fill.value, "the value", fill.span)
    if not tensor.dtype.is_floating:
        try:
            value = convert_scalar(value, tensor.dtype.cuda_type)
        except ValueError as error:
            raise scope.fault(f"cannot fill '{fill.tensor}': {error}", fill.span) from None
    return BoundFill(tensor=fill.tensor, value=int(value) if isinstance(value, bool) else value)


def _bind_launch(launch: Launch, scope: _Scope, signatures: Sequence[KernelSignature]) -> BoundLaunch | None:
    grid = _evaluate_size(launch.grid, "grid", launch, scope)
    if 0 in grid:
        return None
    signature = find_signature(launch, signatures)
    if signature is None:
        raise scope.fault(f"no kernel '{launch.kernel}' in this file", launch.span)
    _check_grid(grid, launch, scope)
    block = _evaluate_size(launch.block, "block", launch, scope)
    _check_block(block, launch, scope)
    return BoundLaunch(
        kernel=_kernel_name(launch, signature, scope),
        grid=grid,
        block=block,
        shared_bytes=_evaluate_shared(launch, scope),
        arguments=_bind_arguments(launch, signature, scope),
        attributes=dict(launch.attributes),
        line=launch.span.line,
    )


def _evaluate_size(
    size: tuple[Expression, Expression, Expression], what: str, launch: Launch, scope: _Scope
) -> tuple[int, int, int]:
    x, y, z = (scope.integer(part, f"the {what}", launch.span) for part in size)
    if min(x, y, z) < 0:
        raise scope.fault(f"the {what} of '{launch.kernel}' is ({x}, {y}, {z})", launch.span)
    return x, y, z


def _check_grid(grid: tuple[int, int, int], launch: Launch, scope: _Scope) -> None:
    for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
        if size > limit:
            next_step = "put the long dim on x, or let each block do more than one"
            message = f"the grid of '{launch.kernel}' is {grid}: {axis} may be {limit} at most"
            raise scope.fault(message, launch.span, next_step)


def _check_block(block: tuple[int, int, int], launch: Launch, scope: _Scope) -> None:
    n_threads = block[0] * block[1] * block[2]
    if n_threads == 0 or n_threads > MAX_THREADS_PER_BLOCK or any(b > m for b, m in zip(block, MAX_BLOCK, strict=True)):
        message = f"the block of '{launch.kernel}' is {block}: 1 to {MAX_THREADS_PER_BLOCK} threads, z up to 64"
        raise scope.fault(message, launch.span)


def _evaluate_shared(launch: Launch, scope: _Scope) -> int:
    shared_bytes = scope.integer(launch.shared_bytes, "the bytes of shared memory", launch.span)
    if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
        message = f"'{launch.kernel}' asks for {shared_bytes} bytes of shared memory: {MAX_SHARED_BYTES} at most"
        message += shared_bound(launch) if free_names(launch.shared_bytes) else ""
        raise SharedMemoryError(f"{scope.operation.name}: {message}", line=launch.span.line)
    return shared_bytes


def _kernel_name(launch: Launch, signature: KernelSignature, scope: _Scope) -> str:
    try:
        name = kernel_name(launch, scope.values)
    except ExpressionError as error:
        raise scope.fault(f"a template argument of '{launch.kernel}': {error.message}", launch.span) from None
    all_defaults = signature.template_parameters and not launch.template_arguments
    return f"{name}<>" if all_defaults else name


def _template_text(argument: Expression | str, values: Mapping[str, Number]) -> str:
    if isinstance(argument, str):
        return argument
    value = evaluate(argument, values)
    if isinstance(value, float):
        raise ExpressionError(f"'{argument}' is {value}, and a template argument must be an integer")
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- arguments


def _bind_arguments(
    launch: Launch, signature: KernelSignature, scope: _Scope
) -> tuple[TensorArgument | ScalarArgument, ...]:
    if len(launch.arguments) != len(signature.parameters):
        message = f"'{launch.kernel}' takes {len(signature.parameters)} arguments, and gets {len(launch.arguments)}"
        raise scope.fault(message, launch.span)
    templates = template_texts(launch, scope.values)
    spans = launch.argument_spans or (launch.span,) * len(launch.arguments)
    return tuple(
        _bind_argument(argument, parameter, resolve_template(parameter.element, signature, templates), span, scope)
        for argument, parameter, span in zip(launch.arguments, signature.parameters, spans, strict=True)
    )


def _bind_argument(
    argument: Expression, parameter: KernelParameter, element: str | None, span: Span, scope: _Scope
) -> TensorArgument | ScalarArgument:
    is_tensor = isinstance(argument, Name) and argument.id in scope.tensors
    if is_tensor != parameter.is_pointer:
        kinds = ("a tensor", "a value") if is_tensor else ("a number", "a pointer")
        raise scope.fault(f"'{argument}' is {kinds[0]}, and the parameter '{parameter.name}' is {kinds[1]}", span)
    if isinstance(argument, Name) and is_tensor:
        return TensorArgument(tensor=argument.id)
    cuda_type = None if element is None else scalar_type(element)
    if cuda_type is None:
        message = f"the parameter '{parameter.name}' has the type '{element or parameter.element}', no plain number"
        raise scope.fault(message, span, "take float, double, bool or an integer type, and convert in the kernel")
    value = scope.number(argument, f"the argument for '{parameter.name}',", span)
    return ScalarArgument(cuda_type=cuda_type, value=_converted(value, cuda_type, argument, span, scope))


def _converted(value: Number, cuda_type: str, argument: Expression, span: Span, scope: _Scope) -> Number:
    try:
        return convert_scalar(value, cuda_type)
    except ValueError as error:
        wider = "take it as long long in the kernel" if cuda_type in INTEGER_RANGES else ""
        raise scope.fault(f"the argument '{argument}': {error}", span, wider) from None


def _known_tensor(name: str, span: Span, scope: _Scope) -> BoundTensor:
    if name not in scope.tensors:
        raise scope.fault(f"no tensor '{name}' in this operation", span)
    return scope.tensors[name]


def _bind_library(step: LibraryStep, scope: _Scope) -> BoundLibraryStep:
    for result in step.results:
        _known_tensor(result, step.span, scope)
    arguments = tuple(_library_value(argument, step, scope) for argument in step.arguments)
    return BoundLibraryStep(function=step.function, arguments=arguments, results=step.results)


def _library_value(argument: LibraryArgument, step: LibraryStep, scope: _Scope) -> object:
    if argument is None or isinstance(argument, Constant):
        return None if argument is None else argument.value
    if isinstance(argument, tuple):
        return [_library_value(item, step, scope) for item in argument]
    if isinstance(argument, str):
        return {"tensor": _known_tensor(argument, step.span, scope).name}
    return scope.number(argument, "an argument", step.span)
