"""Pack the parameter memory of a launch from the arguments of the plan."""

from __future__ import annotations

import math
import struct
from typing import Any

from kernel_lsp.ptx.compile.jit import CompiledKernel
from kernel_lsp.ptx.run.buffers import Buffer
from kernel_lsp.ptx.run.layout import MAX_PARAMETER_BYTES
from kernel_lsp.ptx.run.run_request import InvalidRequestError


def pack_parameters(kernel: CompiledKernel, step: dict[str, Any], buffers: dict[str, Buffer]) -> bytes:
    """Return the parameter memory of a launch. Raises InvalidRequestError when the arguments do not fit."""
    expected = kernel.emitted.parameters
    if len(expected) != len(step["arguments"]):
        raise InvalidRequestError(f"{step['kernel']} has {len(expected)} parameters, not {len(step['arguments'])}")
    packed = bytearray(max(16, kernel.emitted.n_parameter_bytes))
    if len(packed) > MAX_PARAMETER_BYTES:
        raise InvalidRequestError(f"more than {MAX_PARAMETER_BYTES} bytes of parameters")
    for (offset, variable), argument in zip(expected, step["arguments"], strict=True):
        data = _encode_argument(argument, variable.n_bytes, buffers)
        if len(data) != variable.n_bytes:
            raise InvalidRequestError(f"{argument} has {len(data)} bytes; the parameter has {variable.n_bytes}")
        packed[offset : offset + len(data)] = data
    return bytes(packed)


# --- below

_SCALAR_FORMATS = {"float": "f", "double": "d", "bool": "?"}


def _encode_argument(argument: dict[str, Any], n_bytes: int, buffers: dict[str, Buffer]) -> bytes:
    if argument["kind"] == "tensor":
        return struct.pack("<Q", buffers[argument["tensor"]].base)
    value = argument["value"]
    code = _SCALAR_FORMATS.get(argument["cuda_type"].replace("const ", "").strip())
    if code == "f" and abs(value) > 3.4028235677973366e38 and math.isfinite(value):
        value = math.copysign(math.inf, value)
    if code is not None:
        return struct.pack("<" + code, value)
    return (int(value) & ((1 << 8 * n_bytes) - 1)).to_bytes(n_bytes, "little")
