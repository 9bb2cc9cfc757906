"""Find the steps of an unrolled loop in the order of definitions: the longest run of tensors that repeats."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.digest import digest_of, operands_first
from kernel_lsp.generate.ir.scalar import Constant, IndexValue, Operation, Scalar
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, Tensor

MIN_STEPS = 8
"""Minimum steps of a loop: fewer are kernels of their own."""
MAX_STEP_TENSORS = 128
"""Maximum tensors of one step: the search takes time in proportion, and a kernel's text, too."""


def outline(tensor: Tensor) -> bytes:
    """Return a hash of the definition without the tensors and the places that it reads. Tensors that cannot be part of
    a loop have one of their own."""
    definition = tensor.definition
    if not isinstance(definition, Pointwise | Reduction):
        return digest_of("opaque", tensor.digest)
    sizes = [size.digest for size in tensor.shape]
    return digest_of(_kind(definition), tensor.dtype.value, *sizes, _outline_of(definition.body))


def _kind(definition: Pointwise | Reduction) -> str:
    if isinstance(definition, Pointwise):
        return "pointwise"
    return f"{definition.kind} {len(definition.reduced)} {definition.contraction is not None}"


def _outline_of(body: Scalar) -> bytes:
    done: dict[bytes, bytes] = {}
    for node in operands_first(body, lambda entry: entry.digest in done):
        is_place = isinstance(node, Constant | IndexValue) and node.dtype is DType.I64  # may depend on the step
        own = node.name if isinstance(node, Operation) else repr(node.value) if isinstance(node, Constant) else ""
        own, kind = ("", "place") if is_place else (own, type(node).__name__)
        operands = (done[operand.digest] for operand in node.operands)
        done[node.digest] = digest_of(kind, own, node.dtype.value, *operands)
    return done[body.digest]


def find_steps(outlines: Sequence[bytes]) -> tuple[int, int, int] | None:
    """Return the first place, the tensors of a step and the number of steps of the run that covers most places; None
    if nothing repeats often enough."""
    best: tuple[int, int, int] | None = None
    for period in range(1, min(MAX_STEP_TENSORS, len(outlines) // MIN_STEPS) + 1):
        length = 0
        for place in range(len(outlines) - period):
            length = length + 1 if outlines[place] == outlines[place + period] else 0
            n_steps = length // period + 1
            if n_steps >= MIN_STEPS and (best is None or n_steps * period > best[1] * best[2]):
                best = (place - length + 1, period, n_steps)
    return best
