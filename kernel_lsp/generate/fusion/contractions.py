"""Contraction groups: a sum of products, by tiles or by a library, with what reads it element by element."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.groups import ContractionGroup, LibraryGroup, Store
from kernel_lsp.generate.fusion.progress import Progress
from kernel_lsp.generate.index import Index, as_index, product
from kernel_lsp.generate.row_major import ravel, reshape, unravel_safe
from kernel_lsp.generate.scalar import Access, Operation, Scalar
from kernel_lsp.generate.scalar_walk import accesses, rewrite
from kernel_lsp.generate.tensor import Contraction, LibraryResult, Pointwise, Reduction, Tensor


def grow_contraction(
    progress: Progress, seed: Tensor, definition: Reduction, contraction: Contraction
) -> tuple[ContractionGroup, list[Tensor]]:
    """The group of a sum of products, with its epilogue; the roots that it computes."""
    axes = (contraction.batch_axes, contraction.row_axes, contraction.column_axes)
    shapes = [[seed.shape[axis] for axis in group] for group in axes]
    coordinates = [
        progress.variable(name, product(shape)) for name, shape in zip(("batch", "m", "n"), shapes, strict=True)
    ]
    k = progress.variable("k", product(variable.extent for variable in definition.reduced))
    at: list[Index] = [as_index(0)] * len(seed.shape)
    for group, shape, coordinate in zip(axes, shapes, coordinates, strict=True):
        for axis, position in zip(group, unravel_safe(as_index(coordinate), shape), strict=True):
            at[axis] = position
    replacements = dict(zip(definition.variables, at, strict=True))
    reduced_shape = [variable.extent for variable in definition.reduced]
    replacements.update(zip(definition.reduced, unravel_safe(as_index(k), reduced_shape), strict=True))
    left = progress.expand(contraction.left.substitute(replacements))
    right = progress.expand(contraction.right.substitute(replacements))
    roots = [seed]
    stores = tuple(_epilogue(progress, seed, tuple(at), roots))
    batch, m, n = coordinates
    rows = tuple(shapes[1])
    operand = operand_type(seed, contraction) if contraction.on_tensor_cores else None
    reduced = definition.reduced
    return ContractionGroup(seed, batch, m, n, k, left, right, tuple(at), rows, reduced, stores, operand), roots


def operand_type(tensor: Tensor, contraction: Contraction) -> DType | None:
    """Return the element type in which tensor cores multiply the factors; None where they cannot."""
    types = {contraction.left.dtype, contraction.right.dtype}
    if tensor.dtype != DType.F32 or not types <= {DType.F32, DType.F16, DType.BF16}:
        return None
    return types.pop() if len(types) == 1 else DType.F32


def grow_library(progress: Progress, seed: Tensor, definition: LibraryResult) -> tuple[LibraryGroup, list[Tensor]]:
    """The call writes a result of the operation itself where that is all the result is."""
    graph = progress.graph
    readers = [tensor for tensor in progress.pending if tensor is not seed and seed in graph.needs(tensor)]
    if len(readers) == 1 and seed not in graph.outputs and _is_copy(progress, readers[0], seed):
        return LibraryGroup(readers[0], definition.call), [seed, readers[0]]
    return LibraryGroup(seed, definition.call), [seed]


# --- below: what reads a sum


def _epilogue(progress: Progress, seed: Tensor, at: tuple[Index, ...], roots: list[Tensor]) -> list[Store]:
    """Pending pointwise roots that read the sum element by element; they join `roots`."""
    stores: list[Store] = []
    own = Access(seed, at)
    for tensor in progress.pending:
        if progress.graph.is_hard(tensor) or seed not in progress.graph.needs(tensor):
            continue
        if not progress.is_ready(tensor, roots) or not progress.sizes.same(tensor.n_elements, seed.n_elements):
            continue
        index = reshape(at, seed.shape, tensor.shape)
        scalar = progress.element(tensor, index, frozenset((seed,)))
        if scalar is not None and _reads_only_at(scalar, seed, at):
            scalar = rewrite(scalar, lambda access: own if access.tensor is seed else access)
            stores.append(Store(tensor, index, scalar))
            roots.append(tensor)
    return stores


def _reads_only_at(scalar: Scalar, tensor: Tensor, at: tuple[Index, ...]) -> bool:
    flat = ravel(at, tensor.shape)
    return all(access.tensor is not tensor or ravel(access.index, tensor.shape) == flat for access in accesses(scalar))


def _is_copy(progress: Progress, tensor: Tensor, source: Tensor) -> bool:
    """Whether it is the source in the same order, perhaps through casts there and back."""
    definition = progress.graph.definitions[tensor]
    if not isinstance(definition, Pointwise) or tensor.shape != source.shape or tensor.dtype != source.dtype:
        return False
    index = tuple(as_index(variable) for variable in definition.variables)
    scalar = progress.element(tensor, index, frozenset((source,)))
    while isinstance(scalar, Operation) and scalar.name == "cast":
        scalar = scalar.operands[0]
    if not isinstance(scalar, Access) or scalar.tensor is not source or scalar.mask is not None:
        return False
    return ravel(scalar.index, source.shape) == ravel(index, tensor.shape)
