"""A bound operation with its tensors on a GPU, for checks, replays and timing.

    run = BoundRun(candidate, operation, inputs)   # buffers between guards, outputs and scratch poisoned
    run()                                          # enqueues the steps on PyTorch's current stream, returns at once
    run.outputs(); run.overrun()                   # after a synchronization
    other = run.fresh()                            # the same contents at other addresses
    run.refill(other_inputs)                       # other contents at the same addresses

An operation is the JSON of `kernel_lsp.core.plan.BoundOperation`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..failure import Failure
from ..files import read_tensor, torch_dtype
from ..library import _argument, _function
from ..shipped.cuda_runtime import (
    POINTER,
    CudaError,
    KernelLaunch,
    architecture_of,
    compiled,
    current_stream,
    find_function,
    load_module,
    make_context_current,
    on_device,
)
from . import device as gpu_device
from .fingerprints import as_bytes, broken_guards, fingerprints

POISON_BYTE = 0xFF
"""Byte of the poison. Repeated, a NaN in every floating type."""
OTHER_POISON_BYTE = 0xA5
"""Byte of the second poison. Repeated, a small number in every floating type: dependence on uninitialised memory shows
against the first."""
GUARD_BYTES = 4096
"""Bytes of poison before and after every tensor that a kernel may write, checked afterwards. A whole page, so that
alignment is unchanged."""


NO_OFFSETS: Mapping[str, int] = {}


@dataclass
class Candidate:
    """A candidate on a device: a handle for each name expression. `codes` is the code of its modules, and `symbols` has
    the symbol of each expression in one of them."""

    functions: dict[str, Any]
    device: int
    modules: list[Any] = field(default_factory=list)
    codes: list[bytes] = field(default_factory=list, repr=False)
    symbols: dict[str, str] = field(default_factory=dict)


class BoundRun:
    """A bound operation with buffers of its own. Calling it enqueues the steps on the current stream.

    `inputs` are tensors by name, on any device; their contents are copied, and they are kept for `fresh` until
    `drop_given_inputs`. Every tensor lies between two guards of `GUARD_BYTES`. An input begins `offsets` bytes after a
    page, by name, or at a page.
    Raises torch.OutOfMemoryError where they do not fit.
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
        self.steps = [_step_of(step, candidate) for step in operation["steps"]]

    def __call__(self) -> None:
        for step in self.steps:
            step(self)

    def fresh(self) -> BoundRun:
        """Return the same operation on the same contents in buffers of its own: other addresses while this one
        lives."""
        return BoundRun(self._candidate, self._operation, self._inputs, offsets=self._offsets)

    def drop_given_inputs(self) -> None:
        """Copy from its own inputs from now on, and keep the given ones no longer: large ones occupy memory."""
        self._inputs = {name: self._own[name] for name, role in self._roles.items() if role == "input"}

    def sharing(self) -> BoundRun:
        """Return the same operation on the same buffers, whose tensors may be replaced by others."""
        other = object.__new__(BoundRun)
        other.__dict__.update(self.__dict__, tensors=dict(self.tensors))
        return other

    def refill(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Replace the contents at the same addresses; outputs and scratch are poisoned."""
        self._inputs = inputs
        for name, role in self._roles.items():
            if role == "input":
                self._own[name].copy_(inputs[name])
        self.poison()

    def poison(self, byte: int = POISON_BYTE) -> None:
        """Poison outputs and scratch, so that an element that is never written cannot pass by chance."""
        for name, role in self._roles.items():
            self.tensors[name] = self._own[name]
            if role != "input":
                as_bytes(self._own[name]).fill_(byte)

    def output_tensors(self) -> dict[str, torch.Tensor]:
        """Return the outputs themselves, on the device."""
        return {name: self.tensors[name] for name, role in self._roles.items() if role == "output"}

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return copies on the CPU."""
        return {name: tensor.cpu() for name, tensor in self.output_tensors().items()}

    def output_fingerprints(self) -> dict[str, int]:
        """Return a hash of the bytes of each output."""
        return fingerprints(self.output_tensors())

    def changed_inputs(self, expected: Mapping[str, int]) -> list[str]:
        """Return the inputs whose bytes differ from the fingerprints taken before the run. A gradient need not take all
        that the forward took: it cannot have changed what it has no copy of."""
        found = fingerprints({name: self._own[name] for name in expected if name in self._own})
        return [name for name in found if found[name] != expected[name]]

    def overrun(self) -> list[str]:
        """Return the tensors whose guards changed."""
        return broken_guards(self._buffers, GUARD_BYTES, POISON_BYTE)

    @property
    def has_own_results(self) -> bool:
        """Check whether the last call wrote its outputs to this run's buffers: library steps allocate theirs."""
        return all(tensor is self._own[name] for name, tensor in self.output_tensors().items())

    @property
    def input_bytes(self) -> int:
        """Return the bytes of all inputs."""
        return self._bytes_of("input")

    @property
    def output_bytes(self) -> int:
        """Return the bytes of all outputs."""
        return self._bytes_of("output")

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes of all scratch."""
        return self._bytes_of("scratch")

    def _bytes_of(self, role: str) -> int:
        tensors = (self._own[name] for name, own_role in self._roles.items() if own_role == role)
        return sum(tensor.nbytes for tensor in tensors)

    def _allocate(self, tensor: Mapping[str, Any]) -> None:
        name, dtype = tensor["name"], torch_dtype(tensor["dtype"])
        n_bytes = dtype.itemsize * math.prod(tensor["shape"])
        offset = self._offsets.get(name, 0) if tensor["role"] == "input" else 0
        n_whole = offset + n_bytes + 2 * GUARD_BYTES
        whole = torch.full((n_whole,), POISON_BYTE, dtype=torch.uint8, device=on(self.device))
        self._buffers[name] = buffer = whole[offset:]
        self._own[name] = buffer[GUARD_BYTES : GUARD_BYTES + n_bytes].view(dtype).view(tensor["shape"])


Step = Callable[[BoundRun], None]
"""Enqueues one step on a run's tensors. It refers to no run: one that refers to itself through its steps would occupy
its buffers until Python collects cycles."""


def _step_of(step: Mapping[str, Any], candidate: Candidate) -> Step:
    if step["kind"] == "fill":
        return partial(_fill, step)
    if step["kind"] == "library":
        return partial(_library, step)
    return _launch(step, candidate)


def _fill(step: Mapping[str, Any], run: BoundRun) -> None:
    run.tensors[step["tensor"]].fill_(step["value"])


def _library(step: Mapping[str, Any], run: BoundRun) -> None:
    """Run a library step. The library's own results replace the tensors: a copy would not be part of the operator
    either."""
    arguments = [_argument(argument, run.tensors) for argument in step["arguments"]]
    found = _function(step["function"])(*arguments)
    values = found if isinstance(found, (tuple, list)) else (found,)
    for name, value in zip(step["results"], (value for value in values if value is not None)):
        declared = run.tensors[name]
        if value.shape != declared.shape or value.dtype != declared.dtype:
            raise Failure(f"{step['function']} gives {value.dtype} {list(value.shape)} for '{name}'")
        run.tensors[name] = value.contiguous()


def _launch(step: Mapping[str, Any], candidate: Candidate) -> Step:
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
    return lambda run: launch(current_stream(run.device), *(run.tensors[name].data_ptr() for name in names))


def made_by(
    candidate: Candidate, operation: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Run an operation once and return its outputs, on the device."""
    run = BoundRun(candidate, operation, inputs)
    run()
    return run.output_tensors()


def on(device: int) -> torch.device:
    """Return the torch device of a GPU."""
    return torch.device("cuda", device)


LOADED: dict[str, Candidate] = {}


def handle_load(request: dict[str, Any]) -> dict[str, Any]:
    """Load ``{"candidate", "device", "kernels", "symbols", "cubins" (base64) or "ptx"}``, or ``"text"`` and
    ``"file_name"``.

    Answers ``{"loaded", "log", "load_s", ...device facts}``. Code that does not compile or load gives an answer, not a
    failure.
    """
    device = gpu_device.device_index(request)
    started = time.monotonic()
    log = ""
    with on_device(device):
        make_context_current(device)
        try:
            codes, symbols = _machine_code(request, device)
            wanted = {name: symbols[name] for name in request["kernels"]}
            LOADED[request["candidate"]] = load_candidate(codes, wanted, device)
        except CudaError as error:
            log = str(error)
    return {
        "loaded": not log,
        "log": log,
        "load_s": time.monotonic() - started,
        **gpu_device.device_facts(device),
    }


def unload(name: str) -> bool:
    """Unload a candidate; returns whether it was loaded."""
    candidate = LOADED.pop(name, None)
    if candidate is not None:
        unload_modules(candidate)
    return candidate is not None


def unload_modules(candidate: Candidate) -> None:
    """Unload what a candidate was loaded into."""
    for module in candidate.modules:
        gpu_device.unload_module(module)


def load_candidate(codes: list[bytes], symbols: dict[str, str], device: int) -> Candidate:
    """Load modules of its own, with their own variables in device memory. Raises CudaError."""
    modules = [load_module(code) for code in codes]
    functions = {name: function_of(modules, symbol) for name, symbol in symbols.items()}
    return Candidate(functions, device, modules, codes, symbols)


def function_of(modules: Sequence[Any], symbol: str) -> Any:
    """Return the kernel of this symbol, from the first of the modules that has it. Raises CudaError."""
    for module in modules[:-1]:
        with contextlib.suppress(CudaError):
            return find_function(module, symbol)
    return find_function(modules[-1], symbol)


def loaded_candidate(request: dict[str, Any]) -> Candidate:
    """Return the request's candidate. Raises Failure when it is not loaded here."""
    if request["candidate"] not in LOADED:
        raise Failure(f"the candidate {request['candidate']} is not loaded in this process")
    return LOADED[request["candidate"]]


def _machine_code(request: dict[str, Any], device: int) -> tuple[list[bytes], dict[str, str]]:
    if "cubins" in request:
        return [base64.b64decode(cubin) for cubin in request["cubins"]], request["symbols"]
    if "ptx" in request:
        return [request["ptx"].encode()], request["symbols"]
    code, symbols = compiled(request["text"], request["file_name"], request["kernels"], architecture_of(device))
    return [code], symbols


SHARE_OF_DEVICE = 8
"""Divisor of the device's memory: that share may hold inputs."""
SHARE_OF_RUN, LEAST_RUN_BYTES = 16, 4 << 30
"""Divisor of the device's memory, and bytes where that is less, up to which one run's buffers leave room for kept
inputs beside a second run and PyTorch's own. Reading 4 GiB again took 0.9 s of each case."""


@dataclass(frozen=True)
class _Kept:
    tensor: torch.Tensor
    fingerprint: int
    n_bytes: int


class DeviceInputs:
    """Tensors of files by path; the least recently used are freed first. Candidates get copies."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._max_bytes = gpu_device.total_bytes(device) // SHARE_OF_DEVICE
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, entries: Sequence[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """Return the tensors of the entries by name, and their fingerprints."""
        self._forget_changed([entry["path"] for entry in entries])
        self._read([entry for entry in entries if entry["path"] not in self._kept])
        found = {entry["name"]: self._used(entry["path"]) for entry in entries}
        self._let_go()
        return {n: one.tensor for n, one in found.items()}, {n: one.fingerprint for n, one in found.items()}

    def may_stay_beside(self, n_bytes: int) -> bool:
        """Check whether inputs stay on the device beside runs with buffers of so many bytes."""
        return n_bytes <= max(LEAST_RUN_BYTES, gpu_device.total_bytes(self._device) // SHARE_OF_RUN)

    def clear(self) -> None:
        """Free all."""
        self._kept.clear()

    def _forget_changed(self, paths: Sequence[str]) -> None:
        """Drop changed tensors: a kernel may have written anywhere."""
        kept = {path: self._kept[path] for path in paths if path in self._kept}
        now = fingerprints({path: one.tensor for path, one in kept.items()})
        for path, one in kept.items():
            if now[path] != one.fingerprint:
                del self._kept[path]

    def _read(self, entries: Sequence[dict[str, Any]]) -> None:
        tensors = {entry["path"]: read_tensor(entry, on(self._device)) for entry in entries}
        for path, number in fingerprints(tensors).items():
            n_bytes = tensors[path].numel() * tensors[path].element_size()
            self._kept[path] = _Kept(tensors[path], number, n_bytes)

    def _used(self, path: str) -> _Kept:
        self._kept.move_to_end(path)
        return self._kept[path]

    def _let_go(self) -> None:
        """Free the least recently used tensors beyond the limit."""
        while sum(one.n_bytes for one in self._kept.values()) > self._max_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)


@functools.cache
def inputs_on(device: int) -> DeviceInputs:
    """Return the inputs of this process."""
    return DeviceInputs(device)
