"""Build a graph anew, tensor after tensor, with other tensors in place of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, as_position, index_value, rewrite
from kernel_lsp.generate.ir.tensor import (
    Buffer,
    Definition,
    LoopResult,
    Pointwise,
    Reduction,
    Routine,
    Scan,
    Scatter,
    Tensor,
)
from kernel_lsp.generate.loops.bodies import loop_over
from kernel_lsp.generate.lowering.builder import positions
from kernel_lsp.generate.lowering.table import LoweredGraph


class UnknownDefinitionError(Exception):
    """A definition whose reads cannot be replaced, or one that is needed before its turn."""


class Rebuilder:
    """Makes the tensors of a graph anew, in the order in which they are added."""

    def __init__(self, lowered: LoweredGraph) -> None:
        self.lowered = lowered
        self.made: dict[Tensor, Tensor] = {}
        self.tensors: list[Tensor] = []
        self._views: dict[Tensor, tuple[Tensor, int]] = {}
        buffers = [tensor for tensor in lowered.tensors if isinstance(tensor.definition, Buffer)]
        for tensor in buffers:
            self.made[tensor] = tensor
            self.tensors.append(tensor)
        self._serial = max(tensor.serial for tensor in lowered.tensors) + 2  # equal numbers would be equal tensors

    def new(
        self, name: str, dtype: DType, shape: Sequence[Index], definition: Definition, like: Tensor | None = None
    ) -> Tensor:
        """Return a further tensor, which reads tensors of the new graph."""
        source = None if like is None else like.source
        tensor = Tensor(name, self._serial, dtype, tuple(shape), definition, source)
        self._serial += 2
        self.tensors.append(tensor)
        return tensor

    def add(self, tensor: Tensor, change: Callable[[Tensor, Definition], Definition] | None = None) -> Tensor:
        """Add a tensor of the old graph, whose definition `change` may replace, once what it reads is added."""
        if tensor not in self.made:
            definition = with_reads(tensor.definition, self.rewritten, self.made_for)
            if change is not None:
                definition = change(tensor, definition)
            self.made[tensor] = self.new(tensor.name, tensor.dtype, tensor.shape, definition, tensor)
        return self.made[tensor]

    def view_of(self, tensor: Tensor, whole: Tensor, step: int) -> None:
        """Have the old tensor be that of a step in a tensor with an axis of steps."""
        self._views[tensor] = (whole, step)

    def made_for(self, tensor: Tensor) -> Tensor:
        """Return the new tensor for an old one. Raises UnknownDefinitionError for one that is not added yet."""
        if tensor not in self.made and tensor not in self._views:
            raise UnknownDefinitionError(tensor.name)
        if tensor not in self.made:
            whole, step = self._views[tensor]
            own = tuple(Variable(f"i{axis}", -2 - axis, size) for axis, size in enumerate(tensor.shape))
            view = Pointwise(own, Access(whole, (as_index(step), *positions(own))))
            self.made[tensor] = self.new(tensor.name, tensor.dtype, tensor.shape, view, tensor)
        return self.made[tensor]

    def rewritten(self, scalar: Scalar) -> Scalar:
        """Return the scalar over the new graph; reads of a step's tensor are reads of that of all steps."""
        return rewrite(scalar, self._read)

    def _read(self, access: Access) -> Scalar:
        if access.tensor in self._views:
            whole, step = self._views[access.tensor]
            return Access(whole, (as_index(step), *access.index), access.mask)
        return Access(self.made_for(access.tensor), access.index, access.mask)

    def graph(self) -> LoweredGraph:
        """Return the new graph."""
        outputs = tuple(replace(output, tensor=self.made_for(output.tensor)) for output in self.lowered.outputs)
        return replace(self.lowered, tensors=tuple(self.tensors), outputs=outputs)


def with_reads(
    definition: Definition, rewritten: Callable[[Scalar], Scalar], made_for: Callable[[Tensor], Tensor]
) -> Definition:
    """Return the definition over other tensors. Raises UnknownDefinitionError for one that cannot be replaced."""
    match definition:
        case Buffer():
            return definition
        case Pointwise() | Scan():
            return replace(definition, body=rewritten(definition.body))
        case Reduction():
            return _reduction(definition, rewritten)
        case Scatter():
            index = tuple(as_position(rewritten(index_value(place))) for place in definition.index)
            return replace(definition, base=rewritten(definition.base), body=rewritten(definition.body), index=index)
        case Routine():
            return replace(definition, operands=tuple(map(made_for, definition.operands)))
        case LoopResult():
            return replace(definition, loop=loop_over(definition.loop, rewritten))
    raise UnknownDefinitionError(type(definition).__name__)


def _reduction(definition: Reduction, rewritten: Callable[[Scalar], Scalar]) -> Reduction:
    contraction = definition.contraction
    if contraction is not None:
        if contraction.phases is not None:
            raise UnknownDefinitionError("phases")
        left, right = rewritten(contraction.left), rewritten(contraction.right)
        contraction = replace(contraction, left=left, right=right, library=None, copied=None)
    return replace(definition, body=rewritten(definition.body), contraction=contraction)
