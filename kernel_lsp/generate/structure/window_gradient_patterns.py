"""Recognize the gradients of a convolution with a pooling behind it, which one kernel and small sums compute.

Rules of the lowering record what they lower in `WindowRecords`, so that nothing is recognized by the form of its
expressions; `pick_windows` chooses, and `codegen.routines.window_gradients` writes the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.routines.window_gradients import KIND, WindowShape, channels_of, shape_of
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Constant, Operation, Scalar
from kernel_lsp.generate.ir.tensor import Definition, Pointwise, Reduction, Routine, Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.structure.depthwise_gradient_patterns import DepthwiseGradients, depthwise_gradients

WINDOW = (2, 2)
"""Sizes of the windows of the template."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of two spatial dims. `source` is (N, C, height, width), `weight` (C_out, C, height, width)."""

    source: Tensor
    weight: Tensor
    bias: Tensor | None
    padding: tuple[int, ...]


@dataclass(frozen=True)
class WindowGradients:
    """Gradients of `convolution`, whose result is pooled, behind a ReLU or not. `grad` is that of the pooling's result;
    `results` are the gradients of the input, the weight and the bias, where they are wanted."""

    grad: Tensor
    convolution: Convolution
    shape: WindowShape
    has_relu: bool
    results: tuple[Tensor | None, Tensor | None, Tensor | None]
    description = "output channels of a block; 0 is apart"

    @property
    def tensors(self) -> list[Tensor]:
        """Return the gradients that are wanted."""
        return [tensor for tensor in self.results if tensor is not None]

    @property
    def n_outputs(self) -> Index:
        """Return the output channels, a fixed number or not."""
        return self.convolution.weight.shape[0]

    def offered(self, live: Collection[Tensor], workload: Workload) -> list[int]:
        """Return the numbers of output channels that a block may have, the default first; none where a gradient is not
        `live`."""
        is_live = all(tensor in live for tensor in self.tensors)
        return channels_of(self.shape, self.n_outputs, workload) if is_live else []

    def parts(self, channels: int) -> Tensor:
        """Return the sums of each block: of an image and `channels` output channels."""
        convolution, has_image = self.convolution, self.results[0] is not None
        bias = () if convolution.bias is None else (convolution.bias,)
        operands = (self.grad, convolution.source, convolution.weight, *bias)
        settings = (channels, int(self.has_relu), int(has_image), *convolution.padding)
        shape = (
            convolution.source.shape[0],
            self.n_outputs // as_index(channels),
            self.shape.record(channels, has_image=has_image),
        )
        serial = min(tensor.serial for tensor in self.tensors) - 1
        return Tensor("grad_parts", serial, DType.F32, shape, Routine(KIND, operands, settings))

    def definitions(self, parts: Tensor, channels: int) -> Mapping[Tensor, Reduction]:
        """Return the gradients as sums of `parts`: that of the input over groups of channels, the others over
        images."""
        of_image, of_weight, of_bias = self.results
        image = self.shape.height * self.shape.width * self.shape.n_inputs if of_image is not None else as_index(0)
        n_record = self.shape.n_taps + 1
        found: dict[Tensor, Reduction] = {}
        if of_image is not None:
            n, c, h, w = _variables(of_image, of_image.shape)
            (group,) = _variables(of_image, (parts.shape[1],), 4)
            flat = (as_index(c) * self.shape.height + as_index(h)) * self.shape.width + as_index(w)
            body = Access(parts, (as_index(n), as_index(group), flat))
            found[of_image] = Reduction("sum", (n, c, h, w), (group,), (n, group, c, h, w), body)
        for tensor in (of_weight, of_bias):
            if tensor is None:
                continue
            variables, (n,) = _variables(tensor, tensor.shape), _variables(tensor, (parts.shape[0],), 4)
            channel, *taps = variables
            place: Index = as_index(self.shape.n_taps)
            if taps:
                c, h, w = taps
                place = (as_index(c) * self.shape.kernel_h + as_index(h)) * self.shape.kernel_w + as_index(w)
            at = image + as_index(channel) % channels * n_record + place
            body = Access(parts, (as_index(n), as_index(channel) // channels, at))
            found[tensor] = Reduction("sum", variables, (n,), (n, *variables), body)
        return found


GradientsByPlanes = WindowGradients | DepthwiseGradients
WindowChoice = tuple[GradientsByPlanes, int]
"""Gradients of one kernel, and the output channels of its blocks, or the strips of a plane."""


def pick_windows(
    families: Iterable[GradientsByPlanes],
    live: Collection[Tensor],
    choices: Choices,
    workload: Workload,
    operation: str,
) -> list[WindowChoice]:
    """Choose which gradients one kernel computes. Those of a convolution of (64, 1, 28, 28) by 32 x 3 x 3 took 38.9 us
    on an H200 apart, 11.6 us so."""
    found: list[WindowChoice] = []
    names = NamePool()
    for family in families:
        offered = family.offered(live, workload)
        if not offered:
            continue
        name = f"{operation}.{names.take('grad_parts')}.windows"
        channels = choices.pick_int(name, (0, *offered), offered[0], family.description)
        found += [(family, channels)] if channels else []
    return found


def defined_by(chosen: Iterable[WindowChoice]) -> dict[Tensor, Definition]:
    """Return the definitions of the gradients that one kernel computes."""
    found: dict[Tensor, Definition] = {}
    for family, channels in chosen:
        found |= family.definitions(family.parts(channels), channels)
    return found


@dataclass
class WindowRecords:
    """Record convolutions and poolings of one graph while it is lowered. `poolings` has the gradient and the input of
    each pooling by windows of 2 x 2 side by side, by the gradient of its input."""

    convolutions: dict[Tensor, Convolution] = field(default_factory=dict)
    poolings: dict[Tensor, tuple[Tensor, Tensor]] = field(default_factory=dict)
    depthwise: dict[Tensor, Convolution] = field(default_factory=dict)
    found: list[GradientsByPlanes] = field(default_factory=list)

    def gradients_of_depthwise(self, grad: Tensor, convolution: Convolution, results: Sequence[Tensor | None]) -> None:
        """Record the gradients of a depthwise convolution by steps of 1. `convolution` has no bias."""

        def own(tensor: Tensor) -> tuple[Tensor | None] | None:
            found = self.depthwise.get(tensor)
            return (found.bias,) if found is not None and _agree(found, convolution) else None

        source, weight, padding = convolution.source, convolution.weight, convolution.padding
        family = depthwise_gradients(grad, source, weight, padding, results, own)
        self.found += [family] if family is not None else []

    def convolution_gradients(
        self, grad: Tensor, convolution: Convolution, results: tuple[Tensor | None, Tensor | None, Tensor | None]
    ) -> None:
        """Record the gradients of a convolution, if the gradient of its result is that of a pooling. `convolution` has
        no bias."""
        has_relu = grad not in self.poolings
        pooled = _behind_relu(grad, self.poolings) if has_relu else grad
        if pooled is None or not any(tensor is not None for tensor in results):
            return
        grad_out, activated = self.poolings[pooled]
        convolved = _operand_of_relu(activated) if has_relu else activated
        own = self.convolutions.get(convolved) if convolved is not None else None
        shape = shape_of(convolution.source, convolution.weight, convolution.padding)
        if own is None or shape is None or not _agree(own, convolution):
            return
        if {tensor.dtype for tensor in (grad_out, own.source, own.weight, own.bias or own.weight)} == {DType.F32}:
            self.found.append(WindowGradients(grad_out, own, shape, has_relu, results))


def _agree(one: Convolution, other: Convolution) -> bool:
    return (one.source, one.weight, one.padding) == (other.source, other.weight, other.padding)


def _variables(tensor: Tensor, shape: tuple[Index, ...], first: int = 0) -> tuple[Variable, ...]:
    """Return the coordinates of a sum, each a variable of its own."""
    return tuple(Variable("r", -8 * tensor.serial - 1 - first - place, extent) for place, extent in enumerate(shape))


def _copied(scalar: Scalar) -> Tensor | None:
    """Return the tensor whose element of the same index the scalar is."""
    return scalar.tensor if isinstance(scalar, Access) and scalar.mask is None else None


def _body(tensor: Tensor | None) -> Scalar | None:
    return tensor.definition.body if tensor is not None and isinstance(tensor.definition, Pointwise) else None


def _operand_of_relu(tensor: Tensor) -> Tensor | None:
    body = _body(tensor)
    return _copied(body.operands[0]) if isinstance(body, Operation) and body.name == "relu" else None


def _behind_relu(grad: Tensor, poolings: Mapping[Tensor, tuple[Tensor, Tensor]]) -> Tensor | None:
    """Return the gradient of a pooling that `grad` is where the pooling's input, of a ReLU, is above 0; None for any
    other tensor."""
    chosen = _body(grad)
    if not isinstance(chosen, Operation) or chosen.name != "select":
        return None
    condition, zero, value = chosen.operands
    pooled = _copied(value)
    compared = condition if isinstance(condition, Operation) else _body(_copied(condition))
    zero = zero if isinstance(zero, Constant) else _body(_copied(zero)) or zero
    if pooled is None or pooled not in poolings or not isinstance(compared, Operation) or compared.name != "le":
        return None
    left, right = compared.operands
    are_zeros = all(isinstance(each, Constant) and each.value == 0 for each in (zero, right))
    return pooled if are_zeros and _copied(left) is poolings[pooled][1] else None
