"""Keep the logarithms of an attention's sums for its gradients, which then need not find them again."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.fusion.graph import live_tensors
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index
from kernel_lsp.generate.ir.scalar import Access, unconverted
from kernel_lsp.generate.ir.tensor import Attention, Buffer, LogSums, Pointwise, Tensor
from kernel_lsp.generate.library import fused_operands, fused_settings, gradient_plans, kept_attention_plans
from kernel_lsp.generate.lowering.table import LoweredGraph, LoweredOutput
from kernel_lsp.generate.structure.attention_gradient_patterns import GradientFamily, KeptAttention, find_gradients
from kernel_lsp.generate.structure.attention_patterns import find_attention

LOG_SUMS = "log_sums"


def keep_attention(forward: LoweredGraph, backward: LoweredGraph) -> tuple[LoweredGraph, LoweredGraph] | None:
    """Return both graphs, where the forward writes the logarithms and the backward takes them and the forward's result;
    None unless each has one attention, of the same inputs, and the forward returns its result."""
    found = _of_forward(forward)
    if found is None or LOG_SUMS in (*forward.inputs, *forward.returns, *backward.inputs):
        return None
    kept = _buffers(backward, found)
    families = [] if kept is None else find_gradients(_live(backward), kept)
    if kept is None or len(families) != 1 or families[0].statistics is not None or not _is_same(found, families[0]):
        return None
    definition, log_sums = _log_sums(found), found.log_sums
    plans = kept_attention_plans(found.tensor, found.attention, replace(log_sums, definition=definition))
    has_library = bool(plans) and bool(gradient_plans(families[0].gradients, (kept.out, kept.log_sums)))
    written = replace(log_sums, definition=replace(definition, has_library=has_library))
    return (
        replace(
            forward,
            tensors=tuple(sorted((*forward.tensors, written), key=lambda tensor: tensor.serial)),
            outputs=(*forward.outputs, LoweredOutput(LOG_SUMS, written)),
        ),
        replace(
            backward,
            inputs={**backward.inputs, LOG_SUMS: kept.log_sums, found.out.name: kept.out},
            tensors=(*backward.tensors, kept.log_sums, kept.out),
            given=frozenset((LOG_SUMS, found.out.name)),
            attention=replace(kept, has_library=has_library),
        ),
    )


@dataclass(frozen=True)
class _Found:
    """The attention of a forward: its operands, the result that it is, and the tensor of its logarithms."""

    tensor: Tensor
    attention: Attention
    operands: tuple[Access, Access, Access]
    settings: tuple[bool, float]
    names: tuple[str, ...]
    out: LoweredOutput

    @property
    def log_sums(self) -> Tensor:
        """Return the tensor of the logarithms, (batch, heads, queries)."""
        shape = self.operands[0].tensor.shape[:-1]
        return Tensor(LOG_SUMS, self.tensor.serial + 1, DType.F32, shape, Buffer())


def _of_forward(forward: LoweredGraph) -> _Found | None:
    attentions = [(each, found) for each in _live(forward) if (found := find_attention(each)) is not None]
    if len(attentions) != 1:
        return None
    tensor, attention = attentions[0]
    m, n = (attention.variables[axes[0]] for axes in (attention.row_axes, attention.column_axes))
    operands, settings = fused_operands(attention, m, n), fused_settings(attention, m)
    out = next((output for output in forward.outputs if _is_view(output.tensor, tensor)), None)
    names = {input_: name for name, input_ in forward.inputs.items()}
    if operands is None or settings is None or out is None or any(each.tensor not in names for each in operands):
        return None
    return _Found(tensor, attention, operands, settings, tuple(names[each.tensor] for each in operands), out)


def _live(graph: LoweredGraph) -> list[Tensor]:
    return live_tensors([output.tensor for output in graph.outputs], {})


def _is_view(tensor: Tensor, attention: Tensor) -> bool:
    """Return True if the tensor is the attention's result, as it is or rounded, in any order of elements."""
    while tensor is not attention:
        definition = tensor.definition
        body = unconverted(definition.body) if isinstance(definition, Pointwise) else None
        if not isinstance(body, Access) or body.mask is not None or body.tensor.n_elements != tensor.n_elements:
            return False
        tensor = body.tensor
    return True


def _buffers(backward: LoweredGraph, found: _Found) -> KeptAttention | None:
    """Return the buffers of what the backward takes; None where it has no gradient of the result."""
    grad, queries = backward.inputs.get(f"grad_{found.out.name}"), backward.inputs.get(found.names[0])
    if grad is None or queries is None or grad.shape != found.out.tensor.shape:
        return None
    serial = 2 * len(backward.tensors)
    log_sums = Tensor(LOG_SUMS, serial, DType.F32, queries.shape[:-1], Buffer())
    out = Tensor(found.out.name, serial + 2, found.out.tensor.dtype, grad.shape, Buffer())
    return KeptAttention(queries, log_sums, out, grad)


def _is_same(found: _Found, family: GradientFamily) -> bool:
    """Check that the gradients are those of the forward's attention: of inputs of the same names, with the same mask,
    and with the same scale in f32, by whose last bit scores would differ."""
    for _, gradient in family.gradients:
        if gradient.kind != "query":
            continue
        operands, settings = fused_operands(gradient, gradient.m, gradient.width), fused_settings(gradient, gradient.m)
        if operands is None or settings is None or settings[0] != found.settings[0]:
            return False
        names = tuple(each.tensor.name for each in operands)
        return names == tuple(each.tensor.name for each in found.operands) and _in_f32(settings[1]) == _in_f32(
            found.settings[1]
        )
    return False


def _in_f32(number: float) -> bytes:
    return struct.pack("f", number)


def _log_sums(found: _Found) -> LogSums:
    """Return the definition of the logarithms in the forward."""
    variables = tuple(
        Variable("r", -4 * found.tensor.serial - 2 - place, extent) for place, extent in enumerate(found.log_sums.shape)
    )
    read = Access(found.tensor, tuple(as_index(variable) for variable in found.attention.variables))
    return LogSums(variables, read, found.operands[0].index[:-1])
