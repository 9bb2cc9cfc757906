"""Measure PyTorch's own error, the basis of a kernel's tolerance; perturb rounded steps; find halfway cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch

from ..capture.captured import Captured
from ..operators import is_a

PER_ROOT_OF_TERMS = 1 / 6
"""Error per root of terms: n roundings, each up to half a unit of a partial sum that grows to the whole, give sqrt(n /
36) of a unit."""
MULTIPLES = (1, 2, 3, 5, -1, -2, -3, -5)
"""Multiples of half a step: halfway cases, where rounding modes differ, and whole steps, where floor, ceil and trunc
jump."""
MAX_FACTORS = 4
MAX_ODD_BITS = 8
"""Maximum bits of a factor's odd part: its products with small numbers are then exact in every type."""
MAX_POWER = 20
"""Maximum exponent: factors are between 2^-20 and 2^20."""


def rounding(expected: torch.Tensor, native: torch.Tensor, perturbed: torch.Tensor | None) -> dict[str, Any]:
    """Return the distances of PyTorch's result, and of the reference on perturbed inputs, from the fp64 reference. Only
    elements that are finite in both results count; the reference's norm also includes those for which PyTorch has NaN.
    The fields are those of `kernel_lsp.process.case_files.Rounding`."""
    reference, values = expected.double(), native.double()
    moved = reference if perturbed is None else perturbed.double()
    if all(map(is_finite, (reference, values, moved))):
        n_known, kept = reference.numel(), reference
        off, response = (values - reference).abs(), (moved - reference).abs()
    else:
        known = torch.isfinite(reference) & ~torch.isinf(values)
        finite, kept = known & torch.isfinite(values), torch.where(known, reference, 0.0)
        n_known, off, response = int(known.sum()), _distance(values, kept, finite), _distance(moved, kept, finite)
    return {
        "n_finite": n_known,
        "reference_l2": float(kept.norm()),
        "native_l2": float(off.norm()),
        "native_max": _largest(off),
        "response_l2": float(response.norm()),
        "response_max": _largest(response),
    }


def is_plain(expected: torch.Tensor, native: torch.Tensor) -> bool:
    """Check whether the rounding describes PyTorch's result completely: floating, and finite throughout."""
    if not native.is_floating_point():
        return False
    return is_finite(expected) and is_finite(native)


def is_finite(tensor: torch.Tensor) -> bool:
    """Check whether all elements are finite. The sum, which is finite for almost all such tensors, reads them once."""
    if not tensor.is_floating_point():
        return True
    return bool(torch.isfinite(tensor.sum(dtype=torch.float64))) or bool(torch.isfinite(tensor).all())


def _distance(values: torch.Tensor, reference: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Return |values - reference| where both are finite, 0 elsewhere."""
    return torch.where(finite & torch.isfinite(values), (values - reference).abs(), 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def with_rounded_steps(
    op: str,
    arguments: Sequence[Any],
    result: Any,
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    sign: int,
    amplified: Sequence[str] = (),
) -> Any:
    """Return the result of an operation with this dtype in the code, perturbed by one unit of one where the operation
    is computed through one. Sums of products of an `amplified` kind are perturbed by the error of a serial sum of their
    terms. The other `sign` reverses all perturbations."""
    if amplified and is_a(op, *amplified):
        size = sign * PER_ROOT_OF_TERMS * _n_terms(op, arguments, result) ** 0.5 * unit_of(dtype)
        return result * (1.0 + of_either_sign(result, size, generator))
    if not is_a(op, "through_one"):
        return result
    if isinstance(result, tuple):
        first = with_rounded_steps(op, arguments, result[0], dtype, generator, sign=sign)
        return (first, *result[1:])
    moves = of_either_sign(result, sign * unit_of(dtype), generator)
    return result + (moves * arguments[0].detach() if is_a(op, "times_input") else moves)


def _n_terms(op: str, arguments: Sequence[Any], result: torch.Tensor) -> int:
    """Return the number of products that each element of a product or convolution adds up."""
    if is_a(op, "convolution"):
        return int(arguments[1].numel()) // max(1, result.shape[1])
    return int(arguments[is_a(op, "biased")].shape[-1])


def unit_of(dtype: torch.dtype) -> float:
    """Return the distance from one to the next number of the type that kernels compute in: f32 for narrower ones."""
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def of_either_sign(like: torch.Tensor, size: float, generator: torch.Generator) -> torch.Tensor:
    """Return new float64 numbers of this size with random signs, one for each element."""
    signs = torch.randint(0, 2, like.shape, generator=generator, device=like.device, dtype=torch.int8)
    return signs.double().mul_(2 * size).sub_(size)


def rounding_ties(captured: Captured) -> tuple[float, ...]:
    """Return half and whole steps for each number that the code multiplies or divides by; empty for code that rounds
    nothing."""
    nodes = captured.forward_text.nodes
    if not any(is_a(node["op"], "rounding", "modular", "modular_by_mode") for node in nodes):
        return ()
    steps = [step for node in nodes for step in _steps(node)]
    kept = list(dict.fromkeys(step for step in steps if step not in (1, 2)))[:MAX_FACTORS]
    return tuple(dict.fromkeys(float(step * n / 2) for step in kept for n in MULTIPLES))


def _steps(node: dict[str, Any]) -> Iterator[Fraction]:
    """Yield the distance of inputs that such a node maps to consecutive integers: the divisor. For a factor it is the
    reciprocal of its power of two, since the representable ties of 10 are those of 2."""
    if is_a(node["op"], "decimals"):
        yield Fraction(1, 2 ** abs(int(node.get("keywords", {}).get("decimals", 0))))
    for argument in node["arguments"] if is_a(node["op"], "factor", "divisor") else ():
        if isinstance(argument, (int, float)) and not isinstance(argument, bool) and argument:
            factor = abs(Fraction(argument))
            power = _power_of_two(factor)
            if (factor / power).numerator.bit_length() <= MAX_ODD_BITS and 2**-MAX_POWER <= power <= 2**MAX_POWER:
                yield 1 / power if is_a(node["op"], "factor") else factor


def _power_of_two(number: Fraction) -> Fraction:
    """Return the largest power of two that divides a number whose denominator is one."""
    up, down = number.numerator, number.denominator
    return Fraction(up & -up, down)
