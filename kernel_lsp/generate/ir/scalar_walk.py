"""Traverse and rewrite scalars: their reads and nodes, and the same scalar over other reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernel_lsp.generate.ir.index import Atom, Index, Indirect, Quotient, Remainder, Variable, as_index, replace_atoms
from kernel_lsp.generate.ir.scalar import Access, Constant, IndexValue, Scalar, as_position, both, index_value, select


def accesses(*scalars: Scalar) -> Iterator[Access]:
    """Yield every distinct read of a tensor in the scalars, including reads inside indices and masks."""
    seen: set[bytes] = set()
    pending = list(scalars)
    while pending:
        node = pending.pop()
        if node.digest in seen:
            continue
        seen.add(node.digest)
        if isinstance(node, Access):
            yield node
        pending.extend(children(node))


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


def children(node: Scalar) -> tuple[Scalar, ...]:
    """Return the operands, and the scalars that its indices read."""
    if isinstance(node, Access):
        return node.operands + tuple(scalar for index in node.index for scalar in indirect_scalars(index))
    if isinstance(node, IndexValue):
        return tuple(indirect_scalars(node.index))
    return node.operands


def indirect_scalars(index: Index) -> Iterator[Scalar]:
    """Yield the scalars whose values the index uses."""
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, Indirect):
                yield atom.scalar
            elif isinstance(atom, Quotient | Remainder):
                yield from indirect_scalars(atom.dividend)
                yield from indirect_scalars(atom.divisor)


def rewrite(scalar: Scalar, replace: Callable[[Access], Scalar]) -> Scalar:
    """Return the scalar with every access replaced, innermost first, including reads inside indices and masks."""
    return _Rewriter(replace).visit(scalar)


def transformed(scalar: Scalar, change: Callable[[Scalar], Scalar]) -> Scalar:
    """Return the scalar with every operand changed, innermost first, each shared node once. Indices stay."""
    done: dict[bytes, Scalar] = {}

    def visit(node: Scalar) -> Scalar:
        if node.digest not in done:
            operands = tuple(visit(operand) for operand in node.operands)
            done[node.digest] = change(node.rebuilt(operands) if operands != node.operands else node)
        return done[node.digest]

    return visit(scalar)


def masked(mask: Scalar, scalar: Scalar, *, varying: frozenset[Variable] | None = None) -> Scalar:
    """Return the scalar with every read of memory under `mask`; with `varying`, only reads that depend on those
    variables."""
    if isinstance(mask, Constant):
        return scalar

    def mask_access(access: Access) -> Scalar:
        if varying is not None and access.variables.isdisjoint(varying):
            return access
        return Access(access.tensor, access.index, _mask_and(access.mask, mask))

    return rewrite(scalar, mask_access)


def guarded(condition: Scalar, scalar: Scalar, otherwise: Scalar) -> Scalar:
    """Return ``condition ? scalar : otherwise``, which reads nothing of `scalar` where the condition is false."""
    return select(condition, masked(condition, scalar), otherwise)


# --- rewriting


class _Rewriter:
    """Rebuilds a scalar bottom up, each shared node once."""

    def __init__(self, replace: Callable[[Access], Scalar]) -> None:
        self._replace = replace
        self._done: dict[bytes, Scalar] = {}

    def visit(self, node: Scalar) -> Scalar:
        done = self._done.get(node.digest)
        if done is None:
            done = self._done[node.digest] = self._rebuild(node)
        return done

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

    def _rebuild(self, node: Scalar) -> Scalar:
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
