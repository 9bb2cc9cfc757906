"""Give the kernels of a small program variants for its captured sizes, beside those for any others.

Where a plan leaves sizes open, each load of a small kernel waits for its bounds checks, rows are read by single
elements, and factors are stored that every reader could compute.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kernel_lsp.core.expression import Binary, Constant, Expression, Name, Unary, evaluate_int, free_names, parse
from kernel_lsp.core.plan import Fill, Operation, Step, TensorParameter
from kernel_lsp.core.task import Task
from kernel_lsp.generate.operation import RenderedOperation

MAX_ELEMENTS = 1 << 22
"""Maximum elements of all tensors of a program with variants: larger ones spend their time on memory. With constants a
convolution of 1 Mi elements took 23.9 us on an H200, with open sizes 29.9; a pooling of 4 Mi 6.4 and 6.6, whose threads
take 80 instructions instead of 112."""
MAX_CALLS = 64
"""Maximum ATen calls of a graph with variants: those of a network would double a long text."""
SUFFIX = "_other_sizes"
"""The end of the names of kernels for other sizes, and of their scratch tensors."""


def sizes_to_fix(task: Task) -> dict[str, int]:
    """Return the captured sizes of a small task; none of a large one."""
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    if max(len(graph.nodes) for graph in (task.forward, task.backward or task.forward)) > MAX_CALLS:
        return {}
    types = [tensor.type for tensor in task.tensors]
    types += [output.type for output in task.forward.outputs if output.type is not None]
    n_elements = sum(math.prod(evaluate_int(parse(size), sizes) for size in type_.shape) for type_ in types)
    return sizes if n_elements <= MAX_ELEMENTS else {}


def by_sizes(
    captured: RenderedOperation, other: RenderedOperation, sizes: Mapping[str, int]
) -> RenderedOperation | None:
    """Return one operation that launches the kernels of `captured` at the captured sizes and those of `other` at all
    others; None where the two differ in more than their kernels, a step has no condition, or a size has no name."""
    plan = other.plan
    named = {dim.id for tensor in _tensors(plan) for dim in tensor.dims if isinstance(dim, Name)}
    used = {name for tensor in (*_tensors(plan), *plan.results) for dim in tensor.dims for name in free_names(dim)}
    fixed = [name for name in sizes if name in used]
    has_fills = any(isinstance(step, Fill) for step in (*captured.plan.steps, *plan.steps))
    if not fixed or not named.issuperset(fixed) or has_fills or _interface(captured, sizes) != _interface(other, sizes):
        return None
    each: list[Expression] = [Binary("==", Name(name), Constant(sizes[name])) for name in fixed]
    holds = functools.reduce(functools.partial(Binary, "and"), each)
    where = {str(condition.expression): condition for condition in (*plan.where, *captured.plan.where)}
    merged = replace(
        plan,
        where=tuple(where.values()),
        scratch=(*captured.plan.scratch, *plan.scratch),
        steps=(*_under(holds, captured.plan.steps), *_under(Unary("not", holds), plan.steps)),
    )
    text = ", ".join(f"{name} = {sizes[name]}" for name in fixed)
    summary = (*captured.summary, f"{plan.name}: kernels named *{SUFFIX} are for sizes other than {text}.")
    is_valid = captured.is_valid and other.is_valid
    return RenderedOperation(merged, (*captured.kernels, *other.kernels), summary, is_valid)


def _tensors(plan: Operation) -> list[TensorParameter]:
    return [parameter for parameter in plan.parameters if isinstance(parameter, TensorParameter)]


def _interface(operation: RenderedOperation, sizes: Mapping[str, int]) -> tuple[list[object], ...]:
    """Return what others see of an operation: its parameters, its results, and what it keeps at the captured sizes."""
    plan = operation.plan
    kept = [(each.name, each.dtype, [evaluate_int(dim, sizes) for dim in each.dims]) for each in plan.kept]
    return [each.name for each in plan.parameters], [(each.name, each.same_as) for each in plan.results], list(kept)


def _under(condition: Expression, steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps that run where the condition and their own hold."""
    for step in steps:
        assert not isinstance(step, Fill)
        own = step.condition
        yield replace(step, condition=condition if own is None else Binary("and", condition, own))
