"""Round to narrow types, find outputs that must be correctly rounded, and detect results that are truncated.

16-bit outputs that are rounded exactly once, as by a cast or a single sum, must be correctly rounded: PyTorch rounds to
nearest, and so does a kernel of any internal precision. A truncated result is off by less than one unit, which is
within many kernels' tolerance. All errors have one sign, 0.28 % on average in bf16, so sums and training drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.operators import is_a
from kernel_lsp.core.task import Graph, GraphNode
from kernel_lsp.verify.oracle.arrays import decode


@dataclass(frozen=True)
class NarrowFormat:
    """A binary format of IEEE 754's kind: `precision` bits with the hidden one; `lowest`, the exponent of two of its
    subnormal numbers' last place; and `limit`, from which everything rounds to infinity."""

    precision: int
    lowest: int
    limit: float


FORMATS = {
    DType.F16: NarrowFormat(precision=11, lowest=-24, limit=2.0**16),
    DType.BF16: NarrowFormat(precision=8, lowest=-133, limit=2.0**128),
}


def nearest(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Round float64 values to a 16-bit type, ties to even, as float64. One step: through float32 some values would be
    rounded twice. Raises KeyError for any other type."""
    form = FORMATS[dtype]
    place = last_place(values, form)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -place)), place)
    return np.where(np.abs(rounded) >= form.limit, np.copysign(np.inf, values), rounded)


def last_place(values: np.ndarray, form: NarrowFormat) -> np.ndarray:
    """Return the exponent of two of each value's last place in the format."""
    _, exponents = np.frexp(values)
    return np.maximum(exponents - form.precision, form.lowest)


EXACTLY_CAST = (DType.F32, *FORMATS)
"""Types that a cast rounds to 16 bits in one step. Integers and f64 go through f32."""
MANY = 2


def with_one_answer(graph: Graph) -> frozenset[str]:
    """Return the names of a forward's outputs that must be correctly rounded."""
    values = _Values(graph)
    return frozenset(
        output.name
        for output in graph.outputs
        if output.node is not None and output.type is not None
        if output.type.dtype in FORMATS and values.n_roundings.get(output.node, MANY) < MANY
    )


class _Values:
    """The values of a graph: the number of roundings of each, up to `MANY`, and its dtype."""

    def __init__(self, graph: Graph) -> None:
        self.n_roundings = dict.fromkeys(graph.inputs, 0)
        self._dtypes = {name: type_.dtype for name, type_ in zip(graph.inputs, graph.input_types, strict=True)}
        for node in graph.nodes:  # topological order
            if node.types[0] is not None:
                self.n_roundings[node.name] = self._count(node, node.types[0].dtype)
                self._dtypes[node.name] = node.types[0].dtype

    def _count(self, node: GraphNode, own: DType) -> int:
        used = node.reads
        before = max((self.n_roundings.get(name, MANY) for name in used), default=MANY)
        if is_a(node.op, "commutes_with_rounding"):
            return before
        return 1 if before == 0 and self._rounds_once(node, own, used) else MANY

    def _rounds_once(self, node: GraphNode, own: DType, used: Sequence[str]) -> bool:
        if is_a(node.op, "cast"):
            return all(self._dtypes[name] in EXACTLY_CAST for name in used)
        is_plain = is_a(node.op, "rounds_once") and not node.keywords and own in FORMATS
        return is_plain and all(self._dtypes[n] is own for n in used) and all(_fits(a, own) for a in node.arguments)


def _fits(argument: Any, dtype: DType) -> bool:
    """Check whether the argument is a tensor, or a number that the type represents exactly."""
    if isinstance(argument, dict):
        return "node" in argument
    if not isinstance(argument, int | float) or isinstance(argument, bool):
        return False
    number = float(argument)
    return float(nearest(np.array(number), dtype)) == number


MAX_ELEMENTS = 1 << 17
"""Maximum elements examined, from the first on. They take a few milliseconds and suffice by far."""
TELLING_PARTS = (0.05, 0.95)
"""Informative distances above the next lower number, in units: f32 results are on the same side of that number."""
LEAST_TELLING, LEAST_SHARE = 512, 0.995
"""Minimum number of informative elements, and minimum share of truncated ones. Where a factor of all results was
rounded, too, by two thirds of a unit at worst, 4.8 % are not the lower number."""
HALFWAY, LEAST_UPPER = 0.5, LEAST_TELLING // 4
"""Distance above which the upper number is the nearest, and minimum number of such elements. Results that are all
nearer to the lower number, as below half of the least subnormal number, are the same truncated and rounded."""


@dataclass(frozen=True)
class CutOff:
    """The number of truncated elements, and the flat index of the first."""

    n: int
    first: int


def cut_off(found: np.ndarray, reference: np.ndarray, dtype: DType, judged: np.ndarray | None) -> CutOff | None:
    """Return the truncation of an output, as stored or as numbers. None where there is none, or where too few elements
    are informative. `judged` marks the elements that count, all when None."""
    if dtype not in FORMATS:
        return None
    part = slice(0, MAX_ELEMENTS)
    exact = reference.reshape(-1)[part]
    magnitude, unit = np.abs(exact), np.ldexp(1.0, last_place(exact, FORMATS[dtype]))
    below = np.floor(magnitude / unit) * unit
    beyond = (magnitude - below) / unit
    telling = np.isfinite(exact) & (beyond > TELLING_PARTS[0]) & (beyond < TELLING_PARTS[1])
    if judged is not None:
        telling &= judged.reshape(-1)[part]
    upper = telling & (beyond > HALFWAY)
    n_telling, n_upper = int(np.count_nonzero(telling)), int(np.count_nonzero(upper))
    if n_telling < LEAST_TELLING or n_upper < LEAST_UPPER:
        return None
    cut = telling & (decode(found.reshape(-1)[part], dtype) == np.copysign(below, exact))
    n, n_upper_cut = int(np.count_nonzero(cut)), int(np.count_nonzero(cut & upper))
    is_cut_off = n >= LEAST_SHARE * n_telling and n_upper_cut >= LEAST_SHARE * n_upper
    return CutOff(n, int(np.argmax(cut & upper))) if is_cut_off else None
