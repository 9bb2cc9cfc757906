"""Fix the number of channels of interleaved pixels, so that a thread takes whole pixels."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Task

CHANNELS = (3, 4)
"""Numbers of channels of which a thread takes whole pixels."""
PIXEL_TYPES = (DType.U8, DType.I8)


def channels_of(task: Task) -> dict[str, int]:
    """Return the dims to fix at their captured size: the 3 or 4 channels that are the last dim of an input of 8 bits,
    and not the last of a result of as many dims, which has them in planes. All configurations must have as many."""
    captured = {symbol.name: symbol.captured for symbol in task.symbols}
    planes = [type_.shape for output in task.forward.outputs if (type_ := output.type) is not None]
    found: dict[str, int] = {}
    for tensor in task.tensors:
        shape = tensor.type.shape
        name = shape[-1] if shape else ""
        is_planar = any(len(other) == len(shape) > 1 and name in other[:-1] for other in planes)
        if tensor.type.dtype in PIXEL_TYPES and captured.get(name) in CHANNELS and is_planar:
            sizes = {configuration.shapes[tensor.name][-1] for configuration in task.configurations}
            found |= {name: captured[name]} if sizes == {captured[name]} else {}
    return found
