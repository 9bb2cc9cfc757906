"""Chain a backward that takes what its forward kept behind that forward: one operation of the task's inputs.

A verdict, a count and a bound plan need the values of kept tensors, which only the forward's own steps make. Names mean
the same in both operations: a dim `B` of one is the dim `B` of the other.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.core.expression import Name
from kernel_lsp.core.plan import LaunchPlan, Operation, ScalarParameter, TensorParameter
from kernel_lsp.plan.renaming import with_names


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
