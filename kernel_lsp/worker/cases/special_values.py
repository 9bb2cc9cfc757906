"""Place NaN, infinities, the lowest numbers and given numbers in inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

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
MINUS_INF_ROWS, LOWEST_ROWS, HIGHEST_ROWS = "minus_inf_rows", "lowest_rows", "highest_rows"
ROWS_OF = (MINUS_INF_ROWS, LOWEST_ROWS, HIGHEST_ROWS)
"""Families in which one index of the first dim of the largest floating input has this value throughout."""
LOWEST_EXPONENT = 106
"""Exponent of the value of low masks, -8e31: below values that count as minus infinity, and far enough from f32's limit
for sums and products with ordinary numbers. A power of two, so that sums of it are exact in any order."""
STAND_INS = (30.0, -20.0)
"""Ordinary numbers in place of special ones: above and below all others, of different magnitude."""
SAME_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}

OF_THE_LARGEST, OF_THE_OTHERS = ("special_nan", "special_minus_inf"), ("special_others",)
"""Families by the floating inputs that have the values; in `special_inf` all do. A NaN of one input may hide that a
kernel drops another's."""
LOWEST_BELOW_END = 3
"""Exponents of two that a type must have beyond it."""
NO_ZERO = 0.75
"""Replaces a zero of the inputs."""
N_PATTERNS = 3
"""Bit patterns of NaN: PyTorch's own; that of a GPU's arithmetic (0x7fffffff in f32: code that rounds its bits like a
number's returns -0.0); and PyTorch's with a sign, from a CPU's arithmetic. The pattern of all ones marks unwritten
memory."""
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
