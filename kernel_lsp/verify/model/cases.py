"""Which cases a candidate is checked on: sizes, input families, seeds and thread orders.

Small sizes run completely; the captured size runs completely when it is cheap, and by sampled blocks otherwise. Sizes
are drawn for what breaks kernels: primes, powers of two, their neighbours, and rows longer than a block.
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
"""Of all inputs and outputs of a reduced case, or as many as the captured sizes have: weights do not shrink."""
CHEAP_ELEMENTS = 1 << 18
MAX_HIDDEN_ELEMENTS = 1 << 22
"""Of all inputs and outputs, or as many as the captured sizes have where nothing smaller is inside the contract."""
N_BEFORE_WIDE = 4
"""The large sizes come before the families, so that a slow kernel does not run out of the time for them."""
LONG_SUM = 20_000
"""From here on inputs are positive: a sum of so many numbers of either sign has few right digits in any order."""
LATE_EXTREMES = "late_extremes"
"""Positive numbers whose greatest and least come last: of a long row whose maximum is anywhere, most is never told."""
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
"""Beside `normal` and `given`; ordered by what they have been seen to catch."""
FORWARD_FAMILIES = (
    *("zeros", "huge", "tiny", "offset", "minute", "minus_inf_rows", "lowest_rows"),
    *("far_negative", "subnormal", "low", "highest_rows"),
)
"""Inputs that PyTorch's own gradients, with incoming ones of the same kind, need not survive."""
SPARSE_GRADIENTS = "sparse_gradients"
"""Inputs as others are: it is what comes back that is of another kind."""
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
"""Given at rows longer than a block: a kernel that takes the beginning of a row for all of it is wrong there. The masks
of `uniform` have few true values in a row, which a short one has anyhow."""
OCTAVES = "octaves"
"""Rows of every size: given where there are many rows."""
VARIANT_FAMILIES = {
    "forward": ("large", "offset", "lowest_rows", "special_nan", "minus_inf_rows"),
    "backward": ("large", "special_nan"),
}
"""Given at rows as they were captured, and at every size that a plan or a kernel has code of its own for: a variant for
the very sizes that a task has may do without a maximum, or lose what is no number."""
N_VARIANTS = 4
"""Of them, the smallest."""
TIES = "halves"
"""What kinds of rounding differ at."""

SCREEN_FAMILIES = ("normal",)
OTHER_NUMBERS_FAMILIES = ("normal", "special_mixed")
"""Of a kernel that is given other numbers: a formula for them may be another for zero, NaN or infinity."""

POINTED_VALUES = "pointed_values"
GREATEST_INTEGERS = "greatest_integers"
"""Of sums that are longer than any number of floats holds."""

OPERATOR_ALIGNMENT_BYTES = 32
"""Of what a kernel is given: an operator copies an input that begins elsewhere, and leaves empty ones to PyTorch."""
PAGE_BYTES = 4096
OFFSET_FAMILY = "small_integers"
"""The family that is given at addresses of no more than this alignment: its sums are exact in any order."""


@dataclass(frozen=True)
class Case:
    """One check. `sizes` binds the task's symbols; `is_captured` says that they are the captured ones. `offset_bytes`
    is how far the inputs begin behind a page's start: what an operator is given may be a part of another tensor.
    `values` are put into the inputs. That one which `may_not_end` does not end in time says nothing: it is larger than
    anybody asked for. One `of_several_blocks` is there to be watched for races."""

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
        """What its inputs are, in words."""
        return f"{self.family}, {self.offset_bytes} bytes off a page" if self.offset_bytes else self.family

    def offset_of(self, tensor: str) -> int:
        """How far behind a page's start the executor puts this input: any place that an operator may be given, one
        for each tensor and seed. The captured case is as the user's own call would be."""
        return self._place_of(f"{self.seed} {self.family} {tensor}")

    def device_offset_of(self, tensor: str) -> int:
        """The same on a GPU: one for each tensor and sizes. Cases of the same sizes come to the same addresses, so that
        what is remembered of an address is found out."""
        return self._place_of(f"{self.sizes} {tensor}")

    def _place_of(self, key: str) -> int:
        if self.is_captured or self.offset_bytes:
            return self.offset_bytes
        return OPERATOR_ALIGNMENT_BYTES * random.Random(key).randrange(PAGE_BYTES // OPERATOR_ALIGNMENT_BYTES)


def shapes_for(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The actual shape of each input of the graph. Raises ExpressionError when a size is missing or not positive."""
    return {name: shape_of(type_, sizes) for name, type_ in zip(graph.inputs, graph.input_types, strict=True)}


def shape_of(type_: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The actual shape. Raises ExpressionError for a negative size."""
    shape = tuple(sizes[dim] if dim in sizes else evaluate_int(parse(dim), sizes) for dim in type_.shape)
    if any(size < 0 for size in shape):
        raise ExpressionError(f"the shape [{', '.join(type_.shape)}] is negative at {dict(sizes)}")
    return shape


def captured_sizes(task: Task) -> Sizes:
    """The sizes the task was captured with."""
    return {symbol.name: symbol.captured for symbol in task.symbols}


def configured_sizes(task: Task) -> list[Sizes]:
    """The sizes of the task's other configurations, where a dim is a symbol by itself and tells its size."""
    found = [_sizes_of(configuration.shapes, task) for configuration in task.configurations]
    names = {symbol.name for symbol in task.symbols}
    return [sizes for sizes in found if sizes.keys() == names and sizes != captured_sizes(task)]


def graph_of(task: Task, operation: OperationKind) -> Graph:
    """The graph of one direction. The caller knows that a backward exists."""
    graph = task.forward if operation == "forward" else task.backward
    assert graph is not None
    return graph


def full_cases(
    operation: OperationKind, reduced: Iterable[Sizes], captured: Sizes, seed: int, configured: Iterable[Sizes] = ()
) -> list[Case]:
    """Every case of a full check, the most telling first. `configured` are sizes that the task names beside the
    captured ones."""
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
    if operation == "backward":  # and with more rows, for sums over them
        sizes = assignments[2 % len(assignments)] if assignments else captured
        cases.append(_case(operation, sizes, captured, SPARSE_GRADIENTS, seed + 20 + len(families), "forward"))
    return cases


def hidden_cases(operation: OperationKind, hidden: Iterable[Sizes], captured: Sizes, seed: int) -> list[Case]:
    """One case for each of them."""
    return [
        _case(operation, sizes, captured, "normal", seed + 40 + position, "forward")
        for position, sizes in enumerate(hidden)
    ]


def wide_cases(
    operation: OperationKind, wide: Iterable[Sizes], captured: Sizes, seed: int, n_watched: int = 0
) -> list[Case]:
    """One case for each of them. Of so many the last is watched for races: where there are many rows, blocks that take
    one after the other take several."""
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
    """One of a forward: gradients of so many sizes tell nothing."""
    return [_case(operation, sizes, captured, OCTAVES, seed + 98, "random")] if operation == "forward" else []


def cheapest(task: Task, operation: OperationKind, sizes: Sequence[Sizes]) -> list[Sizes]:
    """The smallest few of the sizes, none of them large."""
    cheap = [each for each in sizes if is_usable(task, operation, each, CHEAP_ELEMENTS, or_as_captured=False)]
    return sorted(cheap, key=lambda each: _n_total(_all_shapes(task, operation, each)))[:N_VARIANTS]


def variant_cases(operation: OperationKind, sizes: Sequence[Sizes], captured: Sizes, seed: int) -> list[Case]:
    """What brings out most errors, at each of the sizes."""
    return [
        _case(operation, each, captured, family, seed + 100 + position, "forward")
        for each in sizes
        for position, family in enumerate(VARIANT_FAMILIES[operation])
    ]


def vast_cases(operation: OperationKind, vast: Iterable[Sizes], captured: Sizes, seed: int) -> list[Case]:
    """One case for each of them, of numbers whose sums are exact in any order: sums are longer here than they need to
    be right to the last digits."""
    return [_case(operation, sizes, captured, "small_integers", seed + 82, "random") for sizes in vast]


def equal_integer_cases(
    task: Task, operation: OperationKind, wide: Iterable[Sizes], captured: Sizes, seed: int
) -> list[Case]:
    """Many integers that are all equal, for a task that takes integers: what counts them, or adds up what they point
    to, has all of it in one place. Of truth values all are true."""
    dtypes = [type_.dtype for type_ in graph_of(task, operation).input_types if not type_.dtype.is_floating]
    family = GREATEST_INTEGERS if all(dtype is DType.BOOL for dtype in dtypes) else "equal_integers"
    return [_case(operation, sizes, captured, family, seed + 80, "forward") for sizes in [*wide][:1] if dtypes]


def pointed_values_case(
    operation: OperationKind, sizes: Sizes, captured: Sizes, values: Iterable[float], seed: int
) -> Case:
    """A small case whose inputs hold these values."""
    return replace(_case(operation, sizes, captured, POINTED_VALUES, seed + 81, "forward"), values=tuple(values))


def fresh_case(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], reduced: Iterable[Sizes], seed: int
) -> Case:
    """A small case by a seed that nobody can know beforehand: answers to the other cases' inputs, which are the same in
    every run, could be written into a kernel."""
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
    """The one case that ranks a candidate in a search; one of each of the families where more are asked for."""
    sizes = next(iter(reduced), captured)
    return [_case(operation, sizes, captured, family, seed + 1, "reverse") for family in families]


def clamped(symbol: Symbol, size: int, alignment: int) -> int:
    """A multiple of `alignment` near `size`, inside the symbol's bounds and no larger than it needs to be."""
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
    """Whether the sizes give shapes, none empty, that are not too large."""
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
