"""Draw integer and boolean inputs of each family, and place NaN, infinities and the lowest numbers in inputs.

The range of most integers is unknown, unless code indexes with them or a range is stated. Without either, they span
their dtype, and the families differ in where errors show: past 24 bits, which a float holds, past 31, at negative
numbers. PyTorch itself may refuse such numbers: the family then has `PLAIN` ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import torch

from ..capture.captured import Captured
from ..operators import is_a, number

PLAIN = "plain"
"""Zeros and ones, for any family."""
GREATEST = "greatest_integers"
"""The family whose tensors each hold one number throughout, the largest possible."""
LATE, LATE_PART = "late_extremes", 16
"""The family with indices in the last part of the indexed dim, and the number of parts."""
SMALL, HUNDREDS = 3, 200
NEAR = 8
"""Maximum distance from a power of two."""
FEW_PART = 16
"""Share of true values in a sparse row; other rows have one or none."""
FLOAT_BITS, WORD_BITS = 24, 31
"""Bits of the integers that float represents exactly, and of 32-bit integers without their sign."""

Limits = tuple[int, int]
Make = Callable[[tuple[int, ...], Limits, torch.Generator], torch.Tensor]


def _between(low: int, high: int) -> Make:
    """Return a generator of numbers from [low, high], within the dtype's range."""

    def make(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(max(low, limits[0]), min(high, limits[1]) + 1, shape, generator=generator)

    return make


def _all(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    """Draw any number of the dtype, with its minimum and maximum among them."""
    # `randint` has no end beyond the largest 64-bit number, which is placed anyway.
    drawn = torch.randint(limits[0], limits[1], shape, generator=generator)
    places = torch.randperm(drawn.numel(), generator=generator)[:2]
    drawn.view(-1)[places] = torch.tensor(limits)[: len(places)]
    return drawn


def _around(n_bits: int) -> Make:
    """Return a generator of numbers of either sign near a power of two. A dtype that is too narrow has its own limits
    instead."""

    def make(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
        power = min(1 << n_bits, limits[1] - NEAR)
        near = power + torch.randint(-NEAR, NEAR + 1, shape, generator=generator)
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return near * sign if limits[0] < 0 else near

    return make


def _equal(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    value = _between(-HUNDREDS, HUNDREDS)((1,), limits, generator)
    return value.expand(shape).clone()


def _zeros(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _single(value: int) -> Make:
    """Return a generator of zeros and ones: half of the rows along the last dim, and one element of each other row, are
    `value`; the rest is the other number."""

    def make(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
        if not shape:
            return torch.full(shape, value)
        rows = (*shape[:-1], 1)
        drawn = torch.full(shape, 1 - value)
        drawn.scatter_(-1, torch.randint(0, shape[-1], rows, generator=generator), value)
        return torch.where(torch.randint(0, 2, rows, generator=generator) == 0, 1 - value, drawn)

    return make


def _equal_rows(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    rows = (*shape[:-1], 1) if shape else shape
    return torch.randint(0, 2, rows, generator=generator).expand(shape).clone()


def _few(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    """Draw masks whose rows along the last dim have, by turns, one true value, few, and none. A mean over a mask
    divides by their number."""
    if not shape:
        return torch.ones(shape, dtype=torch.int64)
    rows = (*shape[:-1], 1)
    places = torch.randint(0, shape[-1], rows, generator=generator)
    single = torch.zeros(shape, dtype=torch.int64).scatter_(-1, places, 1)
    few = single | (torch.randint(0, FEW_PART, shape, generator=generator) == 0)
    nth = (torch.arange(math.prod(rows)) % 3).view(rows)
    return torch.where(nth == 0, single, torch.where(nth == 1, few, 0))


def greatest_odd(low: int, high: int) -> int:
    """Return the odd integer of the largest magnitude in [low, high], where there is one. An odd number of them has an
    odd sum, which cannot be correctly rounded by chance."""
    ends = [n for n in (high, high - 1, low + 1, low) if low <= n <= high]
    return max([n for n in ends if n % 2] or ends, key=abs)


def _greatest(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    return torch.full(shape, greatest_odd(*limits))


def _late(shape: tuple[int, ...], limits: Limits, generator: torch.Generator) -> torch.Tensor:
    """Draw values that grow with their position, of either sign where negative ones are allowed."""
    n = math.prod(shape)
    sign = torch.randint(0, 2, (n,), generator=generator) * 2 - 1 if limits[0] < 0 else 1
    return (torch.arange(n) * min(limits[1], HUNDREDS * n) // max(n, 1) * sign).view(shape)


_plain = _between(0, 1)
UNLIMITED: dict[str, Make] = {
    "small_integers": _between(-SMALL, SMALL),
    "halves": _between(-HUNDREDS, HUNDREDS),
    "negative": _between(-HUNDREDS, -1),
    "scaled_up": _all,
    "uniform": _all,
    "large": _around(FLOAT_BITS),
    "scaled_down": _around(WORD_BITS),
    "huge": _around(WORD_BITS),
    "constant_rows": _equal,
    "equal_integers": _equal,
    GREATEST: _greatest,
    LATE: _late,
    "zeros": _zeros,
    "one_hot": _single(1),
    "needles": _single(0),
}
"""Family -> integers limited only by their dtype; zeros and ones for the others."""
TRUTH_VALUES: dict[str, Make] = {
    "constant_rows": _equal_rows,
    "equal_integers": _equal_rows,
    GREATEST: _greatest,
    "zeros": _zeros,
    "one_hot": _single(1),
    "needles": _single(0),
    "uniform": _few,
}
"""Family -> booleans. Random ones make `any` always true and `all` always false. In `one_hot` the other inputs are
nearly all zero, so a mask has little effect on them; in `uniform` they are not."""


def unlimited(family: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Draw integers, or booleans, of a family over the range of their dtype."""
    if dtype == torch.bool:
        return TRUTH_VALUES.get(family, _plain)(shape, (0, 1), generator).to(dtype)
    limits = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    make = UNLIMITED.get(family, _plain)
    if family == "negative" and limits[0] == 0:
        make = _all
    return make(shape, limits, generator).to(dtype)


def limited(
    family: str, shape: tuple[int, ...], dtype: torch.dtype, limits: Limits, generator: torch.Generator
) -> torch.Tensor:
    """Draw integers, or booleans, from [low, high): all equal in some families, the minimum and the maximum in others.
    Of two numbers the larger one stands for true."""
    low, high = (0, 2) if dtype == torch.bool else (limits[0], max(limits[0] + 1, limits[1]))
    if high - low == 2 and family in TRUTH_VALUES:
        return (low + TRUTH_VALUES[family](shape, (0, 1), generator)).to(dtype)
    if family in ("constant_rows", "equal_integers"):
        return torch.randint(low, high, (1,), generator=generator).expand(shape).clone().to(dtype)
    if family == GREATEST:
        return torch.full(shape, greatest_odd(low, high - 1)).to(dtype)
    if family == LATE:
        return (high - 1 - torch.randint(0, (high - low) // LATE_PART + 1, shape, generator=generator)).to(dtype)
    if family == "large":
        is_last = torch.randint(0, 2, shape, generator=generator)
        return (low + is_last * (high - 1 - low)).to(dtype)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def index_limits(captured: Captured) -> dict[str, str]:
    """Map argument names to the expression of the size that their values must stay below."""
    by_node = {a.placeholder.node: a.name for a in captured.arguments}
    limits: dict[str, str] = {}
    for node in captured.program.core.graph.nodes:
        for index, size in _indexed(node) if node.op == "call_function" else ():
            name = by_node.get(_origin(index))
            if name is not None:
                limits.setdefault(name, captured.symbols.text(size))
    return limits


def _indexed(node: Any) -> list[tuple[Any, Any]]:
    """Return the (index node, size of the dim it indexes) of an indexing operator. A loss indexes its classes."""
    at, dim_at = number(node.target, "index"), number(node.target, "dim")
    if is_a(node.target, "index_list"):
        shape = node.args[0].meta["val"].shape
        return [(index, shape[dim]) for dim, index in enumerate(node.args[1]) if index is not None]
    if at is None:
        return []
    shape = node.args[0].meta["val"].shape
    dim = int(is_a(node.target, "loss") and len(shape) > 1) if dim_at is None else node.args[dim_at]
    return [(node.args[at], shape[dim])] if shape else []


def _origin(node: Any) -> str:
    """Return the placeholder that an index comes from, through views and masks."""
    while getattr(node, "op", "") == "call_function" and is_a(node.target, "passes_values"):
        position = 1 if str(node.target) == "aten.where.self" else 0
        node = node.args[position]
    return str(getattr(node, "name", ""))


NAN, INFINITY = float("nan"), float("inf")
MIXED = "special_mixed"
SPECIAL_VALUES = {
    "special_nan": (NAN,),
    "special_others": (NAN,),
    "special_inf": (INFINITY,),
    "special_minus_inf": (-INFINITY,),
    MIXED: (0.0, NAN, INFINITY, -INFINITY, 1.0, -1.0),
}
"""Family -> its special values. A single one occurs twice in one row, and at another row's first element: the first of
several NaNs in a row counts, and a part of a row may begin with -inf. Several are adjacent in one row, as many as fit.
Those are for elementwise functions, whose formula may change with a scalar of the plan."""
OF_THE_LARGEST, OF_THE_OTHERS = ("special_nan", "special_minus_inf"), ("special_others",)
"""Families by the floating inputs that have the values; in `special_inf` all do. A NaN of one input may hide that a
kernel drops another's."""
MINUS_INF_ROWS, LOWEST_ROWS, HIGHEST_ROWS = "minus_inf_rows", "lowest_rows", "highest_rows"
ROWS_OF = (MINUS_INF_ROWS, LOWEST_ROWS, HIGHEST_ROWS)
"""Families in which one index of the first dim of the largest floating input has this value throughout."""
LOWEST_EXPONENT = 106
"""Exponent of the value of low masks, -8e31: below values that count as minus infinity, and far enough from f32's limit
for sums and products with ordinary numbers. A power of two, so that sums of it are exact in any order."""
LOWEST_BELOW_END = 3
"""Exponents of two that a type must have beyond it."""
NO_ZERO = 0.75
"""Replaces a zero of the inputs."""
STAND_INS = (30.0, -20.0)
"""Ordinary numbers in place of special ones: above and below all others, of different magnitude."""
N_PATTERNS = 3
"""Bit patterns of NaN: PyTorch's own; that of a GPU's arithmetic (0x7fffffff in f32: code that rounds its bits like a
number's returns -0.0); and PyTorch's with a sign, from a CPU's arithmetic. The pattern of all ones marks unwritten
memory."""
SAME_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}
PART_OF_ONE_ROW = 3
N_OTHER_ROWS, PART_OF_ALL_ROWS = 6, 16
"""Further rows with a special value, where there are many rows: they are to meet zeros of other inputs."""


def place_special(
    family: str,
    tensors: Sequence[torch.Tensor],
    generator: torch.Generator,
    *,
    is_place_asked: bool = False,
    lowest_exponent: int = LOWEST_EXPONENT,
) -> None:
    """Place the family's values in place. `tensors` are the inputs; only floating ones change. The lowest numbers are
    minus two to the `lowest_exponent`. Where the code returns the index of an extreme, the last of a row of lowest, or
    highest, numbers is the extreme: an accumulator with a faulty initial value returns the first."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floating:
        return
    largest = max(floating, key=torch.Tensor.numel)
    if family in ROWS_OF:
        part, lowest = _part(largest, generator), _lowest(largest.dtype, lowest_exponent)
        part.fill_({MINUS_INF_ROWS: -INFINITY, LOWEST_ROWS: lowest, HIGHEST_ROWS: -lowest}[family])
        if is_place_asked:
            part[..., -1:] *= 0.5
    for tensor in floating if family in SPECIAL_VALUES else ():
        is_wanted = family not in (OF_THE_OTHERS if tensor is largest else OF_THE_LARGEST)
        if is_wanted:
            _place(SPECIAL_VALUES[family], tensor, generator)


def place_numbers(tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator) -> None:
    """Place the numbers into a floating tensor, as many as half of it holds."""
    if not tensor.is_floating_point():
        return
    places = torch.randperm(tensor.numel(), generator=generator)[: min(len(numbers), (tensor.numel() + 1) // 2)]
    tensor.view(-1)[places] = torch.tensor(numbers[: len(places)], dtype=torch.float64).to(tensor.dtype)


def has_no_place(family: str, dtypes: Sequence[torch.dtype]) -> bool:
    """Check whether inputs of these dtypes have no tensor for the family's value."""
    return family in OF_THE_OTHERS and sum(dtype.is_floating_point for dtype in dtypes) < 2


def without_special(value: torch.Tensor, stand_in: float) -> torch.Tensor:
    """Return the input with an ordinary number in place of each special one."""
    return torch.where(torch.isfinite(value), value, stand_in) if value.is_floating_point() else value


def without_zeros(value: torch.Tensor) -> torch.Tensor:
    """Return the input with an ordinary number in place of each zero."""
    return torch.where(value == 0, NO_ZERO, value) if value.is_floating_point() else value


# --- below: places


def _lowest(dtype: torch.dtype, exponent: int) -> float:
    n_powers = math.frexp(torch.finfo(dtype).max)[1]
    return -(2.0 ** min(exponent, n_powers - LOWEST_BELOW_END))


def _place(values: Sequence[float], tensor: torch.Tensor, generator: torch.Generator) -> None:
    flat = tensor.view(-1)
    if len(values) == 1:
        places = _places(tensor, generator)
        flat[places] = values[0]
        if math.isnan(values[0]):
            _vary_patterns(flat, places)
        return
    row_length = tensor.shape[-1] if tensor.dim() else 1
    first = int(torch.randint(0, flat.numel() // row_length, (1,), generator=generator)) * row_length
    n_placed = min(len(values), row_length)
    flat[first : first + n_placed] = torch.tensor(values[:n_placed], dtype=tensor.dtype)


def _vary_patterns(flat: torch.Tensor, places: torch.Tensor) -> None:
    """Give the NaNs at these places each pattern in turn."""
    bits = flat.view(SAME_WIDTH[flat.element_size()])
    ends, nth = torch.iinfo(bits.dtype), torch.arange(len(places)) % N_PATTERNS
    own = bits[places]
    bits[places] = torch.where(nth == 1, ends.max, torch.where(nth == 2, own | ends.min, own))


def _places(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return flat indices: two of one row along the last dim, the start of another row, and one of each of some others,
    if there are any."""
    row_length = tensor.shape[-1] if tensor.dim() else 1
    n_rows = tensor.numel() // row_length
    n_others = min(N_OTHER_ROWS, n_rows // PART_OF_ALL_ROWS)
    rows = torch.randperm(n_rows, generator=generator)[: 2 + n_others] * row_length
    columns = torch.randperm(row_length, generator=generator)[:2]
    others = torch.randint(0, row_length, (len(rows[2:]),), generator=generator)
    return torch.cat([rows[0] + columns, rows[1:2], rows[2:] + others])


def _part(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return one index of the first dim, as a view; a run of elements where that dim has one index at most."""
    whole = tensor if tensor.dim() > 1 and tensor.shape[0] > 1 else tensor.view(-1)
    n_taken = 1 if whole is tensor and whole.dim() > 1 else max(1, whole.numel() // PART_OF_ONE_ROW)
    first = int(torch.randint(0, len(whole) - n_taken + 1, (1,), generator=generator))
    return whole[first : first + n_taken]
