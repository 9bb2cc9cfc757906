"""Sums of a contraction's results along dims that one factor alone has: that factor is summed before the products.

``sum over n of (sum over k of left(m, k) * right(k, n))`` is ``sum over k of left(m, k) * (sum over n of right(k,
n))``.
An average pool behind a convolution of 1 x 1 pools the convolution's input, a mean over all positions needs one sum per
channel and tap, and a sum over the features of a linear layer is a product with one column. Scales and offsets between
the two apply to the sum.

Both forms are equal in exact arithmetic, and finite for the same inputs but for overflow. What an infinity or a NaN of
the inputs reaches is NaN or infinite in both: where infinities of both signs meet, or one meets a zero, PyTorch may
have NaN, and this form an infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Quotient, Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import (
    TRUE,
    Access,
    Constant,
    Operation,
    Scalar,
    both,
    compare,
    guarded,
    in_range,
    index_value,
    operands_of,
)
from kernel_lsp.generate.ir.sizes import coefficient
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, Tensor, through_views
from kernel_lsp.generate.lowering.arithmetic import number, op
from kernel_lsp.generate.lowering.builder import Body, Builder, Call, Shape, positions
from kernel_lsp.generate.structure.attention_patterns import find_attention

WIDE = (DType.F32, DType.F64)
"""Element types of factors: a sum that is stored in 16 bits would be rounded more often than PyTorch's."""
MIN_GAIN = 2
"""Minimum ratio of the products before to the additions and products after."""
Summing = Callable[[Scalar], Scalar]


@dataclass(frozen=True)
class Windows:
    """Sums over windows along `axes` of a tensor. A result has `extents` along them, and `n_terms` is the number of
    elements of a window; None for one window that is all of the axes.

    `count` returns the number of elements of a window along some of `axes`, by their places, at a result's index.
    `add_up` takes a shape, the place among `axes` of each dim of it that is summed, and an element at an index; it
    returns the tensor of the sums, whose summed dims have `extents`."""

    axes: tuple[int, ...]
    extents: tuple[Index, ...]
    n_terms: int | None
    count: Callable[[Sequence[Index], Sequence[int], DType], Scalar]
    add_up: Callable[[Shape, Mapping[int, int], Body], Tensor]


def summed_product(call: Call, source: Tensor, windows: Windows) -> Tensor | None:
    """Return the sums over windows of a tensor that is linear in a contraction, with one of its factors summed. None
    where something else reads the tensor or the contraction, and where that saves less than half of the arithmetic."""
    builder = call.builder
    domain = builder.variables(source.shape)
    linear = _linear(call, Access(source, positions(domain))) if builder.workload is not None else None
    if linear is None:
        return None
    summed = {domain[axis]: place for place, axis in enumerate(windows.axes) if source.shape[axis].constant != 1}
    for other in linear.factors:
        if not summed.keys().isdisjoint(other.variables):
            return None
    moved = _Moved.of(builder, linear.product, summed, windows)
    if moved is None:
        return None
    total, sums = (
        moved.contraction(),
        {other.digest: _sum_of(builder, other, domain, windows) for other in linear.offsets},
    )
    shape = list(source.shape)
    for axis, extent in zip(windows.axes, windows.extents, strict=True):
        shape[axis] = extent

    def body(index: tuple[Index, ...]) -> Scalar:
        place = dict(zip(domain, index, strict=True))
        inner = Access(total, [substitute(position, place) for position in linear.product.index])
        return linear.sum_of(inner, lambda other: sums[other.digest](index)).substitute(place)

    return builder.pointwise(total.dtype, tuple(shape), body, name="sum")


@dataclass(frozen=True)
class _Linear:
    """A value that is linear in `product`, an element of a contraction. `sum_of` takes the sum of the latter, and what
    sums other values, and returns the sum of the value. `factors` must be the same in all terms; `offsets` are those
    that it has summed."""

    product: Access
    sum_of: Callable[[Scalar, Summing], Scalar]
    factors: tuple[Scalar, ...] = ()
    offsets: tuple[Scalar, ...] = ()


def _linear(call: Call, scalar: Scalar) -> _Linear | None:
    """Return a value as a linear one of a contraction's that nothing else reads; None where it is none."""
    if isinstance(scalar, Access):
        definition = scalar.tensor.definition
        if scalar.mask is not None or not call.is_read_once(scalar.tensor):
            return None
        if isinstance(definition, Pointwise):
            return _linear(call, definition.body.substitute(dict(zip(definition.variables, scalar.index, strict=True))))
        is_product = isinstance(definition, Reduction) and definition.contraction is not None
        return _Linear(scalar, lambda total, summing: total) if is_product else None
    if not isinstance(scalar, Operation) or scalar.dtype not in WIDE:
        return None
    if scalar.name == "neg":
        negated = _linear(call, scalar.operands[0])
        return negated if negated is None else _negative(negated)
    if scalar.name not in ("add", "sub", "mul", "div"):
        return None
    left, right = scalar.operands
    if (inner := _linear(call, left)) is not None:
        return _combined(scalar.name, inner, right, is_left=True)
    if scalar.name != "div" and (inner := _linear(call, right)) is not None:
        return _combined(scalar.name, inner, left, is_left=False)
    return None


def _combined(name: str, inner: _Linear, other: Scalar, *, is_left: bool) -> _Linear | None:
    """Return the value that an operation makes of a linear one, its left operand or its right one, and of another."""
    if other.dtype not in WIDE:
        return None
    is_offset = name in ("add", "sub")

    def sum_of(total: Scalar, summing: Summing) -> Scalar:
        value, second = inner.sum_of(total, summing), summing(other) if is_offset else other
        return op(name, value, second) if is_left else op(name, second, value)

    if is_offset:
        return _Linear(inner.product, sum_of, inner.factors, (*inner.offsets, other))
    return _Linear(inner.product, sum_of, (*inner.factors, other), inner.offsets)


def _negative(inner: _Linear) -> _Linear:
    return replace(inner, sum_of=lambda total, summing: op("neg", inner.sum_of(total, summing)))


def _sum_of(
    builder: Builder, other: Scalar, domain: Sequence[Variable], windows: Windows
) -> Callable[[Sequence[Index]], Scalar]:
    """Return what gives the sum of a value over the window of a result, at the result's index."""
    axes = [axis for axis in range(len(domain)) if domain[axis] in other.variables]
    places = {axes.index(axis): place for place, axis in enumerate(windows.axes) if axis in axes}
    alike = [place for place in range(len(windows.axes)) if place not in places.values()]
    shape = tuple(domain[axis].extent for axis in axes)

    def body(index: tuple[Index, ...]) -> Scalar:
        return other.substitute({domain[axis]: position for axis, position in zip(axes, index, strict=True)})

    added = windows.add_up(shape, places, body) if places else None

    def of_window(index: Sequence[Index]) -> Scalar:
        value = other if added is None else Access(added, [index[axis] for axis in axes])
        return op("mul", value, windows.count(index, alike, other.dtype)) if alike else value

    return of_window


@dataclass(frozen=True)
class _Factor:
    """A factor of a contraction whose reads are summed. Its sums have a dim for each of `dims`: a variable, or a dim of
    the tensor that it reads, whose position is that of the read. Where `inside` holds, the sum has the terms for which
    `is_term` does. `places` are the windows of the variables that are summed."""

    read: Access
    inside: Scalar
    is_term: Scalar
    dims: tuple[Variable | int, ...]
    places: Mapping[Variable, int]

    @classmethod
    def of(cls, builder: Builder, factor: Scalar, places: Mapping[Variable, int], windows: Windows) -> _Factor | None:
        """Return the factor, None unless it is one read under a condition, and 0 elsewhere."""
        condition: Scalar = TRUE
        read = factor
        if operands := operands_of(factor, "select"):
            condition, read, otherwise = operands
            if not isinstance(otherwise, Constant) or otherwise.value != 0:
                return None
        if not isinstance(read, Access) or (read.mask or TRUE) != condition or read.dtype not in WIDE:
            return None
        if any(position.reads_memory for position in read.index):
            return None
        read = Access(read.tensor, read.index)
        if windows.n_terms is None:
            read, condition, places = _by_source(builder, read, condition, places)
        inside: Scalar = TRUE
        is_term: Scalar = TRUE
        for part in _parts(condition):
            if part.variables.isdisjoint(places):
                inside = both(inside, part)
            else:
                is_term = both(is_term, part)
        axes = [axis for axis, position in enumerate(read.index) if not position.variables.isdisjoint(places)]
        moving = is_term.variables.union(*(read.index[axis].variables for axis in axes))
        dims: list[Variable | int] = []
        for axis, position in enumerate(read.index):
            if axis in axes:
                dims += _in_order(moving - places.keys(), dims)
                dims += _in_order(position.variables & places.keys(), dims)
            else:
                dims += [axis] if position.variables else []
        return cls(read, inside, is_term, tuple(dims), places)

    @property
    def shape(self) -> Shape:
        """The sizes along `dims`, before the sum."""
        return tuple(d.extent if isinstance(d, Variable) else self.read.tensor.shape[d] for d in self.dims)

    def term(self, index: Sequence[Index]) -> Scalar:
        """Return a term at an index of `dims`."""
        place = {d: position for d, position in zip(self.dims, index, strict=True) if isinstance(d, Variable)}
        of_axis = {d: position for d, position in zip(self.dims, index, strict=True) if isinstance(d, int)}
        at = [of_axis.get(axis, substitute(p, place)) for axis, p in enumerate(self.read.index)]
        return guarded(self.is_term.substitute(place), Access(self.read.tensor, at), number(0, self.read))

    def of_sums(self, sums: Tensor, place: Mapping[Variable, Index]) -> Scalar:
        """Return the new factor, which reads the sums, with the contraction's variables replaced."""
        whole = {variable: ZERO for variable in self.places if variable not in place}
        at = [self.read.index[d] if isinstance(d, int) else as_index(d) for d in self.dims]
        return guarded(self.inside, Access(sums, at), number(0, self.read)).substitute({**place, **whole})


def _in_order(variables: Collection[Variable], taken: Collection[Variable | int]) -> list[Variable]:
    return sorted((each for each in variables if each not in taken), key=lambda each: each.serial)


def _by_source(
    builder: Builder, read: Access, condition: Scalar, places: Mapping[Variable, int]
) -> tuple[Access, Scalar, Mapping[Variable, int]]:
    """Return the read and its condition with sums over positions of the tensor that is read, where a position of the
    contraction reads one: the sums of taps are then of the same elements but for the edges."""
    found = dict(places)
    for axis, position in enumerate(read.index):
        for variable in _in_order(position.variables & places.keys(), ()):
            (own,) = builder.variables([read.tensor.shape[axis]], names=[variable.name])
            solved = _solved(position, variable, as_index(own), _parts(condition))
            others = frozenset().union(*(other.variables for n, other in enumerate(read.index) if n != axis))
            if solved is None or variable in others or not solved.variables.isdisjoint(places):
                continue
            place = {variable: solved}
            at = [substitute(other, place) if n != axis else as_index(own) for n, other in enumerate(read.index)]
            read = Access(read.tensor, at)
            condition = both(condition.substitute(place), in_range(solved, variable.extent))
            found[own] = found.pop(variable)
    return read, condition, found


def _solved(position: Index, variable: Variable, value: Index, conditions: Sequence[Scalar]) -> Index | None:
    """Return the only value of the variable that meets the conditions and for which a position is `value`; None where
    that is not found."""
    moving = [monomial for monomial, _ in position.terms if any(variable in atom.variables for atom in monomial)]
    quotient = moving[0][0] if len(moving) == 1 and len(moving[0]) == 1 else None
    stride = quotient.divisor.constant if isinstance(quotient, Quotient) else None
    if not isinstance(quotient, Quotient) or stride is None:
        return value - (position - as_index(variable)) if coefficient(position, variable) == ONE else None
    if compare("eq", index_value(quotient.dividend % stride), index_value(ZERO)) not in conditions:
        return None  # several values of the variable have one position
    before = position - as_index(quotient)
    if coefficient(quotient.dividend, variable) != ONE or variable in before.variables:
        return None
    return (value - before) * stride - (quotient.dividend - as_index(variable))


def _parts(condition: Scalar) -> list[Scalar]:
    """Return the conditions that all hold where this one does."""
    if condition == TRUE:
        return []
    parts = operands_of(condition, "logical_and")
    return [each for part in parts for each in _parts(part)] if parts else [condition]


@dataclass(frozen=True)
class _Moved:
    """A contraction with one or both factors summed over windows: `places` has the window's place of each variable of
    the contraction that is summed."""

    builder: Builder
    tensor: Tensor
    definition: Reduction
    places: Mapping[Variable, int]
    windows: Windows
    sides: tuple[Scalar, Scalar]
    factors: tuple[_Factor | None, _Factor | None]

    @classmethod
    def of(cls, builder: Builder, product_: Access, summed: Mapping[Variable, int], windows: Windows) -> _Moved | None:
        """Return what a sum over variables of the contraction's reader becomes; None where it has no such form or saves
        nothing."""
        tensor, definition = product_.tensor, product_.tensor.definition
        assert isinstance(definition, Reduction)
        assert definition.contraction is not None
        places: dict[Variable, int] = {}
        for variable, place in summed.items():
            at = [axis for axis, position in enumerate(product_.index) if variable in position.variables]
            if len(at) != 1 or product_.index[at[0]] != as_index(variable):
                return None
            places[definition.variables[at[0]]] = place
        sides = (through_views(definition.contraction.left), through_views(definition.contraction.right))
        if not places or any(variable in sides[0].variables & sides[1].variables for variable in places):
            return None
        if any(scalar.dtype not in WIDE for scalar in sides) or find_attention(tensor) is not None:
            return None
        factors = []
        for side in sides:
            own = {variable: place for variable, place in places.items() if variable in side.variables}
            factors.append(_Factor.of(builder, side, own, windows) if own else None)
            if own and factors[-1] is None:
                return None
        moved = cls(builder, tensor, definition, places, windows, sides, (factors[0], factors[1]))
        return moved if moved._is_gain() else None

    def _is_gain(self) -> bool:
        """Compare arithmetic, and what lies in memory between two kernels."""
        assert self.builder.workload is not None
        assert self.definition.contraction is not None
        size, phases = self.builder.workload.size, self.definition.contraction.phases
        n_terms = size(product(variable.extent for variable in self.definition.reduced))
        n_phases = size(product(variable.extent for variable in phases.phases)) if phases is not None else 1
        n_results = size(self.tensor.n_elements)
        summed = [factor for factor in self.factors if factor is not None]
        n_sums = sum(size(product(self._shape_of_sums(factor))) for factor in summed)
        n_read = sum(size(product(factor.shape)) for factor in summed)
        n_added = n_read if self.windows.n_terms is None else n_sums * self.windows.n_terms
        after = size(product(self._shape)) * n_terms + n_added
        return MIN_GAIN * after <= n_results * n_terms // n_phases and n_sums <= n_results

    @property
    def _shape(self) -> Shape:
        extents = self.windows.extents
        return tuple(extents[self.places[v]] if v in self.places else v.extent for v in self.definition.variables)

    def _shape_of_sums(self, factor: _Factor) -> Shape:
        pairs = zip(factor.dims, factor.shape, strict=True)
        extents = self.windows.extents
        return tuple(
            extents[factor.places[d]] if isinstance(d, Variable) and d in factor.places else n for d, n in pairs
        )

    def contraction(self) -> Tensor:
        """Return the contraction over the sums, which has the same dims as before."""
        contraction, sums = self.definition.contraction, [self._sums(factor) for factor in self.factors]
        assert contraction is not None

        def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
            place = dict(zip((*self.definition.variables, *self.definition.reduced), (*index, *k), strict=True))
            left, right = (
                side.substitute(place) if factor is None or added is None else factor.of_sums(added, place)
                for side, factor, added in zip(self.sides, self.factors, sums, strict=True)
            )
            return left, right

        axes = (contraction.batch_axes, contraction.row_axes, contraction.column_axes)
        reduced = tuple(variable.extent for variable in self.definition.reduced)
        return self.builder.contraction(self.tensor.dtype, self._shape, reduced, factors, axes, name=self.tensor.name)

    def _sums(self, factor: _Factor | None) -> Tensor | None:
        if factor is None:
            return None
        places = {
            n: factor.places[d] for n, d in enumerate(factor.dims) if isinstance(d, Variable) and d in factor.places
        }
        return self.windows.add_up(factor.shape, places, factor.term)
