"""Choose the cases of a check: sizes, input families, seeds and thread orders.

Small sizes run completely. The captured size runs completely when it is cheap, and by sampled blocks otherwise. Sizes
favour what breaks kernels: primes, powers of two, their neighbours, and rows longer than a block.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.expression_parser import parse
from kernel_lsp.core.expression_value import evaluate_int
from kernel_lsp.core.task import Graph, Symbol, Task, TensorType

Sizes = dict[str, int]
ThreadOrder = Literal["forward", "reverse", "random"]
OperationKind = Literal["forward", "backward"]

FRESH_SIZES = (1, 2, 6, 10, 13, 19, 23, 29, 31, 37, 41, 47, 63, 65, 129)
N_FRESH_TRIES = 64
ALIGNMENTS = (1, 2, 4, 8, 16, 32)
"""Multiples tried, in this order, when a pattern is outside the contract (`where: D % 4 == 0`)."""
MAX_REDUCED_ELEMENTS = 1 << 20
"""Maximum elements of all inputs and outputs of a reduced case. The captured sizes' count applies where it is larger:
weights do not shrink."""
CHEAP_ELEMENTS = 1 << 18
MAX_HIDDEN_ELEMENTS = 1 << 22
"""Maximum elements of all inputs and outputs of a hidden case. The captured sizes' count applies where nothing smaller
is inside the contract."""
N_BEFORE_WIDE = 4
"""Cases that run before the large sizes. The families follow after those, so that a slow kernel still has time for
large sizes."""
LONG_SUM = 20_000
"""Inputs are positive from this length on: mixed-sign sums are ill-conditioned."""
LATE_EXTREMES = "late_extremes"
"""Positive numbers whose extremes come last. A maximum at a random place would leave most of a long row unchecked."""
FAMILIES = (
    "small_integers",
    "special_nan",
    "scaled_up",
    "scaled_down",
    "negative",
    "constant_rows",
    "one_hot",
    "large",
    "uniform",
    "special_inf",
    "negative_zeros",
    "needles",
    "halves",
    "special_minus_inf",
    "special_others",
)
"""Families beyond `normal` and `given`, ordered by the errors that they have caught."""
FORWARD_FAMILIES = (
    *("zeros", "huge", "tiny", "offset", "minute", "minus_inf_rows", "lowest_rows"),
    *("far_negative", "subnormal", "low", "highest_rows"),
)
"""Families of the forward alone: PyTorch's own gradients need not be finite for them."""
SPARSE_GRADIENTS = "sparse_gradients"
"""Ordinary inputs; only the incoming gradients are sparse."""
BACKWARD_FAMILIES = (SPARSE_GRADIENTS, "zeros")
LONG_FAMILIES = (
    *(
        SPARSE_GRADIENTS,
        "special_nan",
        "special_others",
        "special_inf",
        "special_minus_inf",
        "minus_inf_rows",
        "lowest_rows",
    ),
    *("low", "highest_rows"),
    *("constant_rows", "one_hot", "needles", "zeros", "uniform"),
)
"""Families for rows longer than a block: they catch a kernel that reads only the beginning of a row. The masks of
`uniform` have few true values in a row, as those of a short row have anyway."""
OCTAVES = "octaves"
"""Rows of every magnitude, for sizes with many rows."""
VARIANT_FAMILIES = {
    "forward": ("large", "offset", "lowest_rows", "special_nan", "minus_inf_rows"),
    "backward": ("large", "special_nan"),
}
"""Families for the captured sizes and for every size that a plan or a kernel has a variant for. A specialised variant
may skip the maximum or drop NaN."""
N_VARIANTS = 4
"""Maximum sizes that get the variant families: the smallest ones."""
TIES = "halves"
"""Halfway cases, where rounding modes differ."""

SCREEN_FAMILIES = ("normal",)
OTHER_NUMBERS_FAMILIES = ("normal", "special_mixed")
"""Families for mutated scalars: a formula for them may differ at zero, NaN or infinity."""

POINTED_VALUES = "pointed_values"
GREATEST_INTEGERS = "greatest_integers"
"""The largest integers, for sums longer than any float represents exactly."""

OPERATOR_ALIGNMENT_BYTES = 32
"""Alignment of a kernel's inputs, in bytes: an operator copies an input with less, and leaves empty inputs to
PyTorch."""
PAGE_BYTES = 4096
OFFSET_FAMILY = "small_integers"
"""The family used for minimally aligned inputs: its sums are exact in any order."""


@dataclass(frozen=True)
class Case:
    """One check.

    `sizes` binds the task's symbols; `is_captured` marks the captured ones. `offset_bytes` is the offset of the inputs
    from a page's start, since an operator's input may be a view into another tensor. `values` are placed into the
    inputs. `may_not_end`: a timeout is inconclusive; the size exceeds every requested one. `of_several_blocks`: the
    case is watched for races.
    """

    operation: OperationKind
    sizes: tuple[tuple[str, int], ...]
    family: str
    seed: int
    thread_order: ThreadOrder
    is_captured: bool = False
    offset_bytes: int = 0
    values: tuple[float, ...] = ()
    may_not_end: bool = False
    of_several_blocks: bool = False

    @property
    def kind(self) -> str:
        """Return the family and offset of the inputs, in words."""
        return f"{self.family}, {self.offset_bytes} bytes off a page" if self.offset_bytes else self.family

    def offset_of(self, tensor: str) -> int:
        """Return the offset of this input from a page's start on the executor, in bytes. It varies with tensor and seed
        over every place that an operator may be given. The captured case is aligned as in the user's own call."""
        return self._place_of(f"{self.seed} {self.family} {tensor}")

    def device_offset_of(self, tensor: str) -> int:
        """Return the offset of this input from a page's start on a GPU, in bytes. It varies with tensor and sizes.
        Cases of equal sizes share addresses, so that results cached by address are detected."""
        return self._place_of(f"{self.sizes} {tensor}")

    def _place_of(self, key: str) -> int:
        if self.is_captured or self.offset_bytes:
            return self.offset_bytes
        return OPERATOR_ALIGNMENT_BYTES * random.Random(key).randrange(PAGE_BYTES // OPERATOR_ALIGNMENT_BYTES)


def shapes_for(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the actual shape of each input of the graph. Raises ExpressionError when a size is missing or not
    positive."""
    return {name: shape_of(type_, sizes) for name, type_ in zip(graph.inputs, graph.input_types, strict=True)}


def shape_of(type_: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the actual shape. Raises ExpressionError for a negative size."""
    shape = tuple(sizes[dim] if dim in sizes else evaluate_int(parse(dim), sizes) for dim in type_.shape)
    if any(size < 0 for size in shape):
        raise ExpressionError(f"the shape [{', '.join(type_.shape)}] is negative at {dict(sizes)}")
    return shape


def captured_sizes(task: Task) -> Sizes:
    """Return the sizes that the task was captured with."""
    return {symbol.name: symbol.captured for symbol in task.symbols}


def configured_sizes(task: Task) -> list[Sizes]:
    """Return the sizes of the task's other configurations whose shapes determine every symbol."""
    found = [_sizes_of(configuration.shapes, task) for configuration in task.configurations]
    names = {symbol.name for symbol in task.symbols}
    return [sizes for sizes in found if sizes.keys() == names and sizes != captured_sizes(task)]


def graph_of(task: Task, operation: OperationKind) -> Graph:
    """Return the graph of one direction. Precondition: a backward graph exists where it is asked for."""
    graph = task.forward if operation == "forward" else task.backward
    assert graph is not None
    return graph


def full_cases(
    operation: OperationKind, reduced: Iterable[Sizes], captured: Sizes, seed: int, configured: Iterable[Sizes] = ()
) -> list[Case]:
    """Return every case of a full check, the most informative first. `configured` are further sizes that the task
    names."""
    assignments = list(reduced)
    first = assignments[0] if assignments else captured
    cases = [_case(operation, captured, captured, "given", seed, "forward")]
    cases.append(_case(operation, first, captured, "normal", seed + 1, "reverse"))
    cases += [_case(operation, sizes, captured, "normal", seed + 1, "forward") for sizes in configured]
    for position, sizes in enumerate(assignments[1:]):
        order: ThreadOrder = ("reverse", "random", "forward")[position % 3]
        cases.append(_case(operation, sizes, captured, "normal", seed + 2 + position, order))
    families = (*FAMILIES, *(FORWARD_FAMILIES if operation == "forward" else BACKWARD_FAMILIES))
    for position, family in enumerate(families):
        nth = 1 if family in LONG_FAMILIES else position
        sizes = assignments[nth % len(assignments)] if assignments else captured
        order = ("forward", "random", "reverse")[position % 3]
        case = _case(operation, sizes, captured, family, seed + 20 + position, order)
        cases.append(replace(case, offset_bytes=OPERATOR_ALIGNMENT_BYTES if family == OFFSET_FAMILY else 0))
    if operation == "backward":  # more rows, for sums over them
        sizes = assignments[2 % len(assignments)] if assignments else captured
        cases.append(_case(operation, sizes, captured, SPARSE_GRADIENTS, seed + 20 + len(families), "forward"))
    return cases


def hidden_cases(operation: OperationKind, hidden: Iterable[Sizes], captured: Sizes, seed: int) -> list[Case]:
    """Return one case for each of the hidden sizes."""
    return [
        _case(operation, sizes, captured, "normal", seed + 40 + position, "forward")
        for position, sizes in enumerate(hidden)
    ]


def wide_cases(
    operation: OperationKind, wide: Iterable[Sizes], captured: Sizes, seed: int, n_watched: int = 0
) -> list[Case]:
    """Return one case for each of the wide sizes. The last `n_watched` are watched for races: with many rows,
    persistent blocks process several each."""
    return [
        _case(
            operation,
            sizes,
            captured,
            _wide_family(sizes),
            seed + 60 + position,
            "reverse" if position + 1 == n_watched else "random",
        )
        for position, sizes in enumerate(wide)
    ]


def octave_cases(operation: OperationKind, sizes: Sizes, captured: Sizes, seed: int) -> list[Case]:
    """Return one case of a forward. A backward has none: gradients of so many magnitudes are uninformative."""
    return [_case(operation, sizes, captured, OCTAVES, seed + 98, "random")] if operation == "forward" else []


def cheapest(task: Task, operation: OperationKind, sizes: Sequence[Sizes]) -> list[Sizes]:
    """Return the smallest few of the sizes, none of them large."""
    cheap = [each for each in sizes if is_usable(task, operation, each, CHEAP_ELEMENTS, or_as_captured=False)]
    return sorted(cheap, key=lambda each: _n_total(_all_shapes(task, operation, each)))[:N_VARIANTS]


def variant_cases(operation: OperationKind, sizes: Sequence[Sizes], captured: Sizes, seed: int) -> list[Case]:
    """Return the families that expose most errors, at each of the sizes."""
    return [
        _case(operation, each, captured, family, seed + 100 + position, "forward")
        for each in sizes
        for position, family in enumerate(VARIANT_FAMILIES[operation])
    ]


def vast_cases(operation: OperationKind, vast: Iterable[Sizes], captured: Sizes, seed: int) -> list[Case]:
    """Return one case for each of the sizes. Inputs have sums that are exact in any order, since sums are longer here
    than their rounding could be judged."""
    return [_case(operation, sizes, captured, "small_integers", seed + 82, "random") for sizes in vast]


def equal_integer_cases(
    task: Task, operation: OperationKind, wide: Iterable[Sizes], captured: Sizes, seed: int
) -> list[Case]:
    """Return cases of many equal integers, for a task that takes integers. Counting them, or adding by index,
    concentrates everything in one place. Booleans are all true."""
    dtypes = [type_.dtype for type_ in graph_of(task, operation).input_types if not type_.dtype.is_floating]
    family = GREATEST_INTEGERS if all(dtype is DType.BOOL for dtype in dtypes) else "equal_integers"
    return [_case(operation, sizes, captured, family, seed + 80, "forward") for sizes in [*wide][:1] if dtypes]


def pointed_values_case(
    operation: OperationKind, sizes: Sizes, captured: Sizes, values: Iterable[float], seed: int
) -> Case:
    """Return a small case whose inputs hold these values."""
    return replace(_case(operation, sizes, captured, POINTED_VALUES, seed + 81, "forward"), values=tuple(values))


def fresh_case(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], reduced: Iterable[Sizes], seed: int
) -> Case:
    """Return a small case with an unpredictable seed. The inputs of other cases are the same in every run, so their
    answers could be hard-coded."""
    draw, captured = random.Random(seed), captured_sizes(task)
    for attempt in range(N_FRESH_TRIES if task.symbols else 0):
        alignment = ALIGNMENTS[attempt * len(ALIGNMENTS) // N_FRESH_TRIES]
        sizes = {symbol.name: clamped(symbol, draw.choice(FRESH_SIZES), alignment) for symbol in task.symbols}
        if is_usable(task, operation, sizes) and holds(sizes):
            return _case(operation, sizes, captured, "normal", seed, "random")
    return _case(operation, next(iter(reduced), captured), captured, "normal", seed, "random")


def screen_cases(
    operation: OperationKind,
    reduced: Iterable[Sizes],
    captured: Sizes,
    seed: int,
    families: Iterable[str] = SCREEN_FAMILIES,
) -> list[Case]:
    """Return the case that ranks a candidate in a search, or one for each of several families."""
    sizes = next(iter(reduced), captured)
    return [_case(operation, sizes, captured, family, seed + 1, "reverse") for family in families]


def clamped(symbol: Symbol, size: int, alignment: int) -> int:
    """Return a multiple of `alignment` near `size`, inside the symbol's bounds and as small as possible."""
    low = max(size, symbol.minimum)
    aligned = -(-low // alignment) * alignment
    return aligned if symbol.maximum is None else min(aligned, symbol.maximum)


def is_usable(
    task: Task,
    operation: OperationKind,
    sizes: Sizes,
    max_elements: int = MAX_REDUCED_ELEMENTS,
    or_as_captured: bool = True,
) -> bool:
    """Check that the sizes give non-empty shapes within the element limit."""
    try:
        shapes = _all_shapes(task, operation, sizes)
    except ExpressionError:
        return False
    n_captured = _n_total(_all_shapes(task, operation, captured_sizes(task))) if or_as_captured else 0
    n_allowed = max(max_elements, n_captured)
    return all(all(shape) for shape in shapes) and _n_total(shapes) <= n_allowed


# --- below: drawing sizes


def _sizes_of(shapes: Mapping[str, tuple[int, ...]], task: Task) -> Sizes:
    names = {symbol.name for symbol in task.symbols}
    known = [(tensor.type.shape, shapes[tensor.name]) for tensor in task.tensors if tensor.name in shapes]
    pairs = (pair for dims, sizes in known for pair in zip(dims, sizes, strict=False))
    return {dim: size for dim, size in pairs if dim in names}


def _case(operation: OperationKind, sizes: Sizes, captured: Sizes, family: str, seed: int, order: ThreadOrder) -> Case:
    return Case(operation, tuple(sorted(sizes.items())), family, seed, order, is_captured=sizes == captured)


def _wide_family(sizes: Sizes) -> str:
    return LATE_EXTREMES if max(sizes.values()) >= LONG_SUM else "normal"


def _all_shapes(task: Task, operation: OperationKind, sizes: Sizes) -> list[tuple[int, ...]]:
    graph = graph_of(task, operation)
    types = [*graph.input_types, *(output.type for output in graph.outputs if output.type is not None)]
    return [shape_of(type_, sizes) for type_ in types]


def _n_total(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(n_elements(shape) for shape in shapes)


def n_elements(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
