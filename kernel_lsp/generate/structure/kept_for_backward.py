"""Choose what a forward keeps for its backward: values that both graphs compute, and that are small or results anyway.

kept = find_kept(forward, backward, workload, level=ROWS)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.graph import COSTLY, live_tensors, scalars_of
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.digest import digest_of
from kernel_lsp.generate.ir.index import as_index, product
from kernel_lsp.generate.ir.scalar import (
    Access,
    Loop,
    Operation,
    Scalar,
    accesses,
    nodes,
    rewrite,
    transformed,
    unconverted,
)
from kernel_lsp.generate.ir.tensor import Buffer, Pointwise, Reduction, Tensor, pattern_of
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.library import (
    least_products_of_16_bits,
    library_plan,
    n_products,
)
from kernel_lsp.generate.lowering.table import LoweredGraph, LoweredOutput
from kernel_lsp.generate.structure.attention_gradient_patterns import find_gradients
from kernel_lsp.generate.structure.attention_patterns import find_attention

NOTHING, ROWS, PRODUCTS = 0, 1, 2
"""Levels: nothing; results and values of rows; products of matrices, too, of which the forward writes every element to
memory as PyTorch does, and what is made of one and multiplied by the next."""
NARROW = (DType.F16, DType.BF16)
MIN_SHARE = 8
"""Minimum elements of the largest input for each element that is kept beside the results."""
MIN_OVERLAPPING_SHARE = 2
"""Minimum bytes of the largest input for each byte that says where the maximum of a window is that overlaps others: to
find it again reads each element several times."""

MIN_TERMS, MIN_TERMS_OF_F32 = 512, 128
"""Minimum terms of each element of a product that is kept by default: with fewer, tensor cores find an element again in
less time than memory takes to write and read it. f32 takes them three times as many steps, of half as many terms: the
gradients of a contrastive loss of 2048 x 2048 products of 256 terms took 174 us on an H200 without, 132 us with."""


@dataclass(frozen=True)
class Kept:
    """Tensors of the backward that its forward computes. `given` has the name of each by its number in the backward;
    `tensors` are those of the forward that are no results, by name."""

    given: Mapping[int, str]
    tensors: Mapping[str, Tensor]


def find_kept(
    forward: LoweredGraph, backward: LoweredGraph, workload: Workload, level: int, taken: Sequence[str]
) -> Kept:
    """Return what the backward takes of its forward. `taken` are names that nothing kept may have."""
    live = live_tensors([output.tensor for output in forward.outputs], {})
    of_backward = live_tensors([output.tensor for output in backward.outputs], {})
    if not level or any(map(find_attention, live)) or list(find_gradients(of_backward)):
        return Kept({}, {})  # attention is recognized by the sums of its softmax
    finder = _Finder(forward, backward, workload, level, live, of_backward)
    return finder.kept(NamePool({*taken, *forward.inputs, *backward.inputs, *forward.returns}))


def with_kept(forward: LoweredGraph, kept: Kept) -> LoweredGraph:
    """Return the forward that writes what is kept, too."""
    more = tuple(LoweredOutput(name, tensor) for name, tensor in kept.tensors.items())
    return replace(forward, outputs=(*forward.outputs, *more))


def are_long_products(tensors: Iterable[Tensor], workload: Workload) -> bool:
    """Return True if all tensors are made of products of matrices with many terms, or that a library computes: it
    writes them to memory anyway."""
    products = [product for tensor in tensors for product in _products_of(tensor)]
    return all((_n_terms(each, workload) or 0) >= _min_terms(each, workload) for each in products)


def _min_terms(product: Tensor, workload: Workload) -> int:
    definition = product.definition
    assert isinstance(definition, Reduction)
    assert definition.contraction is not None
    if DType.F32 in (definition.contraction.left.dtype, definition.contraction.right.dtype):
        return MIN_TERMS_OF_F32
    count = workload.size(n_products(definition, product.shape))
    least = least_products_of_16_bits(_n_terms(product, workload) or 0)
    is_by_library = count >= least and library_plan(product, definition) is not None
    return 0 if is_by_library else MIN_TERMS


class _Finder:
    """Walks from the gradients down to the first tensors that the forward has."""

    def __init__(
        self,
        forward: LoweredGraph,
        backward: LoweredGraph,
        workload: Workload,
        level: int,
        live: Sequence[Tensor],
        of_backward: Sequence[Tensor],
    ) -> None:
        self._workload, self._level = workload, level
        self._results = {output.tensor: output.name for output in forward.outputs}
        self._outputs = [output.tensor for output in backward.outputs]
        inputs = forward.inputs.values()
        self._bytes_of_largest = max((workload.size(t.n_elements) * t.dtype.itemsize for t in inputs), default=1)
        self._largest = max((workload.size(tensor.n_elements) for tensor in forward.inputs.values()), default=1)
        own, found, self._factors = _Contents(forward), _Contents(backward), _factors(live)
        offered = [*live, *filter(is_place_in_window, forward.tensors)]
        self._known = {content: tensor for tensor in reversed(offered) if (content := own.of(tensor)) is not None}
        self._equal = {tensor: self._known.get(found.of(tensor) or b"") for tensor in of_backward}
        self._behind, self._direct = _behind(of_backward), set[Tensor]()
        """The second are what the gradients read themselves, converted or not: PyTorch has saved it."""
        for reader in reversed(of_backward):
            if self._equal[reader] is None or (reader in self._direct and _copied(reader) is not None):
                self._direct |= {access.tensor for access in accesses(*scalars_of(reader.definition))}
        sums = [tensor.definition for tensor in of_backward if self._equal[tensor] is None]
        self._line_sums = [
            workload.size(product(variable.extent for variable in definition.variables))
            for definition in sums
            if isinstance(definition, Reduction)
            and definition.contraction is None
            and [kind for kind, _ in pattern_of(definition)] == ["o", "r"]
            and not any(self._behind[access.tensor][0] for access in accesses(definition.body))
        ]
        """Numbers of rows of the sums that the backward alone has, and whose terms need no reduction."""

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
        value before it rounds it to 16 bits is found again of the rounded one, where that is kept: but for what a
        product of matrices lies between, which reads the rounded one."""
        excluded: set[Tensor] = set()
        products = {tensor: Buffer() for tensor in self._equal if _is_product(tensor)}
        while True:
            found = self._frontier(excluded)
            rounded = {tensor for tensor in found if tensor.dtype in NARROW}
            behind = {tensor for tensor in found if rounded.intersection(live_tensors([tensor], products)) - {tensor}}
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
        """Return True for a result that the gradients read, as PyTorch saves it, unless finding it again is cheap;
        for few values behind a reduction; and for products, where they may be kept."""
        n_elements = self._workload.size(tensor.n_elements)
        reductions, n_inputs = self._behind[tensor]
        if isinstance(tensor.definition, Buffer):
            return False
        if is_place_in_window(tensor):
            share = MIN_SHARE if self._is_read_once(tensor) else MIN_OVERLAPPING_SHARE
            return n_elements * share <= self._bytes_of_largest and _reads_inputs(tensor)
        if equal in self._results:
            return tensor in self._direct and (n_inputs > 1 or (reductions and not self._is_found_again(tensor)))
        if isinstance(tensor.definition, Pointwise) and isinstance(tensor.definition.body, Access) and _copied(tensor):
            return False  # a view: what it is of is kept
        if n_elements == 1 or n_elements * MIN_SHARE <= self._largest:
            return bool(reductions) and not self._has_lines(n_elements)
        is_product = _n_terms(tensor, self._workload) is not None
        is_saved = tensor in self._direct and (equal in self._factors or _is_rounded_product(tensor))
        return self._level == PRODUCTS and (is_product or is_saved)

    def _is_read_once(self, place: Tensor) -> bool:
        """Return True if finding the places of maxima again reads each element once: windows do not overlap."""
        loops = [node for node in nodes(*scalars_of(place.definition)) if isinstance(node, Loop)]
        n_taps = self._workload.size(product(variable.extent for loop in loops for variable in loop.loop_variables))
        n_read = max(self._workload.size(access.tensor.n_elements) for access in accesses(*loops))
        return self._workload.size(place.n_elements) * n_taps <= n_read

    def _is_found_again(self, result: Tensor) -> bool:
        """Return True for a result that takes a few operations on kept values of rows and on what the gradients read
        anyway: batch norm and a ReLU in training then move 4 tensors in the backward instead of 5."""
        pending, inputs = [result], set[Tensor]()
        while pending:
            scalars = scalars_of(pending.pop().definition)
            if any(
                isinstance(node, Loop) or (isinstance(node, Operation) and node.name in COSTLY)
                for node in nodes(*scalars)
            ):
                return False
            for tensor in {access.tensor for access in accesses(*scalars)}:
                if isinstance(tensor.definition, Buffer):
                    inputs.add(tensor)
                elif not self._is_kept_value(tensor):
                    if isinstance(tensor.definition, Reduction):
                        return False
                    pending.append(tensor)
        n_elements = self._workload.size(result.n_elements)
        large = {each for each in inputs if self._workload.size(each.n_elements) * MIN_SHARE > n_elements}
        return large.issubset(live_tensors(self._outputs, {result: Buffer()}))

    def _is_kept_value(self, tensor: Tensor) -> bool:
        """Return True for the values of rows that the forward keeps and that are no results."""
        equal = self._equal[tensor]
        return equal is not None and equal not in self._results and self._is_worth(tensor, equal)


def _with_common_taps(scalar: Scalar) -> Scalar:
    """Return a loop over variables that are the same in each graph, by the places they have in it; others as they
    are."""
    if not isinstance(scalar, Loop):
        return scalar
    taps = [Variable("tap", place, variable.extent) for place, variable in enumerate(scalar.loop_variables)]
    replacements = {old: as_index(new) for old, new in zip(scalar.loop_variables, taps, strict=True)}
    operands = (operand.substitute(replacements) for operand in scalar.operands)
    return Loop(scalar.kind, tuple(taps), scalar.dtype, *operands)


def is_place_in_window(tensor: Tensor) -> bool:
    """Return True for the bytes that say which element of its window a maximum is."""
    body = unconverted(tensor.definition.body) if isinstance(tensor.definition, Pointwise) else None
    return tensor.dtype == DType.U8 and isinstance(body, Loop) and body.kind == "window_argmax"


def _reads_inputs(tensor: Tensor) -> bool:
    """Return True if all that the tensor reads lies in memory before the forward, or is a view of that."""
    read = (access.tensor for access in accesses(*scalars_of(tensor.definition)))
    return all(isinstance((_copied(each) or each).definition, Buffer) for each in read)


def _is_product(tensor: Tensor) -> bool:
    return isinstance(tensor.definition, Reduction) and tensor.definition.contraction is not None


def _n_terms(tensor: Tensor, workload: Workload) -> int | None:
    """Return the terms of each element of a product of matrices, rounded to its type or not; None for other tensors."""
    definition = tensor.definition
    if isinstance(definition, Reduction):
        extents = (variable.extent for variable in definition.reduced)
        return workload.size(product(extents)) if definition.contraction is not None else None
    copied = _copied(tensor)
    return _n_terms(copied, workload) if copied is not None else None


def _is_rounded_product(tensor: Tensor) -> bool:
    """Return True for what PyTorch rounds the sum of a product and a bias to, the result of a linear layer in 16 bits:
    half of the bytes of the product as it is found."""
    definition = tensor.definition
    if tensor.dtype not in NARROW or not isinstance(definition, Pointwise):
        return False
    read = {access.tensor for access in accesses(definition.body)}
    others = {each for each in read if _products_of(each) == []}
    return len(read - others) == 1 and all(isinstance(each.definition, Buffer) for each in others)


def _factors(live: Sequence[Tensor]) -> frozenset[Tensor]:
    """Return what a product of matrices multiplies and what is made of another one's result: the forward writes it to
    memory anyway, such as the activation between two linear layers."""
    found: set[Tensor] = set()
    for tensor in live:
        definition = tensor.definition
        if isinstance(definition, Reduction) and definition.contraction is not None:
            found |= {_source(access.tensor) for access in accesses(definition.body)}
    return frozenset(each for each in found if isinstance(each.definition, Pointwise) and _products_of(each))


def _source(tensor: Tensor) -> Tensor:
    """Return what a tensor is a view of, converted or not."""
    while (copied := _copied(tensor)) is not None:
        tensor = copied
    return tensor


def _products_of(tensor: Tensor) -> list[Tensor]:
    """Return the products of matrices that a pointwise tensor is made of, through other pointwise ones."""
    pending, seen = [tensor], {tensor}
    found: list[Tensor] = []
    while pending:
        each = pending.pop()
        if isinstance(each.definition, Reduction) and each.definition.contraction is not None:
            found.append(each)
        elif isinstance(each.definition, Pointwise):
            read = {access.tensor for access in accesses(each.definition.body)} - seen
            seen |= read
            pending += read
    return found


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
        return digest_of("tensor", kind, tensor.dtype.value, ends, *sizes, transformed(alike, _with_common_taps).digest)

    def _stand_in(self, access: Access) -> Scalar:
        """Return the read of a tensor that is called by its content."""
        content = self._found[access.tensor]
        assert content is not None
        if access.tensor not in self._stand_ins:
            made = Tensor(content.hex(), 0, access.tensor.dtype, access.tensor.shape, Buffer())
            self._stand_ins[access.tensor] = made
        return Access(self._stand_ins[access.tensor], access.index, access.mask)
