"""Families of inputs that expose different errors of a kernel."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from ..large_random import standard_normal

SCALE_UP, SCALE_DOWN = 3.0, 0.01
LARGE = 1e4
HUGE, TINY = 1e10, 1e-8
"""Above any 32-bit integer, and below the guards that are added against division by zero. The square of either, and the
sum of many, is a normal number of f32 and bf16. In f16 they are infinite and zero."""
SUBNORMAL_EXPONENTS = (-149.0, -126.0)
"""Exponents of two: f32 and bf16 numbers that some instructions flush to zero. In f16 they are zero."""
LOW = -20_000.0
"""Below any faulty initial value of a maximum, yet not so low that it absorbs its logarithm."""
FAR_NEGATIVE = (-20.0, -5.0)
"""Range in which the tails of softplus and similar functions are small but fully precise."""
ZEROS_ONE_IN = 2
"""Reciprocal share of zeros among inputs with infinities: some rows without infinities need a zero where another input
has one."""
OCTAVES = tuple(range(-8, 13))
"""Exponents of two: between the magnitudes of the other families, and within f16."""
MINUTE_EXPONENTS = (-18.0, -12.0)
"""Exponents of ten. The product of two such numbers is a normal number of f32 and bf16, and far below any threshold for
zero. In f16 they are zero."""
OFFSET = 1000.0
"""Ratio of the mean to the spread: the variance as a difference of mean squares loses all digits."""
NEEDLE = -1.0
INTEGER_BOUND = 3
"""Small integers are within [-3, 3]: sums of thousands of their products are exact in f32."""
MAX_HALVINGS = 5
NEGATIVE_ZEROS_ONE_IN = 4
PARAMETER_NOISE = 0.1
"""Noise relative to a parameter's own magnitude, or absolute where it is all zeros: weights of ones and biases of zeros
would hide a kernel that omits them."""
MINUTE_PARAMETER = 1e-2
"""Magnitude up to which equal elements are initial values of a training, such as the 1e-6 of a layer scale, not its
result: their noise is absolute, too."""

LATE_SPREAD, GREATEST_LATE, LEAST_LATE = 0.875, 2.0, 0.0625
"""All other values are within this distance of 1. Exact in every dtype."""
TIED = 3.0
"""Extreme beyond all others, which are clamped to one less."""

Make = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]
PIECE_ELEMENTS = 1 << 22
LAST_PLACES = 2.0**-24
"""Relative resolution that f64 has beyond f32."""
N_THREADS = max(1, min(8, os.cpu_count() or 1))


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator)


def _constant_rows(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw rows along the last dim of one value each."""
    if not shape:
        return _normal(shape, generator)
    return _normal((*shape[:-1], 1), generator).expand(shape)


def _one_hot(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw rows along the last dim of zeros with a single one."""
    if not shape:
        return torch.ones(shape)
    places = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
    return torch.zeros(shape).scatter_(-1, places, 1.0)


def _needles(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw rows along the last dim of positive numbers with a single negative element."""
    if not shape:
        return torch.full(shape, NEEDLE)
    places = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
    return (0.5 + torch.rand(shape, generator=generator)).scatter_(-1, places, NEEDLE)


def _huge(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw rows along the last dim of one sign each."""
    rows = (*shape[:-1], 1) if shape else shape
    sign = torch.randint(0, 2, rows, generator=generator) * 2 - 1
    return HUGE * (0.5 + 0.5 * torch.rand(shape, generator=generator)) * sign


def _small_integers(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-INTEGER_BOUND, INTEGER_BOUND + 1, shape, generator=generator).float()


def _negative_zeros(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw normal numbers, with -0.0 for one in four. No zero is positive: the larger of two zeros is not defined."""
    is_zero = torch.randint(0, NEGATIVE_ZEROS_ONE_IN, shape, generator=generator) == 0
    return torch.where(is_zero, torch.tensor(-0.0), _normal(shape, generator))


def _halves(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw halves of small integers and of their fractions: halfway cases of rounding to integers, or to eighths."""
    return _small_integers(shape, generator) / 2.0 ** torch.randint(1, MAX_HALVINGS + 1, shape, generator=generator)


def _zeros_among(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw normal numbers, with zero for one in two."""
    is_zero = torch.randint(0, ZEROS_ONE_IN, shape, generator=generator) == 0
    return torch.where(is_zero, 0.0, _normal(shape, generator))


def _late_extremes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw positive numbers whose distance from 1 grows with their position. Along every dim the largest and the
    smallest are among the last. The two extremes are at odd indices, which truncation makes even."""
    n = math.prod(shape)
    sign = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    flat = 1.0 + LATE_SPREAD * sign * torch.arange(1, n + 1, dtype=torch.float64) / max(n, 1)
    last_odd = (n - 2) // 2 * 2 + 1
    for place, value in ((last_odd, GREATEST_LATE), (last_odd - 2, LEAST_LATE)):
        flat[max(place, 0) : place + 1] = value
    return flat.float().view(shape)


def _tied_rows(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw rows along the last dim with two or three equal maxima, and equal minima."""
    values = _normal(shape, generator).clamp(1 - TIED, TIED - 1)
    if shape:
        rows = values.view(-1, shape[-1])
        rows.scatter_(1, _tied_places(len(rows), shape[-1], 1, generator), -TIED)
        rows.scatter_(1, _tied_places(len(rows), shape[-1], 0, generator), TIED)
    return values


def _tied_places(n_rows: int, n: int, nth: int, generator: torch.Generator) -> torch.Tensor:
    """Return three places of each row, by turns: two adjacent ones, both ends, random ones, the last ones. The turns
    begin with the `nth`."""
    anywhere = torch.randint(0, n, (n_rows, 3), generator=generator)
    first, last = torch.zeros_like(anywhere), torch.full_like(anywhere, n - 1)
    kinds = (
        torch.cat([anywhere[:, :2], anywhere[:, :1] + 1], 1),
        torch.cat([first[:, :1], last[:, :1], anywhere[:, :1]], 1),
        anywhere,
        last - torch.tensor([1, 0, 0]),
    )
    nth_of = (torch.arange(n_rows) + nth) % len(kinds)
    return torch.stack(kinds)[nth_of, torch.arange(n_rows)].clamp(0, n - 1)


def _tied_columns(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw values as `_tied_rows` does, along the last dim but one."""
    if len(shape) < 2:
        return _tied_rows(shape, generator)
    return _tied_rows((*shape[:-2], shape[-1], shape[-2]), generator).transpose(-1, -2)


def _far_negative(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    low, high = FAR_NEGATIVE
    return low + (high - low) * torch.rand(shape, generator=generator)


def _subnormal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw numbers of either sign, with magnitudes uniform over several powers of two."""
    low, high = SUBNORMAL_EXPONENTS
    magnitude = 2.0 ** (low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64))
    return (magnitude * (torch.randint(0, 2, shape, generator=generator) * 2 - 1)).float()


def _minute(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw numbers of either sign, with magnitudes uniform over several powers of ten."""
    low, high = MINUTE_EXPONENTS
    magnitude = 10.0 ** (low + (high - low) * torch.rand(shape, generator=generator))
    return magnitude * (torch.randint(0, 2, shape, generator=generator) * 2 - 1)


def _octaves(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw rows along the last dim with a magnitude of their own each; without rows, single elements."""
    rows = (*shape[:-1], 1) if len(shape) > 1 else shape
    n_rows = math.prod(rows)
    exponents = torch.tensor(OCTAVES).repeat(n_rows // len(OCTAVES) + 1)[:n_rows]
    return _normal(shape, generator) * 2.0 ** exponents[torch.randperm(n_rows, generator=generator)].view(rows)


def _large(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw numbers of either sign, with magnitudes from half of `LARGE` up to it."""
    magnitude = LARGE * (0.5 + 0.5 * torch.rand(shape, generator=generator))
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return magnitude * sign


FAMILIES: dict[str, Make] = {
    "normal": _normal,
    "uniform": _uniform,
    "scaled_up": lambda shape, generator: SCALE_UP * _normal(shape, generator),
    "scaled_down": lambda shape, generator: SCALE_DOWN * _normal(shape, generator),
    "negative": lambda shape, generator: -_normal(shape, generator).abs(),
    "constant_rows": _constant_rows,
    "one_hot": _one_hot,
    "small_integers": _small_integers,
    "large": _large,
    "octaves": _octaves,
    "special_nan": _normal,
    "special_others": _normal,
    "special_inf": _zeros_among,
    "special_minus_inf": _normal,
    "special_mixed": _normal,
    "pointed_values": _normal,
    "minus_inf_rows": _normal,
    "lowest_rows": _normal,
    "highest_rows": _normal,
    "equal_integers": _normal,
    "greatest_integers": _uniform,
    "negative_zeros": _negative_zeros,
    "needles": _needles,
    "late_extremes": _late_extremes,
    "tied_rows": _tied_rows,
    "tied_columns": _tied_columns,
    "halves": _halves,
    "zeros": lambda shape, generator: torch.zeros(shape),
    "huge": _huge,
    "tiny": lambda shape, generator: TINY * _normal(shape, generator),
    "minute": _minute,
    "subnormal": _subnormal,
    "far_negative": _far_negative,
    "offset": lambda shape, generator: OFFSET + _normal(shape, generator),
    "low": lambda shape, generator: LOW + _normal(shape, generator),
    "sparse_gradients": _normal,
}
"""Family -> generator of its floating inputs. `given` is made by the user's own `get_inputs`."""
FRACTIONS = ("normal", "uniform", "scaled_up", "scaled_down", "negative", "far_negative", "offset", "tiny")
"""Families whose numbers use all digits of their type."""
GRADIENT_FAMILIES = {"small_integers": "small_integers", "sparse_gradients": "one_hot"}
"""Family of the inputs -> family of the outputs' gradients, where that is not `normal`. A kernel that samples a few of
them to test for equality finds zeros, while others are not."""
GRADIENT_SCALES = {"negative": -23, "constant_rows": 13}
"""Family of the inputs -> exponent of two by which the outputs' gradients are scaled, and exactly so those of the
inputs. They are as small as a mean over the batch makes them, and larger than clipping code expects."""
NARROW_SCALE = 4
"""Reduction of the exponent in f16."""
ROW_FAMILIES = ("constant_rows", "octaves", "one_hot", "needles", "huge", "late_extremes", "tied_rows", "tied_columns")
"""Families in which the elements of a row depend on each other."""
SPARSE_FAMILIES = ("one_hot", "needles", "zeros")
"""Families that only the largest inputs have, with normal ones for the others: a row of ones and zeros times an equally
sparse weight is zero almost everywhere, for any kernel."""


def resized(own: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return values of another shape with the distribution of `own`; `own` itself where the shape is equal."""
    if tuple(own.shape) == tuple(shape) or not own.numel():
        return own if tuple(own.shape) == tuple(shape) else torch.zeros(shape, dtype=own.dtype)
    flat = own.detach().reshape(-1)
    drawn = torch.randint(0, flat.numel(), shape, generator=generator)
    return flat[drawn].clone()


def near_own_values(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter's own values with noise, in its dtype."""
    if not own.is_floating_point() or not own.numel():
        return own.detach().clone()
    values = own.detach().float()
    size = float(values.square().mean().sqrt())
    if own.numel() > 1 and size <= MINUTE_PARAMETER and bool((own == own.reshape(-1)[0]).all()):
        size = 1.0
    noise = standard_normal(values.shape, generator)
    return noise.mul_(PARAMETER_NOISE * size).add_(values).to(own.dtype)


def buffer_values(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a buffer's own values; with noise where they are all equal, as fresh running statistics are. A positive
    buffer, e.g. a variance, stays positive; a mask or a table stays unchanged."""
    first: torch.Tensor | None = own.reshape(-1)[0] if own.numel() > 1 and own.is_floating_point() else None
    if first is None or not bool(torch.isfinite(first)) or not bool((own == first).all()):
        return own.detach().clone()
    noise = PARAMETER_NOISE * torch.randn(own.shape, generator=generator)
    values = own.float() * (1 + noise.abs()) if float(first) > 0 else own.float() + noise
    return values.to(own.dtype)


def own_generator(seed: int, *names: str) -> torch.Generator:
    """Return a tensor's own random stream, the same on every machine."""
    return torch.Generator().manual_seed(zlib.crc32("/".join([str(seed), *names]).encode()))


def draw(family: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int, name: str) -> torch.Tensor:
    """Draw the tensor of this name; contiguous."""
    if math.prod(shape) <= PIECE_ELEMENTS:
        return _made(family, shape, dtype, own_generator(seed, family, name)).contiguous()
    drawn = torch.empty(shape, dtype=dtype)
    rows = drawn.view(-1, shape[-1]) if family in ROW_FAMILIES else drawn.view(-1, 1)
    n_rows = max(1, PIECE_ELEMENTS // rows.shape[1])

    def draw_piece(start: int) -> None:
        piece = rows[start : start + n_rows]
        piece.copy_(_made(family, tuple(piece.shape), dtype, own_generator(seed, family, name, str(start))))

    with ThreadPoolExecutor(N_THREADS) as pool:
        list(pool.map(draw_piece, range(0, len(rows), n_rows)))  # raises what a thread raised
    return drawn


def _made(family: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    made = FAMILIES[family](shape, generator).to(dtype)
    if dtype != torch.float64 or family not in FRACTIONS:
        return made
    return made * (1.0 + LAST_PLACES * torch.rand(shape, dtype=dtype, generator=generator))


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
