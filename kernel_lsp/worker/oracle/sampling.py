"""Sample a large case: slices along a dim that the computation does not mix, whose references stay small. Where it
mixes all dims, references are computed whole and slices of their outputs compared.

sample = sample_of(captured, case, sizes, seed, device, from_bytes)  # None for a small case
results_of(captured, sample.of(case), ...)                            # as for any other case
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ..capture.captured import Captured
from ..capture.exported_program import quiet, user_outputs
from ..capture.symbols import expression_of, symbol_of
from ..cases.case_values import Case, placeholder_values
from ..cases.families import own_generator
from ..files import taken
from ..host import without_cuda
from .fp64_reference import run_exact

SHARE = 8
"""Divisor of the bytes from which cases are sampled: as many are sampled. An fp64 reference, its perturbed twin and
their intermediates take some thirty times as many."""
OUTPUT_SHARE = 8
"""Divisor of the slices of an output that are compared where its reference is computed whole, at least one for each
range. Only copies and comparisons are saved, 2.7 s for each candidate with an output of 4.3 GB."""
N_RANGES = 8
"""Ranges of adjacent slices. The first begins at the first slice, the last ends at the last one."""
LEAST_RANGES = 3
"""Minimum ranges: one lies at a random place."""
LEAST_SLICES = 2
"""Minimum slices of a run: a graph is captured for sizes from 2 on."""
LEAST_NUMBER = 0.125
SAME = 1e-7
"""Maximum relative difference of two fp64 results of one slice, of the largest: libraries add in another order."""


@dataclass(frozen=True)
class Axis:
    """A dim of each tensor input, None where an input is taken whole, and of each output."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """Ranges of slices along an axis, each as start and end."""

    axis: Axis
    ranges: tuple[tuple[int, int], ...]

    @property
    def is_of_outputs(self) -> bool:
        """Check whether results are computed from whole inputs, and sliced then."""
        return all(dim is None for dim in self.axis.inputs)

    def of(self, case: Case) -> Case:
        """Return the slices of a case as a case of its own."""
        inputs = [
            value if dim is None else taken(value, dim, self.ranges)
            for value, dim in zip(case.inputs, self.axis.inputs)
        ]
        return Case(inputs, case.state, case.gradients)

    def of_results(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the slices of whole outputs, or of masks of them; none of none."""
        return [taken(result, dim, self.ranges) for result, dim in zip(results, self.axis.outputs)]


def sample_of(
    captured: Captured, case: Case, sizes: dict[sympy.Symbol, int], seed: int, device: torch.device, from_bytes: int
) -> Sample | None:
    """Return the slices to compare of a case with at least `from_bytes` of inputs and outputs; None where all of it is
    compared."""
    nodes = user_outputs(captured.program.functional)
    shapes = [shape for node in nodes if (shape := _shape(node, sizes)) is not None]
    if len(shapes) < len(nodes):
        return None
    bytes_of = [value.nbytes for value in case.inputs]
    output_bytes = sum(math.prod(shape) * node.meta["val"].dtype.itemsize for shape, node in zip(shapes, nodes))
    if sum(bytes_of) + output_bytes < from_bytes:
        return None
    for symbol, axis in axes(captured).items():
        n_whole = sizes[symbol]
        sliced = output_bytes + sum(n for n, dim in zip(bytes_of, axis.inputs) if dim is not None)
        n_slices = max(_least(captured, symbol), from_bytes // SHARE * n_whole // max(sliced, 1))
        if 2 * n_slices < n_whole and is_separable(captured, case, symbol, axis, device):
            return Sample(axis, _ranges(n_whole, max(n_slices, LEAST_RANGES), seed))
    return _of_outputs(shapes, len(case.inputs), seed) if output_bytes >= from_bytes // 2 else None


def _of_outputs(shapes: Sequence[tuple[int, ...]], n_inputs: int, seed: int) -> Sample | None:
    """Return slices of whole outputs, along the first dim of enough slices of which each output has one; None without
    one."""
    for n_whole in shapes[0] if shapes else ():
        n_slices = max(N_RANGES, n_whole // OUTPUT_SHARE)
        if 2 * n_slices <= n_whole and all(n_whole in shape for shape in shapes):
            axis = Axis((None,) * n_inputs, tuple(shape.index(n_whole) for shape in shapes))
            return Sample(axis, _ranges(n_whole, n_slices, seed))
    return None


def _ranges(n_whole: int, n_slices: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges: the first, the last, and one at a random place of each stratum of all that lies between."""
    n_ranges = min(N_RANGES, n_slices)
    length, generator = n_slices // n_ranges, own_generator(seed, "sample")
    starts, n_strata, n_between = [0], n_ranges - 2, n_whole - 2 * length
    for position in range(n_strata):
        low, high = (length + number * n_between // n_strata for number in (position, position + 1))
        starts.append(int(torch.randint(low, high - length + 1, (), generator=generator)))
    starts += [n_whole - length] if n_ranges > 1 else []
    return tuple((start, start + length) for start in starts)


def axes(captured: Captured) -> dict[sympy.Symbol, Axis]:
    """Return the symbols that are exactly one dim of every output, and at most one of each input."""
    found = {}
    fakes: dict[int, Any] = {
        placeholder.index: fake
        for placeholder, fake in zip(captured.program.placeholders, captured.program.fake_inputs)
        if placeholder.role == "input"
    }
    outputs = [node.meta["val"] for node in user_outputs(captured.program.functional)]
    for symbol in captured.captured_sizes:
        dims = [_dims(fakes[index], symbol) for index in range(len(captured.inputs.tensors)) if index in fakes]
        results = [_dims(output, symbol) for output in outputs]
        if len(dims) != len(captured.inputs.tensors) or not all(len(each) == 1 for each in results):
            continue
        if all(len(each) <= 1 and -1 not in each for each in (*dims, *results)):
            found[symbol] = Axis(tuple(each[0] if each else None for each in dims), tuple(d[0] for d in results))
    return found


def is_separable(captured: Captured, case: Case, symbol: sympy.Symbol, axis: Axis, device: torch.device) -> bool:
    """Check, once per capture, that results of a few slices depend neither on other slices nor on their place: those of
    reordered slices are the reordered results, and so are those of a part alone. The slices are random numbers, since
    slices of equal numbers would agree whatever the code does."""
    if symbol not in captured.separable:
        try:
            least = _least(captured, symbol)
            captured.separable[symbol] = _agree_in_any_order(captured, case, axis, least, device)
        except Exception:  # any operator may refuse the sizes, with any exception: the case is then made whole
            captured.separable[symbol] = False
    return captured.separable[symbol]


def _agree_in_any_order(captured: Captured, case: Case, axis: Axis, least: int, device: torch.device) -> bool:
    n_whole, generator = 2 * least + 1, own_generator(0, "order")
    numbers = torch.Generator(device).manual_seed(generator.initial_seed())
    inputs = [
        value if dim is None else _random_slices(value, dim, n_whole, numbers)
        for value, dim in zip(case.inputs, axis.inputs)
    ]
    slices = Case(inputs, case.state, case.gradients).on(device, captured.kept)
    order = torch.randperm(n_whole, generator=generator).tolist()

    def results(places: Sequence[int]) -> list[torch.Tensor]:
        chosen = Sample(axis, tuple((place, place + 1) for place in places)).of(slices)
        with quiet(), without_cuda(), torch.no_grad(), device:
            return run_exact(captured.program, placeholder_values(captured, chosen))

    whole = results(range(n_whole))
    return all(
        _are_same(one.index_select(dim, torch.tensor(places, device=one.device)), other)
        for places in (order, order[:least], order[least:])
        for one, other, dim in zip(whole, results(places), axis.outputs)
    )


def _random_slices(value: torch.Tensor, dim: int, n: int, numbers: torch.Generator) -> torch.Tensor:
    """Return positive numbers in the shape of the first `n` slices, which every function of a target takes, made on the
    generator's device: five slices of an input may have many GB. Integers are the value's own."""
    if not value.is_floating_point():
        return taken(value, dim, ((0, n),))
    shape = value.narrow(dim, 0, n).shape
    return torch.rand(shape, generator=numbers, device=numbers.device).add_(LEAST_NUMBER).to(value.dtype)


def _least(captured: Captured, symbol: sympy.Symbol) -> int:
    return max(LEAST_SLICES, captured.bounds[symbol].minimum)


def _dims(fake: Any, symbol: sympy.Symbol) -> list[int]:
    """Return the dims that are the symbol, and -1 for those computed from it."""
    found = []
    for dim, size in enumerate(fake.shape):
        expression = expression_of(size)
        if expression is not None and symbol in expression.free_symbols:
            found.append(dim if symbol_of(size) == symbol else -1)
    return found


def _shape(node: Any, sizes: dict[sympy.Symbol, int]) -> tuple[int, ...] | None:
    """Return the shape of an output; None where a dim is not determined by the sizes."""
    found = []
    for size in node.meta["val"].shape:
        expression = expression_of(size)
        value = size if expression is None else expression.subs(sizes)
        if expression is not None and not value.is_Integer:
            return None
        found.append(int(value))
    return tuple(found)


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    largest = float(torch.nan_to_num(one, posinf=0.0, neginf=0.0).abs().amax()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=SAME, atol=SAME * largest, equal_nan=True)
