"""A case of a check: a direction, sizes, an input family, a seed and a thread order; and the evidence about a candidate
while it is evaluated."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from kernel_lsp.core.expression import ExpressionError, evaluate_int, parse
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Configuration, Graph, Symbol, Task, TensorType
from kernel_lsp.core.verdict import Built, CaseResult, CheckOutcome

Sizes = dict[str, int]
ThreadOrder = Literal["forward", "reverse", "random"]
OperationKind = Literal["forward", "backward"]
Depth = Literal["rank", "screen", "full"]
"""``rank`` is a screen with a short measurement: enough to order candidates, too short for a claim."""

ALIGNMENTS = (1, 2, 4, 8, 16, 32)
"""Multiples tried, in this order, when a pattern is outside the contract (`where: D % 4 == 0`)."""
LATE_EXTREMES = "late_extremes"
"""Positive numbers whose extremes come last. A maximum at a random place would leave most of a long row unchecked."""
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


def seeded(case: Case, seed: int, probe: str) -> Case:
    """Return the case with a seed of its own, hashed from the check's seed, the probe and everything else about it."""
    digest = hashlib.sha256(f"{seed} {probe} {replace(case, seed=0)}".encode()).digest()
    return replace(case, seed=int.from_bytes(digest[:4], "big") >> 1)


def shapes_for(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the actual shape of each input of the graph. Raises ExpressionError when a size is missing or not
    positive."""
    return {name: shape_of(type_, sizes) for name, type_ in zip(graph.inputs, graph.input_types, strict=True)}


def shape_of(type_: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the actual shape. Raises ExpressionError for a negative size."""
    if (fixed := _fixed(type_.shape)) is not None:
        return fixed
    shape = tuple(sizes[dim] if dim in sizes else evaluate_int(parse(dim), sizes) for dim in type_.shape)
    if any(size < 0 for size in shape):
        raise ExpressionError(f"the shape [{', '.join(type_.shape)}] is negative at {dict(sizes)}")
    return shape


@functools.lru_cache(maxsize=1024)
def _fixed(shape: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return a shape without symbols, such as a parameter's: a DenseNet has 700, at thousands of sizes that are tried.
    None where a dim has one."""
    return tuple(map(int, shape)) if all(dim.isdecimal() for dim in shape) else None


def captured_sizes(task: Task) -> Sizes:
    """Return the sizes that the task was captured with."""
    return {symbol.name: symbol.captured for symbol in task.symbols}


def configured_sizes(task: Task) -> list[Sizes]:
    """Return the sizes of the task's other configurations whose shapes determine every symbol."""
    found = (sizes_of(configuration, task) for configuration in task.configurations)
    return [sizes for sizes in found if sizes is not None and sizes != captured_sizes(task)]


def sizes_of(configuration: Configuration, task: Task) -> Sizes | None:
    """Return the sizes of a configuration that the capture covers; None where its shapes leave a symbol open."""
    shapes = configuration.shapes
    known = [(tensor.type.shape, shapes[tensor.name]) for tensor in task.tensors if tensor.name in shapes]
    pairs = (pair for dims, sizes in known for pair in zip(dims, sizes, strict=False))
    names = {symbol.name for symbol in task.symbols}
    found = {dim: size for dim, size in pairs if dim in names}
    return found if found.keys() == names else None


def graph_of(task: Task, operation: OperationKind) -> Graph:
    """Return the graph of one direction. Precondition: a backward graph exists where it is asked for."""
    graph = task.forward if operation == "forward" else task.backward
    assert graph is not None
    return graph


def clamped(symbol: Symbol, size: int, alignment: int) -> int:
    """Return a multiple of `alignment` near `size`, inside the symbol's bounds and as small as possible."""
    low = max(size, symbol.minimum)
    aligned = -(-low // alignment) * alignment
    return aligned if symbol.maximum is None else min(aligned, symbol.maximum)


def is_usable(
    task: Task,
    operation: OperationKind,
    sizes: Sizes,
    max_elements: int,
    or_as_captured: bool,
) -> bool:
    """Check that the sizes give non-empty shapes within the element limit."""
    try:
        shapes = _all_shapes(task, operation, sizes)
    except ExpressionError:
        return False
    n_captured = n_total(task, operation, captured_sizes(task)) if or_as_captured else 0
    n_allowed = max(max_elements, n_captured)
    return all(all(shape) for shape in shapes) and sum(map(n_elements, shapes)) <= n_allowed


def n_total(task: Task, operation: OperationKind, sizes: Sizes) -> int:
    """Return the elements of all inputs and outputs. Raises ExpressionError for a negative size."""
    return sum(map(n_elements, _all_shapes(task, operation, sizes)))


def n_elements(shape: tuple[int, ...]) -> int:
    """Return the elements of a tensor."""
    return math.prod(shape)


def n_largest(graph: Graph, sizes: Sizes) -> int:
    """Return the elements of the largest tensor that the graph computes."""
    largest = 0
    for type_ in (type_ for node in graph.nodes for type_ in node.types if type_ is not None):
        with suppress(ExpressionError):  # e.g. a size that depends on values
            largest = max(largest, n_elements(shape_of(type_, sizes)))
    return largest


def _all_shapes(task: Task, operation: OperationKind, sizes: Sizes) -> list[tuple[int, ...]]:
    graph = graph_of(task, operation)
    types = [*graph.input_types, *(output.type for output in graph.outputs if output.type is not None)]
    return [shape_of(type_, sizes) for type_ in types]


def unjudged(bound: BoundOperation, family: str, n_blocks: int, n_blocks_run: int, **device: str) -> CaseResult:
    """Return the result of a case before its outputs are compared. `device` names one other than the executor."""
    return CaseResult(
        operation=bound.name,
        family=family,
        shapes={tensor.name: tensor.shape for tensor in bound.inputs},
        n_blocks=n_blocks,
        n_blocks_run=n_blocks_run,
        errors=(),
        **device,
    )


Plan = Sequence[tuple[Case, BoundOperation]]
"""The cases of one direction with the launches of each. The captured sizes come first."""


STAGE_WORDS = {"baselines": "wait for torch.compile", "gpu wait": "wait for the GPU"}
"""Descriptions of stages whose names do not say what is waited for."""


@dataclass
class StageTimes:
    """Elapsed time by stage, in seconds. The name of a concurrent stage says that it is concurrent."""

    stages_s: dict[str, float] = field(default_factory=dict, kw_only=True)
    n_cases: dict[str, tuple[int, int]] = field(default_factory=dict, kw_only=True)
    """Cases that are done, and all cases, by the stage that has them."""
    cancelled: list[str] = field(default_factory=list, kw_only=True)
    """Stages that were under way when the work was cancelled, innermost first."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to this stage."""
        started = time.monotonic()
        try:
            yield
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.add_stage(name, time.monotonic() - started)

    def add_stage(self, name: str, elapsed_s: float) -> None:
        """Add time to a stage."""
        self.stages_s[name] = self.stages_s.get(name, 0.0) + elapsed_s

    def words_of_cancelled(self) -> str:
        """Describe the stages that were cancelled: ``references, 12 of 31 cases, 96 s``. Empty without any."""
        return "; ".join(map(self._words_of, dict.fromkeys(self.cancelled)))

    def _words_of(self, stage: str) -> str:
        n_done, n_all = self.n_cases.get(stage, (0, 0))
        cases = f", {n_done} of {n_all} cases" if n_all else ""
        return f"{STAGE_WORDS.get(stage, stage)}{cases}, {self.stages_s[stage]:.0f} s"


@dataclass
class Progress(StageTimes):
    """Evidence that is filled in as stages pass. A verdict is made from it whenever a stage fails."""

    candidate_id: str
    findings: list[Finding] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    times: dict[str, Comparison] = field(default_factory=dict)
    estimates: list[Estimate] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    built: Built | None = None
    gpu: str = ""
    """Name of the GPU that it was assigned to."""
    has_atomics: bool = False
    """Some kernel has atomics on device memory: a value that one block wrote is not final."""
    singles_out_a_block: bool = False
    """Some kernel compares the block index with that of an inner block, which sampled blocks may not include."""
    may_wait: bool = False
    """Some kernel has a loop that may wait for another thread."""

    def piece(self) -> Progress:
        """Return an empty record for one concurrent check; `take` merges it."""
        return Progress(self.candidate_id, built=self.built, singles_out_a_block=self.singles_out_a_block)

    def take(self, piece: Progress) -> None:
        """Append the evidence of a concurrent check."""
        self.add_findings(piece.findings)
        self.notes += [note for note in piece.notes if note not in self.notes]
        self.cases += piece.cases
        self.times.update(piece.times)
        for name, elapsed_s in piece.stages_s.items():
            self.add_stage(name, elapsed_s)
        self.estimates += piece.estimates

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Add findings without duplicates."""
        self.findings += [finding for finding in findings if finding not in self.findings]


Look = Callable[[Progress], Awaitable[CheckOutcome | None]]
"""A check of a candidate, which records its evidence. None when nothing failed."""
