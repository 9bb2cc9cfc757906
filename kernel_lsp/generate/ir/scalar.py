"""Scalar expressions: the value of one tensor element as a function of index variables.

Nodes are immutable and compare by content, so that a shared subexpression is one node wherever it was built.

Traverse and rewrite scalars: their reads and nodes, and the same scalar over other reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Expression
from kernel_lsp.generate.ir.atoms import Atom, Indirect, Quotient, Remainder, Variable
from kernel_lsp.generate.ir.digest import Digested, Rebuilding, digest_of, operands_first
from kernel_lsp.generate.ir.index import Index, as_index, is_below, is_nonnegative, replace_atoms, substitute

if TYPE_CHECKING:
    from kernel_lsp.generate.ir.tensor import Tensor


Replacements = Mapping[Variable, Index]
NO_VARIABLES: frozenset[Variable] = frozenset()


class Scalar(Digested):
    """Base of all nodes. `dtype` is the element type it has in the graph; f16 and bf16 are computed in float."""

    __slots__ = ("digest", "dtype", "operands")

    dtype: DType
    operands: tuple[Scalar, ...]
    variables: frozenset[Variable]

    def substitute(self, replacements: Replacements) -> Scalar:
        """Return the node with index variables replaced."""
        return _Substitution(replacements).run(self)

    def rebuilt(self, operands: tuple[Scalar, ...]) -> Scalar:
        """Return the node over other operands."""
        return self


class Constant(Scalar):
    """A literal."""

    __slots__ = ("value",)

    def __init__(self, value: float | int | bool, dtype: DType) -> None:
        self.value, self.dtype, self.operands = value, dtype, ()
        self.digest = digest_of("constant", repr(value), dtype.value)
        self.variables = NO_VARIABLES


class CallerNumber(Scalar):
    """A number that the caller passes, or an expression of such numbers: a parameter of the kernel."""

    __slots__ = ("expression",)

    def __init__(self, expression: Expression, dtype: DType) -> None:
        self.expression, self.dtype, self.operands = expression, dtype, ()
        self.digest = digest_of("number", str(expression), dtype.value)
        self.variables = NO_VARIABLES


class IndexValue(Scalar):
    """An index as a value, e.g. of arange."""

    __slots__ = ("index",)

    def __init__(self, index: Index) -> None:
        self.index, self.dtype, self.operands = index, DType.I64, ()
        self.digest = digest_of("index_value", index.digest)
        self.variables = index.variables


class Argument(Scalar):
    """A named number in the kernel: a reduction's result, an accumulator."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType, variables: frozenset[Variable] = NO_VARIABLES) -> None:
        self.name, self.dtype, self.operands = name, dtype, ()
        self.digest = digest_of("argument", name, dtype.value)
        self.variables = variables


class Access(Scalar):
    """An element of a tensor. Where `mask` is false the value is 0 and nothing is read."""

    __slots__ = ("index", "mask", "tensor")

    def __init__(self, tensor: Tensor, index: Sequence[Index], mask: Scalar | None = None) -> None:
        self.tensor, self.index, self.mask, self.dtype = tensor, tuple(index), mask, tensor.dtype
        self.operands = (mask,) if mask is not None else ()
        parts = [position.digest for position in self.index] + [operand.digest for operand in self.operands]
        self.digest = digest_of("access", tensor.digest, *parts)
        self.variables = _variables(*self.index, *self.operands)

    def rebuilt(self, operands: tuple[Scalar, ...]) -> Scalar:
        return Access(self.tensor, self.index, operands[0] if operands else None)


class Operation(Scalar):
    """A function of scalars; `name` is one of the operators that code generation knows."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType, operands: tuple[Scalar, ...]) -> None:
        self.name, self.dtype, self.operands = name, dtype, operands
        self.digest = digest_of("operation", name, dtype.value, *(operand.digest for operand in operands))
        self.variables = _variables(*operands)

    def rebuilt(self, operands: tuple[Scalar, ...]) -> Scalar:
        return operation(self.name, self.dtype, *operands)


class Loop(Scalar):
    """A reduction that one thread does alone: `body` combined over all values of `loop_variables`.

    `kind` is a reduction kind. For ``argmax``, ``argmin`` and ``window_argmax`` the operands are the value and the
    index to return; the last is pooling's, which keeps the last NaN where argmax keeps the first (max_pool2d and
    adaptive_max_pool2d in ATen/native take a value when ``value > best || isnan(value)``).
    """

    __slots__ = ("kind", "loop_variables")

    def __init__(self, kind: str, loop_variables: tuple[Variable, ...], dtype: DType, *body: Scalar) -> None:
        self.kind, self.loop_variables, self.dtype, self.operands = kind, loop_variables, dtype, body
        parts = [variable.digest for variable in loop_variables] + [scalar.digest for scalar in body]
        self.digest = digest_of("loop", kind, dtype.value, len(loop_variables), *parts)
        extents = _variables(*(variable.extent for variable in loop_variables))
        self.variables = (_variables(*body) - frozenset(loop_variables)) | extents

    def rebuilt(self, operands: tuple[Scalar, ...]) -> Scalar:
        return Loop(self.kind, self.loop_variables, self.dtype, *operands)


def operation(name: str, dtype: DType, *operands: Scalar) -> Scalar:
    """Return ``name(operands)``, with constants folded where that is exact."""
    rule = _FOLDS.get(name)
    folded = rule(dtype, *operands) if rule else None
    return folded if folded is not None else Operation(name, dtype, operands)


def cast(scalar: Scalar, dtype: DType) -> Scalar:
    """Return the converted value. A conversion between floating types keeps float precision until it is stored."""
    if scalar.dtype == dtype:
        return scalar
    if isinstance(scalar, Constant):
        return Constant(_converted(scalar.value, dtype), dtype)
    if isinstance(scalar, CallerNumber) and scalar.dtype.is_floating and dtype.is_floating:
        return CallerNumber(scalar.expression, dtype)
    return Operation("cast", dtype, (scalar,))


def unconverted(scalar: Scalar) -> Scalar:
    """Return the value below all conversions."""
    while isinstance(scalar, Operation) and scalar.name == "cast":
        (scalar,) = scalar.operands
    return scalar


def select(condition: Scalar, if_true: Scalar, if_false: Scalar) -> Scalar:
    """Return ``condition ? if_true : if_false``. If `masked` was applied to `if_true`, its memory is read only where
    the condition holds."""
    if isinstance(condition, Constant):
        return if_true if condition.value else if_false
    return operation("select", if_true.dtype, condition, if_true, if_false)


def compare(name: str, left: Scalar, right: Scalar) -> Scalar:
    """Return ``eq``, ``ne``, ``lt``, ``le``, ``gt`` or ``ge`` of two values."""
    return operation(name, DType.BOOL, left, right)


def both(left: Scalar, right: Scalar) -> Scalar:
    """Return the logical and."""
    if isinstance(left, Constant):
        return right if left.value else left
    if isinstance(right, Constant):
        return left if right.value else right
    return left if left == right else operation("logical_and", DType.BOOL, left, right)


def in_range(index: Index, extent: Index) -> Scalar:
    """Return the condition ``0 <= index < extent`` without the halves that are provable."""
    result: Scalar = TRUE
    if not is_nonnegative(index):
        result = compare("ge", IndexValue(index), integer(0))
    if not is_below(index, extent):
        result = both(result, compare("lt", IndexValue(index), index_value(extent)))
    return result


def index_value(index: Index) -> Scalar:
    """Return an index as an i64 value."""
    return IndexValue(index) if index.constant is None else integer(index.constant)


def integer(value: int) -> Scalar:
    return Constant(value, DType.I64)


def as_position(scalar: Scalar) -> Index:
    """Return an integer value as an index."""
    if isinstance(scalar, IndexValue):
        return scalar.index
    if isinstance(scalar, Constant):
        return as_index(int(scalar.value))
    return as_index(Indirect(scalar))


TRUE = Constant(True, DType.BOOL)
FALSE = Constant(False, DType.BOOL)


class _Substitution(Rebuilding[Scalar]):
    """Replaces index variables in a scalar."""

    def __init__(self, replacements: Replacements) -> None:
        super().__init__()
        self._replacements = replacements
        self._atoms: dict[Atom, Index] = {}

    def is_kept(self, node: Scalar) -> bool:
        return node.variables.isdisjoint(self._replacements)

    def _index(self, index: Index) -> Index:
        return substitute(index, self._replacements, self._atoms)

    def rebuilt(self, node: Scalar) -> Scalar:
        if isinstance(node, IndexValue):
            return index_value(self._index(node.index))
        if isinstance(node, Access):
            mask = self.visit(node.mask) if node.mask is not None else None
            if isinstance(mask, Constant) and mask.value:
                mask = None
            return Access(node.tensor, [self._index(index) for index in node.index], mask)
        if isinstance(node, Operation) and node.name in ("ge", "lt"):
            return _range_check(node.name, *(self.visit(operand) for operand in node.operands))
        if isinstance(node, Argument):
            return Argument(node.name, node.dtype, _variables(*(self._replacements.get(v, v) for v in node.variables)))
        return node.rebuilt(tuple(self.visit(operand) for operand in node.operands))


def _range_check(name: str, left: Scalar, right: Scalar) -> Scalar:
    """Return a comparison of indices, folded where their ranges decide it."""
    if left.dtype == right.dtype == DType.I64:
        low, high = as_position(left), as_position(right)
        difference = high - low
        if name == "ge" and is_nonnegative(low - high):
            return TRUE
        if name == "lt" and is_nonnegative(difference - 1):
            return TRUE
        if name == "ge" and is_nonnegative(difference - 1):
            return FALSE
        if name == "lt" and is_nonnegative(low - high):
            return FALSE
    return compare(name, left, right)


def _variables(*parts: Digested) -> frozenset[Variable]:
    return NO_VARIABLES.union(*(part.variables for part in parts))


def _converted(value: float | int | bool, dtype: DType) -> float | int | bool:
    if dtype == DType.BOOL:
        return bool(value)
    if dtype.is_floating:
        return float(value)
    return int(value) if math.isfinite(value) else 0


def _is_constant(scalar: Scalar, value: float) -> bool:
    return isinstance(scalar, Constant) and not isinstance(scalar.value, bool) and scalar.value == value


def _fold_multiply(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
    if _is_constant(left, 1) and right.dtype == dtype:
        return right
    if _is_constant(right, 1) and left.dtype == dtype:
        return left
    return None


def _fold_divide(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
    return left if _is_constant(right, 1) and left.dtype == dtype else None


def _fold_add(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
    # x + 0.0 is not folded for floats: it turns -0.0 into 0.0.
    if not dtype.is_floating and dtype != DType.BOOL:
        both_indices = all(_is_index(operand) for operand in (left, right))
        return index_value(as_position(left) + as_position(right)) if both_indices else None
    return None


def _fold_subtract(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
    if dtype == DType.I64 and _is_index(left) and _is_index(right):
        return index_value(as_position(left) - as_position(right))
    return None


def _fold_integer_multiply(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
    if dtype == DType.I64 and _is_index(left) and _is_index(right):
        return index_value(as_position(left) * as_position(right))
    return _fold_multiply(dtype, left, right)


def _is_index(scalar: Scalar) -> bool:
    return scalar.dtype == DType.I64 and isinstance(scalar, IndexValue | Constant)


def _fold_select(dtype: DType, condition: Scalar, if_true: Scalar, if_false: Scalar) -> Scalar | None:
    if isinstance(condition, Constant):
        return if_true if condition.value else if_false
    return if_true if if_true == if_false else None


def _fold_and(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
    for first, second in ((left, right), (right, left)):
        if isinstance(first, Constant):
            return second if first.value else FALSE
    return None


def _fold_compare(name: str) -> Callable[..., Scalar | None]:
    def fold(dtype: DType, left: Scalar, right: Scalar) -> Scalar | None:
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(_COMPARISONS[name](left.value, right.value), DType.BOOL)
        return None

    return fold


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "ge": lambda left, right: left >= right,
}
_FOLDS: dict[str, Callable[..., Scalar | None]] = {
    "mul": _fold_integer_multiply,
    "div": _fold_divide,
    "add": _fold_add,
    "sub": _fold_subtract,
    "select": _fold_select,
    "logical_and": _fold_and,
    **{name: _fold_compare(name) for name in _COMPARISONS},
}


def accesses(*scalars: Scalar) -> Iterator[Access]:
    """Return every distinct read of a tensor in the scalars, including reads inside indices and masks."""
    return (node for node in nodes(*scalars) if isinstance(node, Access))


def accesses_outside_loops(*scalars: Scalar) -> Iterator[Access]:
    """Return the distinct reads whose element does not change within a loop of a thread."""
    free = frozenset[Variable]().union(*(scalar.variables for scalar in scalars))
    return (access for access in accesses(*scalars) if access.variables <= free)


def nodes(*scalars: Scalar) -> Iterator[Scalar]:
    """Yield every distinct node of the scalars."""
    seen: set[bytes] = set()
    pending = list(scalars)
    while pending:
        node = pending.pop()
        if node.digest not in seen:
            seen.add(node.digest)
            yield node
            pending.extend(children(node))


def operands_of(scalar: Scalar, name: str) -> tuple[Scalar, ...]:
    """Return the operands of an operation of this name; none of anything else."""
    return scalar.operands if isinstance(scalar, Operation) and scalar.name == name else ()


def children(node: Scalar) -> tuple[Scalar, ...]:
    """Return the operands, and the scalars that its indices read."""
    if isinstance(node, Access):
        return node.operands + tuple(scalar for index in node.index for scalar in indirect_scalars(index))
    if isinstance(node, IndexValue):
        return tuple(indirect_scalars(node.index))
    return node.operands


def indirect_scalars(index: Index) -> Iterator[Scalar]:
    """Yield the scalars whose values the index uses."""
    for monomial, _ in index.terms if index.reads_memory else ():
        for atom in monomial:
            if isinstance(atom, Indirect):
                yield atom.scalar
            elif isinstance(atom, Quotient | Remainder):
                yield from indirect_scalars(atom.dividend)
                yield from indirect_scalars(atom.divisor)


def rewrite(scalar: Scalar, replace: Callable[[Access], Scalar]) -> Scalar:
    """Return the scalar with every access replaced, innermost first, including reads inside indices and masks."""
    return _Rewriter(replace).run(scalar)


def transformed(scalar: Scalar, change: Callable[[Scalar], Scalar]) -> Scalar:
    """Return the scalar with every operand changed, innermost first, each shared node once. Indices stay."""
    done: dict[bytes, Scalar] = {}
    for node in operands_first(scalar, lambda entry: entry.digest in done):
        operands = tuple(done[operand.digest] for operand in node.operands)
        done[node.digest] = change(node.rebuilt(operands) if operands != node.operands else node)
    return done[scalar.digest]


def masked(mask: Scalar, scalar: Scalar, *, varying: frozenset[Variable] | None = None) -> Scalar:
    """Return the scalar with every read of memory under `mask`; with `varying`, only reads that depend on those
    variables. A tensor of one element is read in any case: a load that no mask needs is made once for all of them."""
    if isinstance(mask, Constant):
        return scalar

    def mask_access(access: Access) -> Scalar:
        if varying is not None and access.variables.isdisjoint(varying):
            return access
        if access.tensor.n_elements.constant == 1:
            return access
        return Access(access.tensor, access.index, _mask_and(access.mask, mask))

    return rewrite(scalar, mask_access)


def guarded(condition: Scalar, scalar: Scalar, otherwise: Scalar) -> Scalar:
    """Return ``condition ? scalar : otherwise``, which reads nothing of `scalar` where the condition is false."""
    return select(condition, masked(condition, scalar), otherwise)


class _Rewriter(Rebuilding[Scalar]):
    """Replaces accesses in a scalar."""

    def __init__(self, replace: Callable[[Access], Scalar]) -> None:
        super().__init__()
        self._replace = replace

    def index(self, index: Index) -> Index:
        """Return the index with the scalars it reads rewritten."""
        if not any(True for _ in indirect_scalars(index)):
            return index
        return replace_atoms(index, self._atom)

    def _atom(self, atom: Atom) -> Index:
        match atom:
            case Indirect():
                return as_position(self.visit(atom.scalar))
            case Quotient():
                return self.index(atom.dividend) // self.index(atom.divisor)
            case Remainder():
                return self.index(atom.dividend) % self.index(atom.divisor)
        return as_index(atom)

    def rebuilt(self, node: Scalar) -> Scalar:
        if isinstance(node, Access):
            mask = self.visit(node.mask) if node.mask is not None else None
            index = tuple(self.index(position) for position in node.index)
            return self._replace(Access(node.tensor, index, mask))
        if isinstance(node, IndexValue):
            return index_value(self.index(node.index))
        operands = tuple(self.visit(operand) for operand in node.operands)
        return node.rebuilt(operands) if operands != node.operands else node


def _mask_and(left: Scalar | None, right: Scalar) -> Scalar:
    return right if left is None else both(right, left)
