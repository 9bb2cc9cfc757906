"""Find tensors that the steps of a loop add up, such as the gradient of a weight: one sum over all steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    IndexValue,
    Operation,
    Scalar,
    accesses,
    guarded,
    in_range,
    masked,
    rewrite,
)
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction
from kernel_lsp.generate.loops.steps import Steps
from kernel_lsp.generate.lowering.builder import positions


def summand(steps: Steps, place: int) -> Scalar | None:
    """Return what each step adds to the tensor of a place; None where it does anything else."""
    definition = steps.definitions[place]
    if not isinstance(definition, Pointwise) or place not in steps.firsts:
        return None
    body = definition.body
    if not isinstance(body, Operation) or body.name != "add":
        return None
    own = Access(steps.before[place], positions(definition.variables))
    if own not in body.operands:
        return None
    (added,) = [operand for operand in body.operands if operand != own] or [own]
    reads = {access.tensor for access in accesses(added)}
    return None if reads & {steps.before[place], steps.now[place]} else added


def sum_over_steps(
    steps: Steps, place: int, added: Scalar, over_all: Callable[[Scalar], Scalar]
) -> Pointwise | Reduction:
    """Return the definition of the sum of what all steps add."""
    definition = steps.definitions[place]
    step, variables = steps.step, definition.variables
    product = _product_of(steps, definition, added)
    if product is not None:
        return _over_steps_too(steps, product, over_all)
    one = _of_one_step(steps, added, over_all)
    if one is not None:
        return Pointwise(variables, one)
    return Reduction("sum", variables, (step,), (step, *variables), over_all(added))


def _product_of(steps: Steps, definition: Pointwise | Reduction, added: Scalar) -> Reduction | None:
    """Return the sum of products that is added, over the variables of the sum."""
    if not isinstance(added, Access) or added.tensor not in steps.now or added.mask is not None:
        return None
    found = steps.definitions[steps.now.index(added.tensor)]
    if not isinstance(found, Reduction) or found.contraction is None:
        return None
    return found if added.index == positions(definition.variables) else None


def _over_steps_too(steps: Steps, product: Reduction, over_all: Callable[[Scalar], Scalar]) -> Reduction:
    contraction = product.contraction
    assert contraction is not None
    return replace(
        product,
        reduced=(steps.step, *product.reduced),
        domain=(*product.variables, steps.step, *product.reduced),
        body=over_all(product.body),
        contraction=replace(contraction, left=over_all(contraction.left), right=over_all(contraction.right)),
    )


def _of_one_step(steps: Steps, added: Scalar, over_all: Callable[[Scalar], Scalar]) -> Scalar | None:
    """Return the one term that is not 0, as of the gradient of an input whose slices the steps read."""
    whole = _inlined(steps, added)
    if not isinstance(whole, Operation) or whole.name != "select":
        return None
    condition, value, other = whole.operands
    if not isinstance(condition, Operation) or condition.name != "eq":
        return None
    if not isinstance(other, Constant) or other.value != 0:
        return None
    places = [operand.index for operand in condition.operands if isinstance(operand, IndexValue)]
    of_step = [place for place in places if steps.step in place.variables]
    if len(places) != 2 or len(of_step) != 1:
        return None
    start = of_step[0] - as_index(steps.step)
    sign = 1
    if steps.step in start.variables:
        start, sign = of_step[0] + as_index(steps.step), -1
    (axis,) = [place for place in places if place is not of_step[0]]
    if steps.step in start.variables:
        return None
    step = (axis - start) * sign
    return guarded(in_range(step, steps.step.extent), over_all(value).substitute({steps.step: step}), other)


def _inlined(steps: Steps, scalar: Scalar) -> Scalar:
    """Return the scalar with pointwise tensors of the same step in their place."""

    def read(access: Access) -> Scalar:
        if access.tensor not in steps.now:
            return access
        found = steps.definitions[steps.now.index(access.tensor)]
        if not isinstance(found, Pointwise) or any(each.tensor in steps.before for each in accesses(found.body)):
            return access
        body = rewrite(found.body.substitute(dict(zip(found.variables, access.index, strict=True))), read)
        return body if access.mask is None else masked(access.mask, body)

    return rewrite(scalar, read)
