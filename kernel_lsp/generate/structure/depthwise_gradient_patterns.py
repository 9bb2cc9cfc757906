"""Gradients of depthwise convolutions by planes, which one kernel and small sums compute.

The lowering records convolutions and their gradients. What the incoming gradient is made of, back to tensors in memory
and to the convolution's own result, becomes part of the kernel, `codegen.routines.depthwise_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.routines.depthwise_planes import (
    CONVOLVED,
    KIND,
    MAX_TAPS,
    PlaneShape,
    strips_of,
)
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Scalar, accesses, masked, nodes, rewrite
from kernel_lsp.generate.ir.tensor import Definition, Pointwise, Reduction, Routine, Tensor
from kernel_lsp.generate.ir.workload import Workload

MAX_NODES = 120
"""Maximum nodes of the incoming gradient's expression. A larger one is computed by a kernel of its own."""
TYPES = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(frozen=True)
class DepthwiseGradients:
    """Gradients of a depthwise convolution of `source` (N, C, height, width) by `weight` (C, 1, kernel), for `grad`,
    the gradient of its result. `body` is an element of that over `variables`; it reads the result as `CONVOLVED`, then
    with `bias`. `results` are the gradients of the input, of the weight and, where it is wanted, of the bias."""

    grad: Tensor
    source: Tensor
    weight: Tensor
    bias: Tensor | None
    shape: PlaneShape
    variables: tuple[Variable, ...]
    body: Scalar
    results: tuple[Tensor, ...]
    description = "strips of a plane, each of a block; 0 is apart"

    @property
    def tensors(self) -> list[Tensor]:
        return list(self.results)

    def offered(self, live: Collection[Tensor], workload: Workload) -> list[int]:
        """Return the numbers of strips that fit, the default first; none where a gradient is not `live`."""
        return strips_of(self.shape, workload) if all(tensor in live for tensor in self.results) else []

    def _routine(self, strips: int) -> Routine:
        bias = () if self.bias is None else (self.bias,)
        first = (self.source, self.weight, *bias)
        read = dict.fromkeys(access.tensor for access in accesses(self.body))
        operands = (*first, *(tensor for tensor in read if tensor not in first))
        settings = (strips, self.shape.pad_h, self.shape.pad_w, len(bias))
        return Routine(KIND, operands, settings, self.variables, self.body, place=1)

    def parts(self, strips: int) -> Tensor:
        """Return the sums of each strip (N, strips, C, weights and bias)."""
        has_bias = len(self.results) > 2
        shape = (self.source.shape[0], as_index(strips), self.source.shape[1], as_index(self.shape.n_taps + has_bias))
        serial = min(tensor.serial for tensor in self.results) - 1
        return Tensor("grad_parts", serial, DType.F32, shape, self._routine(strips))

    def definitions(self, parts: Tensor, strips: int) -> Mapping[Tensor, Definition]:
        """Return the gradient of the input as a result of the kernel, and the others as sums of `parts`."""
        of_input, *others = self.results
        found: dict[Tensor, Definition] = {of_input: replace(self._routine(strips), place=0)}
        for tensor in others:
            variables = _variables(tensor, tensor.shape)
            n, strip = _variables(tensor, parts.shape[:2], 4)
            channel, *taps = variables
            place = as_index(self.shape.n_taps)
            if taps:
                place = as_index(taps[1]) * self.shape.kernel_w + as_index(taps[2])
            body = Access(parts, (as_index(n), as_index(strip), as_index(channel), place))
            found[tensor] = Reduction("sum", variables, (n, strip), (n, strip, *variables), body)
        return found


def depthwise_gradients(
    grad: Tensor,
    source: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    results: Sequence[Tensor | None],
    own: Callable[[Tensor], tuple[Tensor | None] | None],
) -> DepthwiseGradients | None:
    """Return the gradients of a depthwise convolution by steps of 1; None where the kernel does not fit them. `own`
    returns the bias of a tensor that is a result of this convolution, None for any other."""
    of_input, of_weight, of_bias = results
    sizes = [size.constant for size in weight.shape[2:]]
    if of_input is None or of_weight is None or None in sizes or len(sizes) != 2:
        return None
    high, wide = (size or 0 for size in sizes)
    if high * wide > MAX_TAPS or padding[0] >= high or padding[1] >= wide:
        return None
    shape = PlaneShape(high, wide, padding[0], padding[1], *source.shape[2:], *grad.shape[2:])
    variables = _variables(grad, grad.shape)
    whole = Access(grad, tuple(map(as_index, variables)))
    body, biases = _inlined(whole, own)
    if len(list(nodes(body))) > MAX_NODES:
        body, biases = whole, []
    bias = biases[0] if biases else None
    tensors = {grad, source, weight, of_input, *(access.tensor for access in accesses(body))}
    if any(tensor.dtype.is_floating and tensor.dtype not in TYPES for tensor in tensors):
        return None
    wanted = (of_input, of_weight) if of_bias is None else (of_input, of_weight, of_bias)
    return DepthwiseGradients(grad, source, weight, bias, shape, variables, body, wanted)


def _inlined(whole: Access, own: Callable[[Tensor], tuple[Tensor | None] | None]) -> tuple[Scalar, list[Tensor | None]]:
    """Return the element with pointwise definitions inlined, and the convolution's bias if it reads its result."""
    biases: list[Tensor | None] = []

    def replaced(access: Access) -> Scalar:
        found = own(access.tensor)
        if found is not None and access.index == whole.index and access.mask is None:
            biases.append(found[0])
            return CONVOLVED
        definition = access.tensor.definition
        if not isinstance(definition, Pointwise) or found is not None:
            return access
        body = definition.body.substitute(dict(zip(definition.variables, access.index, strict=True)))
        expanded = rewrite(body, replaced)
        return masked(access.mask, expanded) if access.mask is not None else expanded

    return replaced(whole), biases


def _variables(tensor: Tensor, shape: Sequence[Index], first: int = 0) -> tuple[Variable, ...]:
    """Return the coordinates of a sum, each a variable of its own."""
    return tuple(Variable("r", -8 * tensor.serial - 1 - first - place, extent) for place, extent in enumerate(shape))
