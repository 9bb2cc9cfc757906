"""Split products with tensors that lie side by side, such as an input and a state, into a product of each part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernel_lsp.generate.fusion.graph import live_tensors
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Constant, IndexValue, Operation, Scalar, nodes, rewrite
from kernel_lsp.generate.ir.tensor import Contraction, Pointwise, Reduction, Tensor, through_views
from kernel_lsp.generate.loops.rebuilding import Rebuilder
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import positions
from kernel_lsp.generate.lowering.table import LoweredGraph

MAX_PARTS = 8
"""Maximum parts that a product is split into."""


def with_split_products(lowered: LoweredGraph) -> LoweredGraph:
    """Return the graph with every product over a concatenation as a sum of products."""
    live = live_tensors([output.tensor for output in lowered.outputs], {})
    wanted = {tensor: bounds for tensor in live if len(bounds := _bounds_of(tensor)) > 2}
    if not wanted:
        return lowered
    rebuilder = Rebuilder(lowered)
    for tensor in live:
        if tensor in wanted:
            _add_split(rebuilder, tensor, wanted[tensor])
        else:
            rebuilder.add(tensor)
    return rebuilder.graph()


def _bounds_of(tensor: Tensor) -> list[int]:
    """Return where the parts of a product's terms begin, and their number; fewer than 3 of any other tensor."""
    definition = tensor.definition
    if not isinstance(definition, Reduction) or definition.contraction is None or len(definition.reduced) != 1:
        return []
    (k,) = definition.reduced
    n = k.extent.constant
    if n is None or definition.contraction.phases is not None:
        return []
    found = {0, n}
    for factor in (definition.contraction.left, definition.contraction.right):
        found |= {bound for bound in _bounds(_inlined(factor), k) if 0 < bound < n}
    return sorted(found) if len(found) <= MAX_PARTS + 1 else []


def _inlined(factor: Scalar) -> Scalar:
    """Return the factor with a concatenation that it reads in its place."""

    def read(access: Access) -> Scalar:
        definition = access.tensor.definition
        if access.mask is not None or not isinstance(definition, Pointwise) or not _is_choice(definition.body):
            return access
        return definition.body.substitute(dict(zip(definition.variables, access.index, strict=True)))

    return rewrite(through_views(factor), read)


def _is_choice(body: Scalar) -> bool:
    return isinstance(body, Operation) and body.name == "select"


def _bounds(scalar: Scalar, variable: Variable) -> set[int]:
    found = set[int]()
    for node in nodes(scalar):
        if isinstance(node, Operation) and node.name in ("lt", "ge"):
            left, right = node.operands
            if isinstance(left, IndexValue) and left.index == as_index(variable) and isinstance(right, Constant):
                found.add(int(right.value))
    return found


def _add_split(rebuilder: Rebuilder, tensor: Tensor, bounds: Sequence[int]) -> None:
    definition = tensor.definition
    assert isinstance(definition, Reduction)
    assert definition.contraction is not None
    (k,) = definition.reduced
    parts = []
    for number, (low, high) in enumerate(itertools.pairwise(bounds)):
        own = Variable("k", -10 - number, as_index(high - low))
        part = _part(definition, definition.contraction, {k: as_index(low) + as_index(own)}, own)
        made = replace(
            part,
            body=rebuilder.rewritten(part.body),
            contraction=_rewritten(part.contraction, rebuilder),
        )
        parts.append(rebuilder.new(f"{tensor.name}_part", tensor.dtype, tensor.shape, made, tensor))
    at = positions(definition.variables)
    total: Scalar = Access(parts[0], at)
    for added in parts[1:]:
        total = op("add", total, Access(added, at))
    rebuilder.made[tensor] = rebuilder.new(
        tensor.name, tensor.dtype, tensor.shape, Pointwise(definition.variables, total), tensor
    )


def _part(definition: Reduction, contraction: Contraction, place: Mapping[Variable, Index], own: Variable) -> Reduction:
    """Return the product over a part of the terms: `place` has the position of each term of `own` among all."""
    left, right, body = (
        _inlined(scalar).substitute(place) for scalar in (contraction.left, contraction.right, definition.body)
    )
    domain = tuple(own if variable in place else variable for variable in definition.domain)
    made = replace(contraction, left=left, right=right, library=None)
    return replace(definition, reduced=(own,), domain=domain, body=body, contraction=made)


def _rewritten(contraction: Contraction | None, rebuilder: Rebuilder) -> Contraction | None:
    if contraction is None:
        return None
    left, right = rebuilder.rewritten(contraction.left), rebuilder.rewritten(contraction.right)
    return replace(contraction, left=left, right=right)
