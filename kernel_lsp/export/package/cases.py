"""Find the test cases of a package: small shapes inside the contract, from the launch plan alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.core.expression import ExpressionError, Name, Number, free_names
from kernel_lsp.core.expression_value import evaluate_int
from kernel_lsp.core.plan import Operation, ScalarParameter, TensorParameter
from kernel_lsp.core.task import Task, TaskScalar
from kernel_lsp.plan.contract import contract_holds
from kernel_lsp.verify.model.cases import ALIGNMENTS
from kernel_lsp.verify.probes.sizes import PATTERNS

Shapes = dict[str, tuple[int, ...]]
MAX_CASES = 4


def small_cases(task: Task, operation: Operation) -> list[Shapes]:
    """Return shapes of the task's tensors inside the contract of its forward; those of the task's configurations when
    no small ones are. Empty when the contract excludes all of them."""
    found: list[Shapes] = []
    for pattern in PATTERNS.values():
        drawn = (_sizes(task, operation, pattern, alignment) for alignment in ALIGNMENTS)
        aligned = (_shapes(task, operation, sizes) for sizes in drawn)
        shapes = next((s for s in aligned if s and _holds(task, operation, s)), None)
        if shapes is not None and shapes not in found:
            found.append(shapes)
    configured = [dict(configuration.shapes) for configuration in task.configurations]
    return found[:MAX_CASES] or [shapes for shapes in configured if _holds(task, operation, shapes)][:1]


def empty_cases(task: Task, operation: Operation) -> list[Shapes]:
    """Return shapes with one empty dim each. PyTorch itself decides if it accepts them."""
    sizes = _sizes(task, operation, next(iter(PATTERNS.values())), 1)
    return [shapes for dim in sizes if (shapes := _shapes(task, operation, {**sizes, dim: 0}))]


# --- drawing sizes


def _sizes(task: Task, operation: Operation, pattern: Sequence[int], alignment: int) -> dict[str, int]:
    """Return the pattern's sizes, rounded up, for the dims in order."""
    tensors = [p for p in operation.parameters if isinstance(p, TensorParameter)]
    scalars = _scalars(task, operation)
    dims = dict.fromkeys(d.id for t in tensors for d in t.dims if isinstance(d, Name) and d.id not in scalars)
    return {dim: -(-pattern[position % len(pattern)] // alignment) * alignment for position, dim in enumerate(dims)}


def _shapes(task: Task, operation: Operation, sizes: Mapping[str, int]) -> Shapes:
    """Return the shape of every tensor at these sizes; empty when the sizes do not determine some dim."""
    tensors = [p for p in operation.parameters if isinstance(p, TensorParameter)]
    values = {**_scalars(task, operation), **sizes}
    declared = {argument.name: argument.type.shape for argument in task.tensors}
    try:
        shapes = {t.name: tuple(evaluate_int(dim, values) for dim in t.dims) for t in tensors}
    except ExpressionError:
        return {}
    if not all(free_names(dim) <= values.keys() for tensor in tensors for dim in tensor.dims):
        return {}
    return _with_unread_tensors(shapes, declared, tensors, values)


def _with_unread_tensors(
    shapes: Shapes,
    declared: Mapping[str, tuple[str, ...]],
    tensors: Sequence[TensorParameter],
    values: Mapping[str, Number],
) -> Shapes:
    """Add shapes of tensors that the task has and its kernels do not read."""
    by_symbol = dict(values)
    for tensor in tensors:
        by_symbol.update(zip(declared[tensor.name], shapes[tensor.name], strict=False))
    try:
        others = {
            name: tuple(int(dim) if dim.isdigit() else int(by_symbol[dim]) for dim in dims)
            for name, dims in declared.items()
            if name not in shapes
        }
    except KeyError:
        return {}
    fits = all(
        not dim.isdigit() or int(dim) == size
        for tensor in tensors
        for dim, size in zip(declared[tensor.name], shapes[tensor.name], strict=False)
    )
    return {**shapes, **others} if fits else {}


def _holds(task: Task, operation: Operation, shapes: Shapes) -> bool:
    wanted = {p.name: shapes[p.name] for p in operation.parameters if isinstance(p, TensorParameter)}
    return contract_holds(operation, wanted, _scalars(task, operation))


def _scalars(task: Task, operation: Operation) -> dict[str, Number]:
    values = {argument.name: argument.value for argument in task.arguments if isinstance(argument, TaskScalar)}
    return {p.name: values[p.name] for p in operation.parameters if isinstance(p, ScalarParameter)}
