"""Bind an operation to concrete shapes: compute and check every launch parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from kernel_lsp.core.expression import (
    Call,
    Constant,
    Expression,
    ExpressionError,
    Name,
    Number,
    evaluate,
    free_names,
    parts,
)
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
    Span,
    TensorArgument,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.contract import Scope, open_scope
from kernel_lsp.plan.cuda_types import INTEGER_RANGES, convert_scalar, resolve_template, scalar_type
from kernel_lsp.plan.kernel_names import find_signature, kernel_name, name_expression, template_texts

MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MAX_SHARED_BYTES = 227 * 1024
"""Limits of compute capability 7.0 to 10.0 (CUDA C++ Programming Guide, technical specifications per compute
capability); shared memory as on 9.0. A device with less rejects the launch itself."""


class SharedMemoryError(PlanError):
    """A launch at these sizes requests more shared memory than a block can have."""


class UnwrittenError(PlanError):
    """No step writes some result at these sizes, because of the steps' conditions."""


def bind(
    operation: Operation,
    shapes: Mapping[str, tuple[int, ...]],
    scalars: Mapping[str, Number],
    signatures: Sequence[KernelSignature],
) -> BoundOperation:
    """Bind the operation to these shapes (one per tensor parameter) and scalars.

    Omits steps whose condition is false, and launches with a grid dim of 0, which have no work. Raises ContractError
    outside the contract, and PlanError where the plan itself is at fault (line in the `.cu`), also when the launches'
    conditions leave a result unwritten.
    """
    return bind_in(open_scope(operation, shapes, scalars), signatures)


def bind_in(scope: Scope, signatures: Sequence[KernelSignature]) -> BoundOperation:
    """Bind the operation to shapes and scalars inside its contract. Raises PlanError."""
    operation = scope.operation
    taken = [_bind_step(step, scope, signatures) for step in operation.steps]
    steps = tuple(step for step in taken if step is not None)
    _check_variants(steps, scope)
    return BoundOperation(
        name=operation.name,
        dims=scope.dims,
        tensors=tuple(scope.tensors.values()),
        steps=steps,
        returns={result.name: result.same_as or result.name for result in operation.results},
        n_before=sum(step is not None for step in taken[: operation.n_before]),
    )


def decisions(scope: Scope) -> tuple[str, ...]:
    """Return the outcome of each step: the kernel's name with template arguments and the chosen side of each `min` and
    `max` in its grid, the library function, or nothing if skipped. Raises PlanError for a broken plan."""
    return tuple(_decision(step, scope) for step in scope.operation.steps)


def blocks_by_line(scope: Scope) -> dict[int, int]:
    """Return the number of blocks of each launch by line, far cheaper than binding. Raises PlanError."""
    return {line: math.prod(grid) for line, grid in _grids(scope).items() if 0 not in grid}


def has_grids_that_fit(scope: Scope) -> bool:
    """Return True when every launch's grid is within CUDA's limits. Operators fall back to PyTorch for other sizes, so
    plans need not state it. Raises PlanError."""
    return all(size <= most for grid in _grids(scope).values() for size, most in zip(grid, MAX_GRID, strict=True))


def shared_bound(launch: Launch, n_static_bytes: int = 0) -> str:
    """Return the condition to write so that a launch is made only where its shared memory fits, next to the kernel's
    static shared memory."""
    return _bound(launch, f"{launch.shared_bytes} <= {MAX_SHARED_BYTES - n_static_bytes}")


def _bound(launch: Launch, fits: str) -> str:
    """Return how to write a condition so that the launch is made only where it holds."""
    if launch.condition is None:
        return f"; leave other sizes to PyTorch by '// where: {fits}'"
    return f"; leave other sizes to another launch by 'launch[({launch.condition}) and {fits}]', or exclude them"


def _decision(step: Fill | Launch | LibraryStep, scope: Scope) -> str:
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
    """Yield the index of the selected argument of each `min` and `max`."""
    for part in parts(expression):
        if isinstance(part, Call) and part.function in ("min", "max"):
            result = evaluate(part, values)
            yield str([evaluate(argument, values) for argument in part.arguments].index(result))


def _bind_step(
    step: Fill | Launch | LibraryStep, scope: Scope, signatures: Sequence[KernelSignature]
) -> BoundStep | None:
    """Bind one step; None when its condition excludes these shapes."""
    match step:
        case Fill():
            return _bind_fill(step, scope)
        case Launch():
            return _bind_launch(step, scope, signatures) if scope.holds(step.condition, step.span) else None
        case LibraryStep():
            return _bind_library(step, scope) if scope.holds(step.condition, step.span) else None


def _check_variants(steps: tuple[BoundStep, ...], scope: Scope) -> None:
    """Require that some step receives every non-empty result, whatever variants these shapes select."""
    handed = {name for step in steps for name in _tensors_handed_to(step)}
    for result in scope.operation.keepable if scope.operation.steps else ():
        if result.name not in handed and scope.tensors[result.name].n_elements > 0:
            dims = ", ".join(f"{name} = {size}" for name, size in scope.dims.items())
            next_step = "add a launch for such shapes, or exclude them with '// where:'"
            fault = scope.fault(f"no step writes '{result.name}' for {dims}", result.span, next_step)
            raise UnwrittenError(fault.message, line=fault.line, next_step=fault.next_step)


def _tensors_handed_to(step: BoundStep) -> tuple[str, ...]:
    match step:
        case BoundFill(tensor=tensor):
            return (tensor,)
        case BoundLaunch(arguments=arguments):
            return tuple(argument.tensor for argument in arguments if isinstance(argument, TensorArgument))
        case BoundLibraryStep(results=results):
            return results


def _bind_fill(fill: Fill, scope: Scope) -> BoundFill:
    tensor = _known_tensor(fill.tensor, fill.span, scope)
    value = scope.number(fill.value, "the value", fill.span)
    if not tensor.dtype.is_floating:
        try:
            value = convert_scalar(value, tensor.dtype.cuda_type)
        except ValueError as error:
            raise scope.fault(f"cannot fill '{fill.tensor}': {error}", fill.span) from None
    return BoundFill(tensor=fill.tensor, value=int(value) if isinstance(value, bool) else value)


def _bind_launch(launch: Launch, scope: Scope, signatures: Sequence[KernelSignature]) -> BoundLaunch | None:
    grid = _evaluate_size(launch.grid, "grid", launch, scope)
    if 0 in grid:
        return None
    signature = find_signature(launch, signatures, {name: tensor.dtype for name, tensor in scope.tensors.items()})
    if signature is None:
        raise scope.fault(f"no kernel '{launch.kernel}' in this file", launch.span)
    _check_grid(grid, launch, scope)
    block = _evaluate_size(launch.block, "block", launch, scope)
    _check_block(block, launch, scope)
    return BoundLaunch(
        kernel=_kernel_name(launch, signature, signatures, scope),
        grid=grid,
        block=block,
        shared_bytes=_evaluate_shared(launch, scope),
        arguments=_bind_arguments(launch, signature, scope),
        attributes=dict(launch.attributes),
        line=launch.span.line,
    )


def _grids(scope: Scope) -> dict[int, tuple[int, int, int]]:
    """Return the grids of the launches that are made, by line."""
    launches = (s for s in scope.operation.steps if isinstance(s, Launch) and scope.holds(s.condition, s.span))
    return {launch.span.line: _evaluate_size(launch.grid, "grid", launch, scope) for launch in launches}


def _evaluate_size(
    size: tuple[Expression, Expression, Expression], what: str, launch: Launch, scope: Scope
) -> tuple[int, int, int]:
    x, y, z = (scope.integer(part, f"the {what}", launch.span) for part in size)
    if min(x, y, z) < 0:
        raise scope.fault(f"the {what} of '{launch.kernel}' is ({x}, {y}, {z})", launch.span)
    return x, y, z


def _check_grid(grid: tuple[int, int, int], launch: Launch, scope: Scope) -> None:
    for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
        if size > limit:
            next_step = "put the long dim on x, or let each block do more than one"
            message = f"the grid of '{launch.kernel}' is {grid}: {axis} may be {limit} at most"
            raise scope.fault(message, launch.span, next_step)


def _check_block(block: tuple[int, int, int], launch: Launch, scope: Scope) -> None:
    n_threads = block[0] * block[1] * block[2]
    if n_threads == 0 or n_threads > MAX_THREADS_PER_BLOCK or any(b > m for b, m in zip(block, MAX_BLOCK, strict=True)):
        message = f"the block of '{launch.kernel}' is {block}: 1 to {MAX_THREADS_PER_BLOCK} threads, z up to 64"
        if any(free_names(size) for size in launch.block):
            sizes = [str(size) for size in launch.block if str(size) != "1"]
            product = sizes[0] if len(sizes) == 1 else " * ".join(f"({size})" for size in sizes)
            message += _bound(launch, f"{product} <= {MAX_THREADS_PER_BLOCK}" if n_threads else f"{product} > 0")
        raise scope.fault(message, launch.span)


def _evaluate_shared(launch: Launch, scope: Scope) -> int:
    shared_bytes = scope.integer(launch.shared_bytes, "the bytes of shared memory", launch.span)
    if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
        message = f"'{launch.kernel}' asks for {shared_bytes} bytes of shared memory: {MAX_SHARED_BYTES} at most"
        message += shared_bound(launch) if free_names(launch.shared_bytes) else ""
        raise SharedMemoryError(f"{scope.operation.name}: {message}", line=launch.span.line)
    return shared_bytes


def _kernel_name(
    launch: Launch, signature: KernelSignature, signatures: Sequence[KernelSignature], scope: Scope
) -> str:
    try:
        return name_expression(launch, scope.values, signature, signatures)
    except ExpressionError as error:
        raise scope.fault(f"a template argument of '{launch.kernel}': {error.message}", launch.span) from None


def _bind_arguments(
    launch: Launch, signature: KernelSignature, scope: Scope
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
    argument: Expression, parameter: KernelParameter, element: str | None, span: Span, scope: Scope
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


def _converted(value: Number, cuda_type: str, argument: Expression, span: Span, scope: Scope) -> Number:
    try:
        return convert_scalar(value, cuda_type)
    except ValueError as error:
        wider = "take it as long long in the kernel" if cuda_type in INTEGER_RANGES else ""
        raise scope.fault(f"the argument '{argument}': {error}", span, wider) from None


def _known_tensor(name: str, span: Span, scope: Scope) -> BoundTensor:
    if name not in scope.tensors:
        raise scope.fault(f"no tensor '{name}' in this operation", span)
    return scope.tensors[name]


def _bind_library(step: LibraryStep, scope: Scope) -> BoundLibraryStep:
    for result in step.results:
        _known_tensor(result, step.span, scope)
    arguments = tuple(_library_value(argument, step, scope) for argument in step.arguments)
    return BoundLibraryStep(function=step.function, arguments=arguments, results=step.results)


def _library_value(argument: LibraryArgument, step: LibraryStep, scope: Scope) -> object:
    if argument is None or isinstance(argument, Constant):
        return None if argument is None else argument.value
    if isinstance(argument, tuple):
        return [_library_value(item, step, scope) for item in argument]
    if isinstance(argument, str):
        return {"tensor": _known_tensor(argument, step.span, scope).name}
    return scope.number(argument, "an argument", step.span)
