"""Find the tensors that definitions read, and the live definitions: those that the outputs depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Access, IndexValue, Scalar
from kernel_lsp.generate.ir.scalar_walk import accesses
from kernel_lsp.generate.ir.tensor import (
    Attention,
    AttentionGradient,
    Contraction,
    Definition,
    LibraryResult,
    Phases,
    Pointwise,
    Reduction,
    Routine,
    Scan,
    Scatter,
    Tensor,
)


def live_tensors(outputs: Sequence[Tensor], definitions: Mapping[Tensor, Definition]) -> list[Tensor]:
    """Return every tensor that the outputs depend on, in the order of definition. `definitions` overrides the tensors'
    own."""
    found: set[Tensor] = set()
    pending = list(outputs)
    while pending:
        tensor = pending.pop()
        if tensor not in found:
            found.add(tensor)
            scalars = scalars_of(definitions.get(tensor, tensor.definition))
            pending.extend(access.tensor for access in accesses(*scalars))
    return sorted(found, key=lambda tensor: tensor.serial)


def scalars_of(definition: Definition) -> list[Scalar]:
    """Return every scalar that the definition evaluates; library calls and routines read their operands."""
    match definition:
        case Reduction(contraction=Contraction(form_by_phases=Phases(left=left, right=right))):
            return [left, right]
        case Pointwise(_, body) | Reduction(body=body) | Scan(body=body):
            return [body]
        case Attention():
            return [definition.query_part, definition.key_part, definition.value, definition.score]
        case AttentionGradient():
            factors = [definition.query_part, definition.key_part, definition.value, definition.grad, definition.score]
            return [*factors, *([definition.statistics] if definition.statistics is not None else [])]
        case Scatter():
            carriers: list[Scalar] = [IndexValue(index) for index in definition.index]
            optional = [scalar for scalar in (definition.base, definition.mask) if scalar is not None]
            return [definition.body, *carriers, *optional]
        case LibraryResult() | Routine():
            return [Access(operand, [as_index(0)] * len(operand.shape)) for operand in operands_of(definition)]
    return []


def operands_of(definition: Definition) -> list[Tensor]:
    """Return the tensors that a library call, a routine or a contraction by phases needs in memory; none for other
    definitions."""
    if isinstance(definition, Routine):
        return list(definition.operands)
    if isinstance(definition, Reduction) and definition.contraction is not None:
        phases = definition.contraction.form_by_phases
        return [] if phases is None else list(phases.stored)
    if not isinstance(definition, LibraryResult):
        return []
    return [argument for argument in definition.call.arguments if isinstance(argument, Tensor)]
