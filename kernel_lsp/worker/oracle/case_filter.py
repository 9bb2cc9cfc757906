"""Filter out uninformative cases: PyTorch's own result must be well defined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..capture.captured import Captured
from ..cases.families import HIGHEST_ROWS, LOWEST_EXPONENT, LOWEST_ROWS, MINUS_INF_ROWS, ROWS_OF, SPECIAL_VALUES
from ..files import PLAN_NAMES
from ..operators import is_a
from .roundings import is_finite

MOSTLY = 0.5
"""Maximum non-finite share of an output's reference; cases above it are uninformative."""
LOW = "low"
EXTREME_FAMILIES = ("huge", "tiny", "minute", "subnormal", "far_negative", "offset", "octaves", LOW)
"""Families that are informative where PyTorch keeps half of its dtype's digits: elsewhere the order of operations
decides."""
ORDINARY_FAMILIES = ("normal", "given")
"""Families that are informative where PyTorch overflows and fp64 does not: the smoothing of a cross entropy over 32,000
classes in f16 adds up 3.5e5. A kernel may give either, and is timed on these inputs."""
NAN_FAMILIES = ("normal", "zeros")
"""Families that are informative where PyTorch and fp64 have NaN alike: the variance of one number, and 0 / 0 in a row
of zeros. Of other constant rows the variance is 0 in one order of additions and 1e-14 in another."""
UNCONVERTIBLE_FAMILIES = (*SPECIAL_VALUES, *ROWS_OF, "huge")
"""Families with values outside every integer type: C++ and PyTorch leave their conversion undefined."""
SUBNORMAL = "subnormal"
LOWEST_OF_EXPONENTS, LOWEST_OF_FACTORS = 99, 90
"""Exponents of -6e29 and -1e27: lower than usual masks (-1e9, -1e20), and above -1e30, the latter also times ordinary
numbers."""
LOWEST_OF_GATED = 62
"""Exponent of -4.6e18: the product of two such numbers is finite in f32. `a * b / (1 + exp(-a))` is correct for a
gate."""
LOWEST_OF_DEVIATIONS = 40
"""Exponent of -1.1e12: the squares of a million such numbers have a sum in f32. PyTorch adds them in f64 on a CPU."""
TIED_FAMILIES = (
    "small_integers", "halves", "constant_rows", "one_hot", "zeros", "negative_zeros", "special_inf",
    "special_minus_inf"
)  # fmt: skip
"""Families of inputs with equal elements in a row."""
FLOATING = tuple(name for dtype, name in PLAN_NAMES.items() if dtype.is_floating_point)
INTEGERS = tuple(name for dtype, name in PLAN_NAMES.items() if not dtype.is_floating_point and dtype != torch.bool)


def why_it_tells_nothing(
    captured: Captured, family: str, expected: Sequence[torch.Tensor], native: Sequence[torch.Tensor]
) -> str:
    """Return why a case is uninformative; empty for an informative one."""
    if (
        family in UNCONVERTIBLE_FAMILIES
        and any(not t.is_floating_point() for t in native)
        and _makes_integers(captured)
    ):
        return "the code converts floats to integers, and none of these holds such a value"
    if family in SPECIAL_VALUES:
        return ""
    if family in ROWS_OF:
        return _why_rows_tell_nothing(captured, family, expected, native)
    if family in NAN_FAMILIES and all(map(_are_nan_alike, expected, native)):
        return ""
    if family in ORDINARY_FAMILIES and all(map(_overflows_at_most, expected, native)):
        return ""
    reason = _mostly_not_finite(expected, native)
    if family in EXTREME_FAMILIES and not reason and any(map(_is_far, expected, native)):
        return "PyTorch itself loses most digits for these inputs"
    return reason


def why_it_is_for_other_code(captured: Captured, family: str, is_backward: bool) -> str:
    """Return why the family does not apply to this code; empty where it does."""
    if is_backward and family in TIED_FAMILIES and captured.has("order"):
        return "the code orders elements, and PyTorch leaves open which of equal ones has the gradient"
    if family == HIGHEST_ROWS and not captured.has("extreme"):
        return "the code takes no extreme"
    if family == LOW and not captured.has("exponential"):
        return "the code takes no exponential"
    if family == "huge" and captured.has("softmax"):
        return "exp2(x * log2(e) - maximum * log2(e)), as many kernels compute exp, is no number there"
    if family == SUBNORMAL and captured.has("root"):
        return "the squares of such numbers are zero, and the code may take a root of them"
    return ""


def lowest_exponent(captured: Captured) -> int:
    """Return the exponent of the lowest inputs for this code. Many kernels intentionally start a maximum before an
    exponential with -1e30. Sums of products are larger than the inputs. A kernel with a gate may multiply first."""
    if captured.has("deviations"):
        return LOWEST_OF_DEVIATIONS
    if captured.has("gate") and _multiplies_tensors(captured):
        return LOWEST_OF_GATED
    if not captured.has("exponential"):
        return LOWEST_EXPONENT
    return LOWEST_OF_FACTORS if captured.has("library") else LOWEST_OF_EXPONENTS


def may_overflow_as_divisors(captured: Captured, family: str) -> bool:
    """Check whether the code divides by values made of the family's inputs whose reciprocals overflow: many kernels
    multiply by reciprocals, which is correct for all other inputs."""
    return family == SUBNORMAL and any(
        is_a(node["op"], "division") and isinstance(node["arguments"][-1], dict) for node in captured.forward_text.nodes
    )


def is_judged_at_ties(captured: Captured, family: str) -> bool:
    """Check whether the inputs lie where the code jumps: results on the other side of a jump are then not accepted."""
    return family == "halves" and captured.has("step")


def _why_rows_tell_nothing(
    captured: Captured, family: str, expected: Sequence[torch.Tensor], native: Sequence[torch.Tensor]
) -> str:
    """Explain why rows of only -inf, or of only the lowest numbers, are uninformative: PyTorch's answer must be a plain
    number. Elsewhere many kernels intentionally differ from PyTorch."""
    is_missing = torch.isnan if family == MINUS_INF_ROWS else lambda tensor: ~torch.isfinite(tensor)
    asked = native if family == MINUS_INF_ROWS else (*expected, *native)  # for the former NaN may be accepted
    if any(bool(is_missing(tensor).any()) for tensor in asked if tensor.is_floating_point()):
        return "PyTorch gives no number for a row of nothing else"
    if family == LOWEST_ROWS and captured.has("log_softmax"):
        return "log(sum) + maximum, as many kernels begin, is the maximum there"
    if family != MINUS_INF_ROWS and any(map(_is_far, expected, native)):
        return "PyTorch itself loses most digits for these inputs"
    return ""


def _mostly_not_finite(expected: Sequence[torch.Tensor], native: Sequence[torch.Tensor]) -> str:
    for what, tensors in (("reference", expected), ("result at the declared dtype", native)):
        for tensor in tensors:
            if not is_finite(tensor) and float((~torch.isfinite(tensor)).float().mean()) > MOSTLY:
                return f"the {what} is mostly not finite for these inputs"
    return ""


def _are_nan_alike(expected: torch.Tensor, native: torch.Tensor) -> bool:
    """Check whether all non-finite elements are NaN in both."""
    if not native.is_floating_point() or (is_finite(expected) and is_finite(native)):
        return True
    is_nan = torch.isnan(expected)
    finite = torch.isfinite(expected) & torch.isfinite(native)
    return bool((is_nan == torch.isnan(native)).all()) and bool((is_nan | finite).all())


def _overflows_at_most(expected: torch.Tensor, native: torch.Tensor) -> bool:
    """Check that the fp64 result is finite, and PyTorch's that or infinite."""
    return is_finite(expected) and (is_finite(native) or not bool(torch.isnan(native).any()))


def _is_far(expected: torch.Tensor, native: torch.Tensor) -> bool:
    """Check whether PyTorch's result has less than half of its dtype's digits, or overflows."""
    if not native.is_floating_point():
        return False
    reference = expected.double()
    off = float((native.double() - reference).norm())
    return not off <= float(torch.finfo(native.dtype).eps ** 0.5 * reference.norm())


def _multiplies_tensors(captured: Captured) -> bool:
    products = (node["arguments"][:2] for node in captured.forward_text.nodes if is_a(node["op"], "factor"))
    return any(all(isinstance(factor, dict) for factor in factors) for factors in products)


def _makes_integers(captured: Captured) -> bool:
    dtypes = {argument.name: PLAN_NAMES[_dtype(captured, argument.position)] for argument in captured.arguments}
    for node in captured.forward_text.nodes:
        made = [type_["dtype"] if type_ else "" for type_ in node["types"]]
        if is_a(node["op"], "cast") and made[0] in INTEGERS and dtypes.get(_source(node)) in FLOATING:
            return True
        dtypes[node["name"]] = made[0] if made else ""
    return False


def _dtype(captured: Captured, position: int) -> torch.dtype:
    dtype: torch.dtype = captured.program.fake_inputs[position].dtype
    return dtype


def _source(node: dict[str, Any]) -> str:
    first = node["arguments"][0]
    return str(first.get("node")) if isinstance(first, dict) else ""
