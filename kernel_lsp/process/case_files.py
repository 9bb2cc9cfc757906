"""The files of a case: its inputs and the expectations of its outputs, as the worker describes them in its replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.core.dtype import DType


@dataclass(frozen=True)
class CaseTensor:
    """A tensor in a file: raw, little-endian, row-major. `dtype` is that of the stored bytes."""

    name: str
    path: Path
    dtype: DType
    shape: tuple[int, ...]

    @property
    def entry(self) -> dict[str, Any]:
        """Return the tensor as a worker's requests describe it."""
        return {"name": self.name, "path": str(self.path), "dtype": self.dtype.value, "shape": list(self.shape)}


@dataclass(frozen=True)
class Rounding:
    """PyTorch's own rounding error for one output, over the `n_finite` elements that are finite in both results.

    `native_...` is the distance of its result at the declared dtype from the fp64 reference; `response_...` is the
    change of the reference when the inputs change by one rounding. Norms are absolute. `has_one_answer` marks a 16-bit
    output that is rounded exactly once, and must therefore be correctly rounded. `may_recur` marks a task with integer
    inputs, which may look up few numbers many times.
    """

    n_finite: int
    reference_l2: float
    native_l2: float
    native_max: float
    response_l2: float
    response_max: float
    has_one_answer: bool = False
    may_recur: bool = False


@dataclass(frozen=True)
class ChosenFrom:
    """Values that an integer output indexes along `dim`: `values` are float64, with numbers for NaN and infinities.
    `ties` masks the elements for which the index of any equal element is correct. Elements are equal if they differ by
    at most `unit` times the larger of their magnitude and `least`."""

    values: CaseTensor
    ties: CaseTensor
    dim: int
    unit: float
    least: float
    each_once: bool


@dataclass(frozen=True)
class Slices:
    """Ranges of slices, each as start and end, along one dim of each output, by its name. Results are compared there
    alone, and `expected` has these slices one after the other."""

    ranges: tuple[tuple[int, int], ...]
    dims: Mapping[str, int]

    @property
    def n(self) -> int:
        """Return the number of slices."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True)
class CaseOutput:
    """Expectations of one output. `reference` is in fp64; `native` is PyTorch's result at the declared dtype, as
    float64 bytes, if that is not floating-point or not finite throughout. `unspecified` masks elements for which any
    value is correct. `chosen` describes the values that integers index: PyTorch does not specify which of equal
    elements it selects. `may_lose_nans`: `reference` has the alternative to a NaN of PyTorch's, which is correct,
    too."""

    name: str
    dtype: DType
    reference: CaseTensor
    native: CaseTensor | None
    unspecified: CaseTensor | None
    chosen: ChosenFrom | None
    rounding: Rounding
    may_lose_nans: bool

    @property
    def tensors(self) -> tuple[CaseTensor, ...]:
        """Return all tensors."""
        choice = () if self.chosen is None else (self.chosen.values, self.chosen.ties)
        return tuple(each for each in (self.reference, self.native, self.unspecified, *choice) if each is not None)


@dataclass(frozen=True)
class CaseFiles:
    """One case on disk. `eager_bytes` is the peak memory of PyTorch's own run in addition to its inputs if it ran on a
    GPU, else 0. `is_degenerate` marks an inconclusive case: most of the reference is not finite, or the family cannot
    be generated; `reason` says which."""

    family: str
    seed: int
    inputs: tuple[CaseTensor, ...]
    outputs: tuple[CaseOutput, ...] = ()
    eager_bytes: int = 0
    is_degenerate: bool = False
    reason: str = ""
    slices: Slices | None = None
    """Sample of slices at which a large case is compared; None where all are compared."""


def tensor_of(entry: Mapping[str, Any]) -> CaseTensor:
    """Return the tensor that a worker's reply describes."""
    return CaseTensor(entry["name"], Path(entry["path"]), DType(entry["dtype"]), tuple(entry["shape"]))


def output_of(entry: Mapping[str, Any]) -> CaseOutput:
    """Return the expectations that a worker's reply describes."""
    native, unspecified, chosen = entry["native"], entry["unspecified"], entry["chosen"]
    return CaseOutput(
        name=entry["name"],
        dtype=DType(entry["dtype"]),
        reference=tensor_of(entry["reference"]),
        native=native and tensor_of(native),
        unspecified=unspecified and tensor_of(unspecified),
        chosen=chosen
        and ChosenFrom(**{**chosen, "values": tensor_of(chosen["values"]), "ties": tensor_of(chosen["ties"])}),
        rounding=Rounding(**entry["rounding"]),
        may_lose_nans=entry["may_lose_nans"],
    )


def slices_of(entry: Mapping[str, Any] | None) -> Slices | None:
    """Return the sample that a worker's reply describes, where it took one."""
    if entry is None:
        return None
    return Slices(tuple((start, end) for start, end in entry["ranges"]), entry["dims"])
