"""Measure what one rounding of each step leaves of a result whose terms cancel.

The gradient of a divergence is a difference of two softmaxes. Of equal rows it is zero, and a kernel in f32 has the
rounding of the two terms there: 2e-11 for terms of 2.4e-4. Neither a rounding of the inputs, which moves both terms
alike and leaves a zero unchanged, nor PyTorch's own error, which may be zero by chance, shows the size of the terms.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ..capture.backward import BackwardProgram
from ..capture.exported_program import user_outputs
from ..cases.case_values import Case, placeholder_values
from ..cases.families import own_generator
from ..operators import is_a
from .fp64_reference import CPU, ReferenceRun, run_steps, without_attention_forward
from .roundings import PER_ROOT_OF_TERMS, of_either_sign, unit_of

SMALL_RMS = 2.0**-30
"""Maximum root mean square of a result that may be the rest of cancelled terms on any inputs: fp64 leaves 1e-16 of
terms of up to 1e6."""
MAX_PLAIN_RMS = 2.0**-10
"""Maximum root mean square of a response that is taken for a rounding error as it is. Half the roundings have to give
half of a larger one: an exponential of 1e9 times a rounding, or a quotient of two of them, is no error of a kernel."""
PROPORTION = (0.4, 0.75)
"""Least and largest share that half the roundings may give: 0.71 under a root of cancelled terms."""
SUMS = (["add"], ["sub"], ["rsub"])
"""Operators behind which the terms of a root are looked for, beside limits and factors."""
EQUAL_TERMS, MAX_EQUAL_TERMS = "constant_rows", 1 << 15
"""The family of equal terms, and the maximum number of them in a serial sum (docs/checks.md, "Tolerance")."""
DECIDING = ("returns_indices", "order", "search", "pool", "rounding", "modular", "modular_by_mode", "jumps_at_zero")
"""Kinds of operations whose results jump where their arguments are equal, or whole."""


def may_cancel(run: ReferenceRun, families: Sequence[str], expected: torch.Tensor, moved: torch.Tensor) -> bool:
    """Check whether a rounding of each step is to be measured: on `families` of few different numbers, whose errors are
    all the same and may all be zero, and where the result is as small as what cancellation leaves. Networks of products
    take long and are examined where a result is small only."""
    if not expected.is_floating_point():
        return False
    if run.family in families and not any(is_a(node.target, "tensor_cores") for node in _module_of(run).graph.nodes):
        return True
    if takes_roots_of_differences(run):
        return True
    size = expected.norm()
    return bool(size <= SMALL_RMS * expected.numel() ** 0.5) or bool(2 * (moved - expected).norm() >= size)


def takes_roots_of_differences(run: ReferenceRun) -> bool:
    """Check a forward for a root of a sum that has a matrix product among its terms, as in distances of all pairs of
    rows. Of a row from itself the terms cancel, and a rounding of 1e-7 leaves 3e-4."""
    nodes = () if run.is_backward else _module_of(run).graph.nodes
    pending = [node.args[0] for node in nodes if is_a(node.target, "root") and not is_a(node.target, "reduction")]
    while pending:
        node = pending.pop()
        if not isinstance(node, torch.fx.Node):
            continue
        if is_a(node.target, "tensor_cores"):
            return True
        if is_a(node.target, "keeps_digits", "identity", "factor") or str(node.target).split(".")[1:2] in SUMS:
            pending += node.all_input_nodes
    return False


def may_jump(run: ReferenceRun) -> bool:
    """Check whether code compares, or differentiates a function with a kink: crossing a threshold is not a rounding.
    Opposite perturbations of other code have the same size."""
    targets = [node.target for node in _module_of(run).graph.nodes]
    return any(is_a(target, "ordering", "equality") or "_backward" in str(target) for target in targets)


def is_proportional(expected: torch.Tensor, moved: torch.Tensor, half: torch.Tensor) -> bool:
    """Check whether `half` the roundings give about half of what they `moved` a result by."""
    whole, part = (moved - expected).norm(), (half - expected).norm()
    return bool(PROPORTION[0] * whole <= part) and bool(part <= PROPORTION[1] * whole)


def moved_by_steps(run: ReferenceRun, case: Case, scale: float, draw: int) -> list[torch.Tensor] | None:
    """Return the fp64 results with each step of the graph perturbed by `scale` roundings of the kernels' type; a
    negative scale reverses all perturbations. Draw 0 has a random sign for each element; others have one for all
    elements of a step, since equal numbers round alike and their sum has the error of each. None for code in which
    roundings may decide between equal elements, which are equal in every kernel, and where a step has no fp64."""
    captured, module = run.captured, without_attention_forward(_module_of(run))
    if _chooses(module.graph):
        return None
    values = [*placeholder_values(captured, case), *(case.gradients if run.is_backward else [])]
    generator = torch.Generator(values[0].device if values else CPU)
    generator.manual_seed(own_generator(run.seed, "steps", str(draw)).initial_seed())

    def moved(op: str, arguments: Sequence[Any], result: Any, dtype: torch.dtype) -> Any:
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or _keeps(op):
            return result
        like = result[(slice(0, 1),) * result.dim()] if draw else result
        size = scale * unit_of(dtype)
        n_added = _n_added(op, arguments, result)
        walk = PER_ROOT_OF_TERMS * n_added**0.5
        if run.family == EQUAL_TERMS and is_a(op, "product"):  # all roundings are to the same side
            walk = min(n_added, MAX_EQUAL_TERMS) / 2
        if is_a(op, "log_softmax"):  # the logarithm makes the sum's relative error an absolute one
            return result + of_either_sign(like, size, generator) * (result.abs() / 2).clamp_min(walk)
        return of_either_sign(like, size * max(0.5, walk), generator).add_(1.0) * result

    try:
        with torch.no_grad():
            results = run_steps(module, values, moved)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a traced operator may have no kernel for fp64 on this device, with any exception
        return None
    if not run.is_backward:
        return results[len(results) - len(user_outputs(captured.program.functional)) :]
    return [result for result, node in zip(results, _backward_of(run).results) if node is not None]


def _module_of(run: ReferenceRun) -> torch.fx.GraphModule:
    """Return the graph of the direction that is run."""
    return _backward_of(run).module if run.is_backward else run.captured.program.functional.graph_module


def _backward_of(run: ReferenceRun) -> BackwardProgram:
    backward = run.captured.backward
    assert backward is not None, "gradients are for a backward pass"
    return backward


def _keeps(op: object) -> bool:
    """Check whether an operation is exact."""
    return op is operator.getitem or is_a(op, "keeps_digits", "passes_values", "extreme", "fill")


def _chooses(graph: torch.fx.Graph) -> bool:
    """Check whether code selects among rounded numbers by a comparison, an order, a sign or a conversion to integers.
    Equal ones are common there. The zero of a comparison stays one."""
    rounded = set[torch.fx.Node]()
    for node in graph.nodes:
        is_rounded = not rounded.isdisjoint(node.all_input_nodes)
        value = node.meta.get("val")
        if node.op != "call_function" or (not is_rounded and _keeps(node.target)):
            continue
        if is_a(node.target, "equality", "ordering"):
            if is_rounded and node.args[1] != 0:
                return True
        elif is_rounded and is_a(node.target, *DECIDING):
            return True
        elif isinstance(value, (tuple, list)) or (isinstance(value, torch.Tensor) and value.is_floating_point()):
            rounded.add(node)
        elif is_rounded and is_a(node.target, "cast"):
            return True
    return False


def _n_added(op: str, arguments: Sequence[Any], result: torch.Tensor) -> int:
    """Return the number of terms that each element adds up, or is divided by the sum of."""
    if is_a(op, "softmax"):
        return int(result.shape[arguments[1]]) if result.dim() else 1
    if is_a(op, "reduction"):
        return int(arguments[0].numel()) // max(1, result.numel())
    if is_a(op, "product"):
        return int([each for each in arguments if isinstance(each, torch.Tensor)][-2].shape[-1])
    return 1
