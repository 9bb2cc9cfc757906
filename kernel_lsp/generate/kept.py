"""Choose what a forward keeps for its backward: values that both graphs compute, and that are small or results anyway.

kept = find_kept(forward, backward, captured, level=ROWS)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.attention import find_attention
from kernel_lsp.generate.attention_gradients import find_gradients
from kernel_lsp.generate.fusion.graph import live_tensors, scalars_of
from kernel_lsp.generate.ir.digest import digest_of
from kernel_lsp.generate.ir.index import Index, Variable, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Operation, Scalar, accesses, rewrite
from kernel_lsp.generate.ir.tensor import Buffer, Pointwise, Reduction, Tensor, pattern_of
from kernel_lsp.generate.lowering.table import LoweredGraph, LoweredOutput
from kernel_lsp.generate.names import NamePool

NOTHING, ROWS, PRODUCTS = 0, 1, 2
"""Levels: nothing; results and values of rows; products of matrices, too, of which the forward writes every element to
memory as PyTorch does."""
NARROW = (DType.F16, DType.BF16)
MIN_SHARE = 8
"""Minimum elements of the largest input for each element that is kept beside the results."""

MIN_TERMS = 512
"""Minimum terms of each element of a product that is kept by default: with fewer, tensor cores find an element again in
less time than memory takes to write and read it."""


@dataclass(frozen=True)
class Kept:
    """Tensors of the backward that its forward computes. `given` has the name of each by its number in the backward;
    `tensors` are those of the forward that are no results, by name."""

    given: Mapping[int, str]
    tensors: Mapping[str, Tensor]


def find_kept(
    forward: LoweredGraph, backward: LoweredGraph, captured: Callable[[Index], int], level: int, taken: Sequence[str]
) -> Kept:
    """Return what the backward takes of its forward. `taken` are names that nothing kept may have."""
    live = live_tensors([output.tensor for output in forward.outputs], {})
    of_backward = live_tensors([output.tensor for output in backward.outputs], {})
    if not level or any(map(find_attention, live)) or list(find_gradients(of_backward)):
        return Kept({}, {})  # attention is recognized by the sums of its softmax
    finder = _Finder(forward, backward, captured, level, live, of_backward)
    return finder.kept(NamePool({*taken, *forward.inputs, *backward.inputs, *forward.returns}))


def with_kept(forward: LoweredGraph, kept: Kept) -> LoweredGraph:
    """Return the forward that writes what is kept, too."""
    more = tuple(LoweredOutput(name, tensor) for name, tensor in kept.tensors.items())
    return replace(forward, outputs=(*forward.outputs, *more))


def are_long_products(tensors: Iterable[Tensor], captured: Callable[[Index], int]) -> bool:
    """Return True if all tensors are products of matrices with many terms."""
    return all((_n_terms(tensor, captured) or 0) >= MIN_TERMS for tensor in tensors)


# --- below: which tensors


class _Finder:
    """Walks from the gradients down to the first tensors that the forward has."""

    def __init__(
        self,
        forward: LoweredGraph,
        backward: LoweredGraph,
        captured: Callable[[Index], int],
        level: int,
        live: Sequence[Tensor],
        of_backward: Sequence[Tensor],
    ) -> None:
        self._captured, self._level = captured, level
        self._results = {output.tensor: output.name for output in forward.outputs}
        self._outputs = [output.tensor for output in backward.outputs]
        self._largest = max((captured(tensor.n_elements) for tensor in forward.inputs.values()), default=1)
        own, found = _Contents(forward), _Contents(backward)
        self._known = {content: tensor for tensor in reversed(live) if (content := own.of(tensor)) is not None}
        self._equal = {tensor: self._known.get(found.of(tensor) or b"") for tensor in of_backward}
        self._behind, self._direct = _behind(of_backward), set[Tensor]()
        """The second are what the gradients read themselves, converted or not: PyTorch has saved it."""
        for reader in reversed(of_backward):
            if self._equal[reader] is None or (reader in self._direct and _copied(reader) is not None):
                self._direct |= {access.tensor for access in accesses(*scalars_of(reader.definition))}
        sums = [tensor.definition for tensor in of_backward if self._equal[tensor] is None]
        self._line_sums = [
            captured(product(variable.extent for variable in definition.variables))
            for definition in sums
            if isinstance(definition, Reduction)
            and definition.contraction is None
            and [kind for kind, _ in pattern_of(definition)] == ["o", "r"]
        ]
        """Numbers of rows of the sums that the backward alone has."""

    def kept(self, names: NamePool) -> Kept:
        given: dict[int, str] = {}
        tensors: dict[str, Tensor] = {}
        chosen: dict[Tensor, str] = {}
        for tensor, equal in self._consistent():
            if equal not in chosen:
                chosen[equal] = self._results.get(equal) or names.take(equal.name)
            given[tensor.serial] = chosen[equal]
            if equal not in self._results:
                tensors[chosen[equal]] = equal
        return Kept(given, tensors)

    def _consistent(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors to keep, each with the forward's tensor of the same content. What the forward finds of a
        value before it rounds it to 16 bits is found again of the rounded one, where that is kept."""
        excluded: set[Tensor] = set()
        while True:
            found = self._frontier(excluded)
            rounded = {tensor for tensor in found if tensor.dtype in NARROW}
            behind = {tensor for tensor in found if rounded.intersection(live_tensors([tensor], {})) - {tensor}}
            if not behind:
                return list(found.items())
            excluded |= behind

    def _frontier(self, excluded: set[Tensor]) -> dict[Tensor, Tensor]:
        """Return the first tensors down from the gradients that the forward has and that are worth keeping."""
        found: dict[Tensor, Tensor] = {}
        pending, seen = list(self._outputs), set(self._outputs)
        while pending:
            for access in accesses(*scalars_of(pending.pop().definition)):
                tensor, equal = access.tensor, self._equal[access.tensor]
                is_worth = equal is not None and self._is_worth(tensor, equal)
                if equal is not None and is_worth and tensor not in excluded:
                    found[tensor] = equal
                if tensor not in seen and tensor not in found:
                    seen.add(tensor)
                    pending.append(tensor)
        live = live_tensors(self._outputs, dict.fromkeys(found, Buffer()))
        return {tensor: found[tensor] for tensor in live if tensor in found}

    def _has_lines(self, n_rows: int) -> bool:
        """Return True if the gradients sum over lines of these rows, as those of a group norm over channels of a group:
        then one kernel has a row on chip, and finds its moments there."""
        return n_rows > 1 and any(n > n_rows and n % n_rows == 0 for n in self._line_sums)

    def _is_worth(self, tensor: Tensor, equal: Tensor) -> bool:
        """Return True for a result that the gradients read, as PyTorch saves it, where that spares a reduction or a
        second input; for few values behind a reduction; and for products, where they may be kept."""
        n_elements = self._captured(tensor.n_elements)
        reductions, n_inputs = self._behind[tensor]
        if isinstance(tensor.definition, Buffer):
            return False
        if equal in self._results:
            return tensor in self._direct and (bool(reductions) or n_inputs > 1)
        if n_elements == 1 or n_elements * MIN_SHARE <= self._largest:
            return bool(reductions) and not self._has_lines(n_elements)
        return self._level == PRODUCTS and _n_terms(tensor, self._captured) is not None


def _n_terms(tensor: Tensor, captured: Callable[[Index], int]) -> int | None:
    """Return the terms of each element of a product of matrices, rounded to its type or not; None for other tensors."""
    definition = tensor.definition
    if isinstance(definition, Reduction):
        extents = (variable.extent for variable in definition.reduced)
        return captured(product(extents)) if definition.contraction is not None else None
    copied = _copied(tensor)
    return _n_terms(copied, captured) if copied is not None else None


def _copied(tensor: Tensor) -> Tensor | None:
    """Return the tensor of as many elements that a tensor is a view of, converted or not; None for any other."""
    match tensor.definition:
        case Pointwise(_, Access(tensor=other) | Operation(name="cast", operands=(Access(tensor=other),))):
            return other if other.n_elements == tensor.n_elements else None
    return None


def _behind(live: Sequence[Tensor]) -> dict[Tensor, tuple[bool, int]]:
    """Return for each tensor whether a reduction is behind it, and the number of inputs of its size."""
    reduced: dict[Tensor, bool] = {}
    inputs: dict[Tensor, frozenset[Tensor]] = {}
    for tensor in live:
        read = {access.tensor for access in accesses(*scalars_of(tensor.definition))}
        reduced[tensor] = isinstance(tensor.definition, Reduction) or any(reduced[each] for each in read)
        own = frozenset((tensor,)) if isinstance(tensor.definition, Buffer) else frozenset[Tensor]()
        inputs[tensor] = own.union(*(inputs[each] for each in read))
    return {
        tensor: (reduced[tensor], sum(each.n_elements == tensor.n_elements for each in inputs[tensor]))
        for tensor in live
    }


# --- below: contents


class _Contents:
    """Content hashes of one graph's tensors: equal for those of another graph that compute the same of inputs of the
    same names."""

    def __init__(self, graph: LoweredGraph) -> None:
        self._found: dict[Tensor, bytes | None] = {
            tensor: digest_of("input", name) for name, tensor in graph.inputs.items()
        }
        self._stand_ins: dict[Tensor, Tensor] = {}
        for tensor in graph.tensors:
            self._found.setdefault(tensor, self._content(tensor))

    def of(self, tensor: Tensor) -> bytes | None:
        """Return the tensor's content; None where it is of a kind that is not compared."""
        return self._found.get(tensor)

    def _content(self, tensor: Tensor) -> bytes | None:
        reduced: tuple[Variable, ...] = ()
        match tensor.definition:
            case Pointwise(domain, body):
                kind = "pointwise"
            case Reduction(kind, _, reduced, domain, body):
                pass
            case _:
                return None
        if any(self._found.get(access.tensor) is None for access in accesses(body)):
            return None
        places = {variable: Variable("at", place, variable.extent) for place, variable in enumerate(domain)}
        alike = rewrite(body, self._stand_in).substitute({old: as_index(new) for old, new in places.items()})
        sizes = [size.digest for size in tensor.shape]
        ends = [domain.index(variable) for variable in reduced]
        return digest_of("tensor", kind, tensor.dtype.value, ends, *sizes, alike.digest)

    def _stand_in(self, access: Access) -> Scalar:
        """Return the read of a tensor that is called by its content."""
        content = self._found[access.tensor]
        assert content is not None
        if access.tensor not in self._stand_ins:
            made = Tensor(content.hex(), 0, access.tensor.dtype, access.tensor.shape, Buffer())
            self._stand_ins[access.tensor] = made
        return Access(self._stand_ins[access.tensor], access.index, access.mask)
