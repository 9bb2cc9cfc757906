"""How far results move when the inputs, and steps inside of functions, are rounded once: what a backward-stable
algorithm may be off."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ..capture.captured import Captured
from ..cases.case import Case, differentiate, leaves_of, placeholder_values
from ..cases.input_generation import own_generator
from .case_filter import takes_exponentials
from .fp64_reference import run_exact
from .rounded_steps import of_either_sign, unit_of, with_rounded_steps

CPU = torch.device("cpu")
EXACT_FAMILIES = ("small_integers", "halves", "one_hot", "needles", "zeros", "pointed_values")
"""Numbers that lie exactly where code compares with them, and whose sums are exact, or that are few."""
EQUALITIES = ("aten.eq.Scalar", "aten.ne.Scalar")


def response(
    captured: Captured, case: Case, expected: Sequence[torch.Tensor], *, family: str, seed: int, is_backward: bool
) -> list[torch.Tensor]:
    """The results moved by one rounding. Where a few exact numbers lie on the thresholds of the code, one way over
    them is no rounding: of two opposite moves the one that changes less counts."""
    moved = _perturbed(captured, case, seed, is_backward, 1)
    if family not in EXACT_FAMILIES:
        return moved
    back = _perturbed(captured, case, seed, is_backward, -1)
    return [_nearer(e, a, b) if e.is_floating_point() else a for e, a, b in zip(expected, moved, back)]


def _perturbed(captured: Captured, case: Case, seed: int, is_backward: bool, sign: int) -> list[torch.Tensor]:
    """The fp64 results on inputs, and steps inside of functions, moved by one rounding of the type that kernels
    compute in. How far they move is what a backward-stable algorithm may be off; PyTorch's own error on one draw
    may be luckier than that. The other `sign` moves all the other way."""
    placed = placeholder_values(captured, case)
    generator = torch.Generator(placed[0].device if placed else CPU)
    generator.manual_seed(own_generator(seed, "rounding").initial_seed())
    held = _asked_for(captured)
    values = [_but_held(_moved(value, sign, generator), value, held) for value in placed]
    moves_products = takes_exponentials(captured)
    moved = partial(with_rounded_steps, generator=generator, sign=sign, moves_products=moves_products)
    if not is_backward:
        with torch.no_grad():
            return run_exact(captured.program, values, moved=moved)
    leaves = leaves_of(captured, values)
    outputs = run_exact(captured.program, leaves, moved=moved)
    gradients = [_moved(gradient, sign, generator) for gradient in case.gradients]
    return differentiate(captured, outputs, leaves, gradients)


def _asked_for(captured: Captured) -> list[float]:
    """Numbers that the code asks for: one rounding beside such a number is another."""
    asking = (node["arguments"][1] for node in captured.forward_text.nodes if node["op"] in EQUALITIES)
    return [float(number) for number in asking if isinstance(number, (int, float))]


def _but_held(moved: torch.Tensor, value: torch.Tensor, held: Sequence[float]) -> torch.Tensor:
    """`moved`, with the elements of `value` that are one of the held numbers left as they are."""
    if not held or not value.is_floating_point():
        return moved
    numbers = torch.tensor(held, dtype=value.dtype, device=value.device)
    return torch.where(torch.isin(value, numbers), value.double(), moved)


def _nearer(to: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of each two elements the one that is not farther away."""
    return torch.where((one - to).abs() <= (other - to).abs(), one, other)


def _moved(value: torch.Tensor, sign: int, generator: torch.Generator) -> torch.Tensor:
    """In float64, each element up or down by half a unit of its last place; sums are kept in f32 for narrower types."""
    if not value.is_floating_point():
        return value
    return value.double() * (1.0 + of_either_sign(value.double(), sign * unit_of(value.dtype) / 2, generator))
