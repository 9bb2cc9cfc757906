"""Generalize the definitions of a loop's steps to one over the number of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    IndexValue,
    Operation,
    Scalar,
    accesses,
    as_position,
    index_value,
)
from kernel_lsp.generate.ir.tensor import Buffer, Pointwise, Reduction, Tensor, through_views
from kernel_lsp.generate.lowering.builder import positions

MAX_STEPS_BACK = 4
"""Maximum steps back that a step may read, as filters do."""


class NoLoopError(Exception):
    """The steps differ in more than their number, or no kernel can have them."""


class OpenSizesError(NoLoopError):
    """A block needs these sizes as constants."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(*sorted(names))
        self.names = names


@dataclass
class Steps:
    """The tensors of each step, and the definitions that all steps share.

    `definitions` are over those of `now` and `before`, which stand for a tensor of the same step and of the one before;
    `firsts` has what the first step reads in place of the latter. All are by the tensor's place in its step.
    """

    tensors: Sequence[Sequence[Tensor]]
    step: Variable
    now: list[Tensor] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)
    definitions: list[Pointwise | Reduction] = field(default_factory=list)
    firsts: dict[int, Pointwise] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Sequence[Sequence[Tensor]]) -> Steps:
        """Generalize the steps. Raises NoLoopError where they are no loop."""
        one = tensors[0]
        found = cls(tensors, Variable("step", -1, as_index(len(tensors))))
        found.now = [_stand_in(tensor, tensor.serial) for tensor in one]
        found.before = [_stand_in(tensor, tensor.serial - 1) for tensor in one]
        merger = _Merger(found)
        for place in range(len(one)):
            found.definitions.append(merger.definition([step[place] for step in tensors]))
        found.definitions += merger.delays
        return found

    def needs(self, place: int) -> list[tuple[int, int]]:
        """Return the places that a definition reads, each with the steps back."""
        definition, found = self.definitions[place], list[tuple[int, int]]()
        places = {tensor: (at, 0) for at, tensor in enumerate(self.now)}
        places |= {tensor: (at, 1) for at, tensor in enumerate(self.before)}
        for scalar in _scalars(definition):
            found += [places[access.tensor] for access in accesses(scalar) if access.tensor in places]
        return list(dict.fromkeys(found))


def _stand_in(tensor: Tensor, serial: int) -> Tensor:
    return Tensor(f"{tensor.name}_step", serial, tensor.dtype, tensor.shape, Buffer(), tensor.source)


def _scalars(definition: Pointwise | Reduction) -> list[Scalar]:
    if isinstance(definition, Reduction) and definition.contraction is not None:
        return [definition.contraction.left, definition.contraction.right]
    return [definition.body]


class _Merger:
    """Merges the scalars of all steps. `places` has the step and the place of each tensor."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.n_steps = len(steps.tensors)
        self.places = {t: (k, place) for k, step in enumerate(steps.tensors) for place, t in enumerate(step)}
        self.done: dict[tuple[bytes, ...], Scalar] = {}
        self.delays: list[Pointwise] = []
        self._delayed: dict[tuple[int, int], int] = {}
        self.variables: tuple[Variable, ...] = ()

    def definition(self, tensors: Sequence[Tensor]) -> Pointwise | Reduction:
        """Return the definition of the tensors of a place."""
        one = tensors[1].definition
        assert isinstance(one, Pointwise | Reduction)
        if isinstance(one, Reduction) and one.contraction is not None and one.contraction.phases is not None:
            raise NoLoopError("phases")
        self.done, self.variables = {}, one.variables
        by_step = [self._scalars_like(tensor.definition, one) for tensor in tensors]
        merged = [self.merge(list(each)) for each in zip(*by_step, strict=True)]
        if isinstance(one, Pointwise):
            return replace(one, body=merged[0])
        if one.contraction is None:
            return replace(one, body=merged[0])
        contraction = replace(one.contraction, left=merged[1], right=merged[2], library=None)
        return replace(one, body=merged[0], contraction=contraction)

    def _scalars_like(self, definition: object, one: Pointwise | Reduction) -> list[Scalar]:
        """Return the scalars of a definition over the variables of another one."""
        if type(definition) is not type(one):
            raise NoLoopError("kinds")
        assert isinstance(definition, Pointwise | Reduction)
        pairs = list(zip(_variables(definition), _variables(one), strict=True))
        if any(own.extent != other.extent for own, other in pairs):
            raise NoLoopError("sizes")
        if isinstance(definition, Reduction) and isinstance(one, Reduction) and definition.kind != one.kind:
            raise NoLoopError("kinds")
        scalars = [definition.body]
        if isinstance(definition, Reduction) and definition.contraction is not None:
            scalars += [definition.contraction.left, definition.contraction.right]
        new = {own: as_index(other) for own, other in pairs}
        return [through_views(scalar.substitute(new)) for scalar in scalars]

    def merge(self, nodes: list[Scalar]) -> Scalar:
        """Return the scalar of any step."""
        key = tuple(node.digest for node in nodes)
        if key not in self.done:
            self.done[key] = self._merged(nodes)
        return self.done[key]

    def _merged(self, nodes: list[Scalar]) -> Scalar:
        one = nodes[1]
        if (back := self._steps_back(nodes)) is not None:
            return self._from_before(nodes, back)
        if one.dtype is DType.I64 and all(isinstance(node, IndexValue | Constant) for node in nodes):
            return index_value(self._index([as_position(node) for node in nodes]))
        if any(type(node) is not type(one) or node.dtype != one.dtype for node in nodes):
            raise NoLoopError("kinds")
        if isinstance(one, Access):
            return self._access([node for node in nodes if isinstance(node, Access)])
        if all(node == one for node in nodes):
            return one
        names = {(node.name, len(node.operands)) if isinstance(node, Operation) else None for node in nodes}
        if None in names or len(names) > 1:
            raise NoLoopError("operations")
        operands = [self.merge(list(each)) for each in zip(*(node.operands for node in nodes), strict=True)]
        return one.rebuilt(tuple(operands))

    def _access(self, nodes: list[Access]) -> Scalar:
        one = nodes[1]
        tensors = {node.tensor for node in nodes}
        places = [self.places.get(node.tensor) for node in nodes]
        at = places[1]
        if len(tensors) == 1 and at is None:
            tensor = one.tensor
        elif at is not None and places == [(step, at[1]) for step in range(self.n_steps)]:
            tensor = self.steps.now[at[1]]
        else:
            raise NoLoopError("tensors")
        return Access(tensor, self._indices(nodes), self._mask(nodes))

    def _mask(self, nodes: Sequence[Access]) -> Scalar | None:
        masks = [node.mask for node in nodes if node.mask is not None]
        if masks and len(masks) < len(nodes):
            raise NoLoopError("masks")
        return self.merge(masks) if masks else None

    def _indices(self, nodes: Sequence[Access]) -> list[Index]:
        return [self._index(list(each)) for each in zip(*(node.index for node in nodes), strict=True)]

    def _index(self, indices: list[Index]) -> Index:
        """Return the index of any step, which grows by the same from step to step."""
        start, growth = indices[0], indices[1] - indices[0]
        if growth.variables or growth.reads_memory:
            raise NoLoopError("indices")
        if any(index != start + growth * step for step, index in enumerate(indices)):
            raise NoLoopError("indices")
        return start + growth * as_index(self.steps.step)

    def _steps_back(self, nodes: list[Scalar]) -> int | None:
        """Return how many steps back the nodes read; None where they read no earlier step."""
        places = [self.places.get(node.tensor) if isinstance(node, Access) else None for node in nodes]
        if (last := places[-1]) is None or not 0 < (back := self.n_steps - 1 - last[0]) <= MAX_STEPS_BACK:
            return None
        wanted = [(step - back, last[1]) for step in range(back, self.n_steps)]
        return back if places[back:] == wanted else None

    def _from_before(self, nodes: list[Scalar], back: int) -> Scalar:
        """Return the read of an earlier step, and keep what the first steps read in its place."""
        later = [node for node in nodes[back:] if isinstance(node, Access)]
        place, index = self.places[later[0].tensor][1], later[0].index
        if any(node.index != index or node.mask != later[0].mask for node in later):
            raise NoLoopError("indices")
        for step, node in enumerate(nodes[:back]):
            own = self._delay(place, back - 1 - step)
            first = _as_definition(node, index, self.steps.before[own])
            known = self.steps.firsts.setdefault(own, first)
            if known.body.substitute(dict(zip(known.variables, positions(first.variables), strict=True))) != first.body:
                raise NoLoopError("first values")
        return Access(self.steps.before[self._delay(place, back - 1)], index, later[0].mask)

    def _delay(self, place: int, steps: int) -> int:
        """Return the place of a tensor that holds another one's value of so many steps before."""
        if not steps:
            return place
        if (place, steps) not in self._delayed:
            source = self._delay(place, steps - 1)
            now, before = self.steps.now[source], self.steps.before[source]
            own = tuple(Variable(f"f{axis}", -2 - axis, size) for axis, size in enumerate(now.shape))
            self._delayed[place, steps] = len(self.steps.now)
            name = f"{self.steps.now[place].name}_{steps}"
            for made in (self.steps.now, self.steps.before):
                made.append(Tensor(name, -1 - 2 * len(made), now.dtype, now.shape, Buffer(), now.source))
            self.delays.append(Pointwise(own, Access(before, positions(own))))
        return self._delayed[place, steps]


def _variables(definition: Pointwise | Reduction) -> tuple[Variable, ...]:
    return definition.variables if isinstance(definition, Pointwise) else definition.domain


def _as_definition(scalar: Scalar, index: Sequence[Index], tensor: Tensor) -> Pointwise:
    """Return the definition of a tensor whose element at `index` is the scalar."""
    own = tuple(Variable(f"f{axis}", -2 - axis, size) for axis, size in enumerate(tensor.shape))
    at = positions(own)
    if isinstance(scalar, Access) and scalar.tensor.shape == tensor.shape and scalar.index == tuple(index):
        return Pointwise(own, Access(scalar.tensor, at))
    replacements: dict[Variable, Index] = {}
    for position, place in zip(index, at, strict=True):
        atom = position.atom
        if position.constant == 0 and place.constant == 0:
            continue
        if not isinstance(atom, Variable) or atom in replacements:
            raise NoLoopError("first values")
        replacements[atom] = place
    found = scalar.substitute(replacements)
    if not found.variables <= set(own):
        raise NoLoopError("first values")
    return Pointwise(own, found)
