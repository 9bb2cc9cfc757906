"""A bound operation with its tensors on a GPU: what is checked, replayed and timed.

    run = BoundRun(candidate, operation, inputs)   # buffers between guards, outputs and scratch poisoned
    run()                                          # takes the steps on PyTorch's current stream, returns at once
    run.outputs(); run.overrun()                   # after a synchronization
    other = run.fresh()                            # the same content at other addresses
    run.refill(other_inputs)                       # other content at the same addresses

An operation is the JSON of `kernel_lsp.core.plan.BoundOperation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..dtypes import torch_dtype
from ..failure import Failure
from ..library import _argument, _function
from ..shipped.cuda_runtime import POINTER, KernelLaunch, current_stream
from .fingerprints import as_bytes, broken_guards, fingerprints

POISON_BYTE = 0xFF
"""Repeated, a NaN in every floating type."""
OTHER_POISON_BYTE = 0xA5
"""Repeated, a small number in every floating type: what depends on memory that nobody wrote shows beside the first."""
GUARD_BYTES = 4096
"""Poisoned before and after every tensor that a kernel may write, and looked at afterwards. A whole page, so that
alignment stays as it is."""


NO_OFFSETS: Mapping[str, int] = {}


@dataclass
class Candidate:
    """A candidate on a device: a handle for each name expression. `code` is what they were loaded from, and `symbols`
    has the symbol of each in it."""

    functions: dict[str, Any]
    device: int
    module: Any = None
    code: bytes = field(default=b"", repr=False)
    symbols: dict[str, str] = field(default_factory=dict)


class BoundRun:
    """A bound operation with buffers of its own. Calling it takes the steps on the current stream.

    `inputs` are tensors by name, on any device; their content is copied, and they are kept for `fresh`. Every tensor
    lies between two guards of `GUARD_BYTES`; inputs begin `offsets` bytes behind a page, by name, others at one. Raises
    torch.OutOfMemoryError where they do not fit.
    """

    def __init__(
        self,
        candidate: Candidate,
        operation: Mapping[str, Any],
        inputs: Mapping[str, torch.Tensor],
        *,
        offsets: Mapping[str, int] = NO_OFFSETS,
    ) -> None:
        self.device = candidate.device
        self.tensors: dict[str, torch.Tensor] = {}
        self._candidate, self._operation, self._inputs = candidate, operation, inputs
        self._offsets = offsets
        self._roles = {tensor["name"]: tensor["role"] for tensor in operation["tensors"]}
        self._buffers: dict[str, torch.Tensor] = {}
        self._own: dict[str, torch.Tensor] = {}
        for tensor in operation["tensors"]:
            self._allocate(tensor)
        self.refill(inputs)
        self._steps = [self._step(step, candidate) for step in operation["steps"]]

    def __call__(self) -> None:
        for step in self._steps:
            step()

    def fresh(self) -> BoundRun:
        """The same operation on the same content in buffers of its own: other addresses while this one lives."""
        return BoundRun(self._candidate, self._operation, self._inputs, offsets=self._offsets)

    def refill(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Other content at the same addresses; outputs and scratch are poisoned."""
        self._inputs = inputs
        for name, role in self._roles.items():
            if role == "input":
                self._own[name].copy_(inputs[name])
        self.poison()

    def poison(self, byte: int = POISON_BYTE) -> None:
        """Write over outputs and scratch, so that what nobody writes is not right by luck."""
        for name, role in self._roles.items():
            self.tensors[name] = self._own[name]
            if role != "input":
                as_bytes(self._own[name]).fill_(byte)

    def output_tensors(self) -> dict[str, torch.Tensor]:
        """The outputs themselves, on the device."""
        return {name: self.tensors[name] for name, role in self._roles.items() if role == "output"}

    def outputs(self) -> dict[str, torch.Tensor]:
        """Copies on the CPU."""
        return {name: tensor.cpu() for name, tensor in self.output_tensors().items()}

    def output_fingerprints(self) -> dict[str, int]:
        """A number for the bytes of each output."""
        return fingerprints(self.output_tensors())

    def changed_inputs(self, expected: Mapping[str, int]) -> list[str]:
        """Inputs whose bytes are not those of the fingerprints, taken before the run. A gradient need not take all that
        the forward pass took: what it has no copy of it cannot have changed."""
        found = fingerprints({name: self._own[name] for name in expected if name in self._own})
        return [name for name in found if found[name] != expected[name]]

    def overrun(self) -> list[str]:
        """Tensors whose guards are no longer as they were."""
        return broken_guards(self._buffers, GUARD_BYTES, POISON_BYTE)

    @property
    def input_bytes(self) -> int:
        """Of all inputs."""
        return self._bytes_of("input")

    @property
    def output_bytes(self) -> int:
        """Of all outputs."""
        return self._bytes_of("output")

    @property
    def scratch_bytes(self) -> int:
        """What the operation needs beside its inputs and outputs."""
        return self._bytes_of("scratch")

    def _bytes_of(self, role: str) -> int:
        return sum(_n_bytes(self._own[name]) for name, own_role in self._roles.items() if own_role == role)

    def _allocate(self, tensor: Mapping[str, Any]) -> None:
        name, dtype = tensor["name"], torch_dtype(tensor["dtype"])
        n_bytes = dtype.itemsize * math.prod(tensor["shape"])
        offset = self._offsets.get(name, 0) if tensor["role"] == "input" else 0
        n_whole = offset + n_bytes + 2 * GUARD_BYTES
        whole = torch.full((n_whole,), POISON_BYTE, dtype=torch.uint8, device=on(self.device))
        self._buffers[name] = buffer = whole[offset:]
        self._own[name] = buffer[GUARD_BYTES : GUARD_BYTES + n_bytes].view(dtype).view(tensor["shape"])

    def _step(self, step: Mapping[str, Any], candidate: Candidate) -> Callable[[], None]:
        if step["kind"] == "fill":
            return lambda: self._fill(step)
        if step["kind"] == "library":
            return lambda: self._library(step)
        return self._launch(step, candidate)

    def _fill(self, step: Mapping[str, Any]) -> None:
        self.tensors[step["tensor"]].fill_(step["value"])

    def _library(self, step: Mapping[str, Any]) -> None:
        """The library's own results take the place of the tensors: a copy would not be part of the operator either."""
        arguments = [_argument(argument, self.tensors) for argument in step["arguments"]]
        found = _function(step["function"])(*arguments)
        values = found if isinstance(found, (tuple, list)) else (found,)
        for name, value in zip(step["results"], (value for value in values if value is not None)):
            declared = self.tensors[name]
            if value.shape != declared.shape or value.dtype != declared.dtype:
                raise Failure(f"{step['function']} gives {value.dtype} {list(value.shape)} for '{name}'")
            self.tensors[name] = value.contiguous()

    def _launch(self, step: Mapping[str, Any], candidate: Candidate) -> Callable[[], None]:
        arguments = step["arguments"]
        packed = [POINTER if a["kind"] == "tensor" else (a["cuda_type"], a["value"]) for a in arguments]
        names = [argument["tensor"] for argument in arguments if argument["kind"] == "tensor"]
        launch = KernelLaunch(
            candidate.functions[step["kernel"]],
            step["grid"],
            step["block"],
            step["shared_bytes"],
            packed,
            step["attributes"],
        )
        return lambda: launch(current_stream(self.device), *(self.tensors[name].data_ptr() for name in names))


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bitwise, so that NaNs are equal to themselves and zeros have their sign."""
    return torch.equal(as_bytes(one), as_bytes(other))


def on(device: int) -> torch.device:
    """The device that tensors of a GPU are on."""
    return torch.device("cuda", device)


# --- below: bytes


def _n_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
