"""Make the values of one case in memory: inputs of its family, parameters and buffers near their own, gradients of its
results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from ..capture.captured import Captured, KeptParameters
from ..capture.inputs import TensorLeaf
from ..capture.task import DEFAULT_INTEGER_RANGE, evaluate_size, index_limits
from ..capture.validation import input_shapes, seeded
from ..failure import TargetFailure
from ..large_random import DeferredRandom, ParallelRandom, uniform
from ..oracle.case_filter import lowest_exponent
from ..oracle.roundings import rounding_ties
from .families import (
    SPARSE_FAMILIES,
    buffer_values,
    draw,
    near_own_values,
    own_generator,
    place_numbers,
    place_special,
    resized,
)
from .integers import PLAIN, UNLIMITED, limited, unlimited


@dataclass
class Case:
    """One case in memory. `inputs` has every tensor input of the user's call; `state` every other placeholder;
    `gradients` those of the floating outputs, once they are known. `seeds` has those of inputs that a file may
    describe, by index."""

    inputs: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    gradients: list[torch.Tensor]
    seeds: dict[int, int] = field(default_factory=dict)

    def on(self, device: torch.device, kept: KeptParameters) -> Case:
        """Return the case on another device, of whose large parameters there may be copies."""
        return Case(
            [kept.on(value, device) for value in self.inputs],
            {name: kept.on(value, device) for name, value in self.state.items()},
            [value.to(device) for value in self.gradients],
        )


def placeholder_values(captured: Captured, case: Case) -> list[torch.Tensor]:
    """Return the captured program's arguments of a case, in its order."""
    return [case.inputs[p.index] if p.role == "input" else case.state[p.node] for p in captured.program.placeholders]


def widened(value: torch.Tensor) -> torch.Tensor:
    """Convert floating values to float64, return others unchanged."""
    return value.double() if value.is_floating_point() else value


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TIES = "halves"
"""The family for rounding to integers, or to fractions and multiples that the code names."""
GIVEN = "given"
"""The family of the user's own `get_inputs`."""


@dataclass(frozen=True)
class Values:
    """The recipe of a case's values. Integers without a limit are those of the family `integers_of`. The numbers
    `placed` go into every input with a suitable dtype. Large inputs that a file may describe are made on `draws_on`."""

    captured: Captured
    family: str
    integers_of: str
    seed: int
    sizes: dict[sympy.Symbol, int]
    placed: tuple[float, ...] = ()
    draws_on: torch.device | None = None

    def make(self) -> Case:
        """Return the case, without gradients."""
        captured = self.captured
        shapes = input_shapes(captured, {**captured.captured_sizes, **self.sizes})
        given, seeds = self._given()
        leaves = captured.inputs.tensors
        inputs = [
            self._input(position, shape, own_family, given[position] if given is not None else None)
            for position, (shape, own_family) in enumerate(zip(shapes, self._own_families(shapes)))
        ]
        passed = [value for value, leaf in zip(inputs, leaves) if leaf.state is None]
        generator = own_generator(self.seed, self.family, "special")
        place_special(
            self.family,
            passed,
            generator,
            is_place_asked=captured.has("returns_indices"),
            lowest_exponent=lowest_exponent(captured),
        )
        placed = self.placed or (rounding_ties(captured) if self.family == TIES else ())
        for value in passed if placed else ():
            place_numbers(value, placed, own_generator(self.seed, self.family, "placed"))
        return Case(inputs, _state(captured, self.seed), [], seeds)

    def _own_families(self, shapes: Sequence[tuple[int, ...]]) -> list[str]:
        """Return the family of each input: not all of them have a sparse one."""
        leaves = self.captured.inputs.tensors
        sizes = [math.prod(s) if t.dtype.is_floating_point else 0 for s, t in zip(shapes, leaves)]
        is_shared = self.family not in SPARSE_FAMILIES
        return [self.family if is_shared or size == max(sizes) else "normal" for size in sizes]

    def _given(self) -> tuple[list[torch.Tensor] | None, dict[int, int]]:
        """Return the user's own inputs, and the seeds of those that a file may describe. They are made only for a case
        that has some of them: integers at the captured sizes, and all in the family of their own."""
        fresh, is_own = self.captured.inputs.fresh, self.family == GIVEN
        keeps_some = is_own or any(leaf.state is None and _is_integer(leaf) for leaf in self.captured.inputs.tensors)
        if fresh is None or not keeps_some or not are_captured(self.captured, self.sizes):
            return None, {}
        if is_own and self.draws_on is not None and (described := self._described(fresh, self.draws_on)) is not None:
            return described
        with seeded(self.seed), ParallelRandom():
            return fresh(), {}

    def _described(
        self, fresh: Callable[[], list[torch.Tensor]], device: torch.device
    ) -> tuple[list[torch.Tensor], dict[int, int]] | None:
        """Return the user's inputs, large ones made on the device, and the seeds of these; None where the user's code
        computes with them."""
        with seeded(self.seed), ParallelRandom(), DeferredRandom() as random:
            try:
                given = fresh()
            except TargetFailure:
                if random.was_read:
                    return None
                raise
        seeds = {index: seed for index, one in enumerate(given) if (seed := random.seed_of(one)) is not None}
        return None if random.was_read else ([_drawn(one, seeds.get(n), device) for n, one in enumerate(given)], seeds)

    def _input(self, position: int, shape: tuple[int, ...], family: str, own: torch.Tensor | None) -> torch.Tensor:
        leaf = self.captured.inputs.tensors[position]
        if leaf.state is not None:
            return _lifted_state(self.captured, leaf, shape, self.seed)
        is_kept = self.family == GIVEN or not leaf.dtype.is_floating_point
        if own is not None and is_kept and are_captured(self.captured, self.sizes):
            return own.clone() if self.placed else own
        if leaf.dtype.is_floating_point:
            return draw(family, shape, leaf.dtype, self.seed, leaf.name)
        return self._integers(position, shape)

    def _integers(self, position: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the integers of an input. A range that was only observed says nothing about other values: within it,
        all families are alike. A range that ends at a dim's size, e.g. `torch.randint(0, vocabulary, ...)`, scales with
        it."""
        leaf = self.captured.inputs.tensors[position]
        generator = own_generator(self.seed, self.family, leaf.name)
        size = self._size_indexed(position, self.sizes)
        known = leaf.integer_range or _observed_range(self.captured, position)
        if known and known[1] == self._size_indexed(position, self.captured.captured_sizes):
            known = (known[0], size or known[1])
        if known is None and size is None:
            is_unknown = self.captured.inputs.fresh is None
            return unlimited(self.integers_of if is_unknown else PLAIN, shape, leaf.dtype, generator)
        family = self.family if leaf.integer_range or size is not None else PLAIN
        return limited(family, shape, leaf.dtype, _within(known, size), generator)

    def _size_indexed(self, position: int, sizes: Mapping[sympy.Symbol, int]) -> int | None:
        """Return the size of the dim that the code indexes with this input, if it does."""
        captured = self.captured
        text = _limit_text(captured, position)
        names = captured.symbols.names
        return None if text is None else evaluate_size(text, {names[s]: n for s, n in sizes.items() if s in names})


def _drawn(given: torch.Tensor, seed: int | None, device: torch.device) -> torch.Tensor:
    """Return the numbers that an input stands for, on the device where they fit; any other input unchanged."""
    if seed is None:
        return given
    try:
        return uniform(given.shape, seed, device)
    except torch.OutOfMemoryError:
        return uniform(given.shape, seed, torch.device("cpu"))


def are_captured(captured: Captured, sizes: dict[sympy.Symbol, int]) -> bool:
    """Check whether the sizes are those of the capture."""
    return all(captured.captured_sizes.get(symbol, size) == size for symbol, size in sizes.items())


def has_unlimited_integers(captured: Captured, family: str) -> bool:
    """Check whether the family has integers that PyTorch may refuse: those of an input without a known range."""
    if family not in UNLIMITED or captured.inputs.fresh is not None:
        return False
    return any(
        leaf.state is None
        and not leaf.dtype.is_floating_point
        and leaf.integer_range is None
        and _limit_text(captured, position) is None
        for position, leaf in enumerate(captured.inputs.tensors)
    )


def _limit_text(captured: Captured, position: int) -> str | None:
    argument = next((a for a in captured.arguments if a.placeholder.index == position), None)
    return index_limits(captured).get(argument.name) if argument is not None else None


def _within(known: tuple[int, int] | None, size: int | None) -> tuple[int, int]:
    """Return [low, high), below the size of the indexed dim."""
    low, high = known or DEFAULT_INTEGER_RANGE
    if size is None:
        return low, high
    return max(low, -size), size if known is None else min(high, size)


def _observed_range(captured: Captured, position: int) -> tuple[int, int] | None:
    """Return [low, high) of the integers that the user's code makes for an input, which is run once per capture; None
    for truth values, and where there are none."""
    if captured.inputs.fresh is None or captured.inputs.tensors[position].dtype == torch.bool:
        return None
    if not captured.observed:
        with seeded(0), ParallelRandom():
            own = captured.inputs.fresh()
        captured.observed = {n: _range_of(value) for n, value in enumerate(own) if value.dtype in INTEGERS}
    return captured.observed[position]


def _range_of(own: torch.Tensor) -> tuple[int, int] | None:
    return (int(own.min()), int(own.max()) + 1) if own.numel() else None


def _is_integer(leaf: TensorLeaf) -> bool:
    return not leaf.dtype.is_floating_point


def _lifted_state(captured: Captured, leaf: TensorLeaf, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return a parameter near its own values, a buffer unchanged; at other sizes, values of the same distribution."""
    assert leaf.state is not None
    generator = own_generator(seed, "state", leaf.state.name)
    own = resized(captured.inputs.state[leaf.name], shape, generator)
    if leaf.state.role != "parameter":
        return buffer_values(own, generator)
    is_resized = own is not captured.inputs.state[leaf.name]
    return near_own_values(own, generator) if is_resized else captured.kept.near(leaf.state.name, own, seed)


def _state(captured: Captured, seed: int) -> dict[str, torch.Tensor]:
    """Return parameters near their own values, buffers and constants unchanged, by placeholder."""
    state = {}
    for placeholder in captured.program.placeholders:
        name = placeholder.qualified_name
        if placeholder.role == "parameter":
            state[placeholder.node] = captured.kept.near(name, placeholder.value, seed)
        elif placeholder.role == "buffer":
            state[placeholder.node] = buffer_values(placeholder.value, own_generator(seed, "state", name))
        elif placeholder.role == "constant":
            state[placeholder.node] = placeholder.value.detach().clone()
    return state
