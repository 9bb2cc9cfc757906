"""Run a foreign kernel on case files, and time it: the commands `run_foreign`, `prepare_foreign` and related ones.

The candidate's own process computes these reports. They catch careless or plain errors. Guarantees come from outside,
from copies of the outputs and another clock.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..failure import TargetFailure, short_message
from ..files import PLAN_NAMES, device_of, read_tensor, torch_dtype, write_tensor
from ..gpu.fingerprints import as_bytes, broken_guards, spread
from ..timing.rounds import admit
from ..timing.subject import Subject, n_affordable_sets, refuse_zeros
from .module import LOADED, OWN_CALLS, Foreign

POISON_BYTE, GUARD_BYTES = 0xFF, 4096
LATE_CYCLES = 2_000_000
"""Cycles by which the inputs are delayed, about 1 ms: work on a stream of its own would read poison."""
N_POISONED = 4
"""Blocks of an output's size that are poisoned and freed before each call."""
MAX_KEPT_BYTES = 256 << 20
"""Maximum bytes of outputs that are compared again at the end."""

_BUFFERS: dict[Any, Buffers] = {}
_HELD: list[tuple[str, torch.Tensor, torch.Tensor]] = []
_TIMED: dict[str, TimedSets] = {}
PARALLEL_ELEMENTS = 1 << 20
"""Elements far above the grain at which ATen uses its pool (32768 elements, at::internal::GRAIN_SIZE)."""
DRIVER_NAMES = ("cuda", "pt_autograd")
"""Name prefixes of threads of the CUDA driver, and of autograd's for one device: on a GPU they start at first use."""


class Buffers:
    """The inputs of one call between guards. Refilling changes the contents at the same addresses."""

    def __init__(self, inputs: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._whole: dict[str, torch.Tensor] = {}
        for name, tensor in inputs.items():
            n_bytes = tensor.nbytes
            whole = torch.full((n_bytes + 2 * GUARD_BYTES,), POISON_BYTE, dtype=torch.uint8, device=device)
            self._whole[name] = whole
            self.tensors[name] = whole[GUARD_BYTES : GUARD_BYTES + n_bytes].view(tensor.dtype).view(tensor.shape)

    def fill(self, staged: Mapping[str, torch.Tensor]) -> None:
        """Fill from tensors on the same device, on the current stream, after poison and, on a GPU, a delay."""
        for tensor in self.tensors.values():
            as_bytes(tensor).fill_(POISON_BYTE)
        if any(tensor.is_cuda for tensor in self.tensors.values()):
            torch.cuda.synchronize()
            torch.cuda._sleep(LATE_CYCLES)
        for name, tensor in staged.items():
            self.tensors[name].copy_(tensor, non_blocking=True)

    def changed(self, staged: Mapping[str, torch.Tensor]) -> list[str]:
        """Return the inputs that no longer have their bytes."""
        return [name for name, tensor in staged.items() if not _same(self.tensors[name], tensor)]

    def overrun(self) -> list[str]:
        """Return the inputs whose guards were overwritten."""
        return broken_guards(self._whole, GUARD_BYTES, POISON_BYTE)


def run_foreign(request: dict[str, Any]) -> dict[str, Any]:
    """Run on ``{"direction", "inputs": [entries], "declared": [{"name", "dtype", "shape"}], "outputs": {name: path},
    "again": {name: path}, "token"}``.

    Runs twice: at addresses that an earlier case of these shapes had, then at new ones. Answers ``{"status": "ran",
    "late", "changed_inputs", "overrun", "spread", "token"}``. `late` names outputs that changed after PyTorch's stream
    had finished, `spread` those that differ between the two runs, which are written to the paths of `again`. Or answers
    ``{"status": "refused" | "crashed", "message"}``.
    """
    foreign = LOADED["foreign"]
    inputs = {entry["name"]: read_tensor(entry) for entry in request["inputs"]}
    try:
        with torch.no_grad():
            return {"status": "ran", **_run(foreign, request, inputs), "token": request["token"]}
    except TargetFailure as failure:
        return {"status": "refused", "message": failure.message}
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AssertionError, AttributeError) as error:
        return {"status": "crashed", "message": f"{type(error).__name__}: {short_message(error)}"}


def look_again(request: dict[str, Any]) -> dict[str, Any]:
    """Compare every held output with its copy: ``{"status": "looked", "changed": [case], "n_threads", "n_own_calls"}``.
    The last counts calls of functions of extensions that a Python file built."""
    _wait()
    changed = [case for case, held, copy in _HELD if not _same(held, copy)]
    return {"status": "looked", "changed": changed, "n_threads": n_threads(), "n_own_calls": len(OWN_CALLS)}


def prepare_foreign(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare a subject of timing, as `timing.candidate` does: ``{"subject", "direction", "inputs", "operation"}``."""
    foreign = LOADED["foreign"]
    inputs = {entry["name"]: read_tensor(entry) for entry in request["inputs"]}
    refuse_zeros(inputs)
    try:
        sets = TimedSets(foreign, request["direction"], inputs)
        _TIMED[request["subject"]] = sets
        subject = Subject(sets.arm, sets.arm, sets.n_sets, foreign.device.index, watch=sets)
        return {"status": "ready", **admit(request["subject"], subject, int(request.get("n_calls", 0)))}
    except RuntimeError as error:
        return {"status": "crashed", "message": short_message(error)}


def write_timed(request: dict[str, Any]) -> dict[str, Any]:
    """Write the results of the last timed call on one set of inputs: ``{"subject", "place", "outputs": {name:
    path}}``."""
    sets = _TIMED[request["subject"]]
    found = sets.results[request["place"] % sets.n_sets]
    for (_, path), tensor in zip(request["outputs"].items(), found):
        write_tensor(path, "", tensor)
    return {"status": "written"}


def burst(request: dict[str, Any]) -> dict[str, Any]:
    """Make `n_calls` calls and one synchronization, for a clock outside: ``{"subject", "n_calls"}``."""
    sets = _TIMED[request["subject"]]
    with torch.no_grad():
        for number in range(request["n_calls"]):
            sets.arm(number)()
    _wait()
    return {"status": "done"}


class TimedSets:
    """Several sets of the same inputs with the last outputs of each, and the checks on them during timing."""

    def __init__(self, foreign: Foreign, direction: str, inputs: Mapping[str, torch.Tensor]) -> None:
        self._call = getattr(foreign, direction)
        self._inputs, self._device = inputs, foreign.device
        n_bytes = sum(tensor.nbytes for tensor in inputs.values())
        self.n_sets = n_affordable_sets(2 * n_bytes, foreign.device.index)
        self._sets = [{name: t.to(foreign.device, copy=True) for name, t in inputs.items()} for _ in range(self.n_sets)]
        self.results: list[Sequence[torch.Tensor]] = [()] * self.n_sets
        self._first: list[torch.Tensor] = []
        self._watched, self._n_checked, self._n_unequal, self._difference = 0, 0, 0, 0.0
        self._draw = random.Random()

    def arm(self, place: int) -> Any:
        """Return a call on one set that keeps its results."""
        place %= self.n_sets

        def call() -> None:
            self.results[place] = _flat(self._call(self._sets[place]))

        return call

    def before_block(self, calls: Sequence[tuple[int, Any]]) -> None:
        """Poison the last outputs of one set: a call that returns the same tensor again without work is detected."""
        self._watched = self._draw.choice(calls)[0] % self.n_sets
        if not self._first:
            self._first = [tensor.clone() for tensor in self.results[self._watched]]
        for tensor in self.results[self._watched]:
            as_bytes(tensor).fill_(POISON_BYTE)

    def after_block(self) -> None:
        """Compare the set's new outputs with the first ones."""
        _wait()
        self._n_checked += 1
        for found, first in zip(self.results[self._watched], self._first):
            if not _same(found, first):
                self._n_unequal += 1
                self._difference = max(self._difference, spread(first, found)["relative_l2"])

    def report(self) -> dict[str, Any]:
        """Report as `timing.candidate.OutputWatch.report`."""
        given = {name: tensor.to(self._device) for name, tensor in self._inputs.items()}
        changed = {n for each in self._sets for n, t in given.items() if not _same(each[n], t)}
        return {
            "n_checked": self._n_checked,
            "n_unequal": self._n_unequal,
            "relative_difference": self._difference,
            "changed_inputs": sorted(changed),
            "overrun": [],
        }


def _run(foreign: Foreign, request: dict[str, Any], inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    declared, call = request["declared"], getattr(foreign, request["direction"])
    shapes = (request["direction"], *((name, tensor.dtype, tensor.shape) for name, tensor in inputs.items()))
    staged = {name: tensor.to(foreign.device) for name, tensor in inputs.items()}
    known = _BUFFERS.pop(shapes, None) or Buffers(inputs, foreign.device)
    first, copies, late = _once(call, known, staged, declared, foreign.device)
    fresh = Buffers(inputs, foreign.device)
    _, second, late_again = _once(call, fresh, staged, declared, foreign.device)
    _BUFFERS[shapes] = known
    differing = {}
    for entry, one, other in zip(declared, copies, second):
        write_tensor(request["outputs"][entry["name"]], entry["name"], one)
        if not _same(one, other):
            differing[entry["name"]] = spread(one, other)
            write_tensor(request["again"][entry["name"]], entry["name"], other)
    if sum(t.nbytes for _, t, _ in _HELD) < MAX_KEPT_BYTES:
        _HELD.extend((request["case"], held, copy) for held, copy in zip(first, copies))
    return {
        "late": sorted({*late, *late_again}),
        "changed_inputs": sorted({*known.changed(staged), *fresh.changed(staged)}),
        "overrun": sorted({*known.overrun(), *fresh.overrun()}),
        "spread": differing,
    }


def _once(
    call: Any,
    buffers: Buffers,
    staged: Mapping[str, torch.Tensor],
    declared: Sequence[Mapping[str, Any]],
    device: torch.device,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
    """Return the outputs of one call, copies as of its return, and the outputs that changed after PyTorch's stream had
    finished."""
    _poison_free_memory(declared, device)
    buffers.fill(staged)
    outputs = _flat(call(buffers.tensors))
    _check_outputs(outputs, declared, device)
    copies = [output.clone() for output in outputs]
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    _wait()
    late = [entry["name"] for entry, o, c in zip(declared, outputs, copies) if not _same(o, c)]
    return outputs, copies, late


def _flat(found: Any) -> list[torch.Tensor]:
    return [tensor for tensor in found if tensor is not None] if isinstance(found, (tuple, list)) else [found]


def _check_outputs(outputs: Sequence[Any], declared: Sequence[Mapping[str, Any]], device: torch.device) -> None:
    """Check for plain tensors of the declared types and shapes, on the device. Raises TargetFailure."""
    if len(outputs) != len(declared):
        raise TargetFailure(f"it returns {len(outputs)} tensors, and the task has {len(declared)} results")
    for entry, tensor in zip(declared, outputs):
        what = f"'{entry['name']}'"
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise TargetFailure(f"{what} is a {type(tensor).__name__}, no plain tensor")
        if tensor.layout is not torch.strided or tensor.device.type != device.type:
            raise TargetFailure(f"{what} is {tensor.layout} on {tensor.device}, no dense tensor on {device}")
        if tensor.dtype != torch_dtype(entry["dtype"]):
            found = PLAN_NAMES.get(tensor.dtype, str(tensor.dtype))
            raise TargetFailure(f"{what} is {found}, and the task's is {entry['dtype']}")
        if list(tensor.shape) != list(entry["shape"]):
            raise TargetFailure(f"{what} has the shape {list(tensor.shape)}, and the task's is {entry['shape']}")


def _poison_free_memory(declared: Sequence[Mapping[str, Any]], device: torch.device) -> None:
    """Poison free memory, so that unwritten memory that the call is given cannot be correct by chance."""
    for entry in declared:
        blocks = [
            torch.empty(entry["shape"], dtype=torch_dtype(entry["dtype"]), device=device) for _ in range(N_POISONED)
        ]
        for block in blocks:
            as_bytes(block).fill_(POISON_BYTE)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(as_bytes(one), as_bytes(other))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def start_pools(request: dict[str, Any]) -> dict[str, Any]:
    """Start the threads that PyTorch starts once: ``{"device"}``. Answers ``{"status": "started", "n_threads"}``."""
    device = device_of(request["device"])
    large = torch.ones(PARALLEL_ELEMENTS)
    (large + large).sum()
    square = torch.ones(64, 64, device=device, requires_grad=True)
    (square @ square).sum().backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"status": "started", "n_threads": n_threads()}


def n_threads() -> int:
    """Return the number of threads of this process, without the driver's on a machine with a GPU; 0 where the system
    does not tell."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return 0
    return sum(not (torch.cuda.is_available() and _name(task).startswith(DRIVER_NAMES)) for task in tasks)


def _name(task: str) -> str:
    """Return the name of a thread; empty for one that ended meanwhile."""
    try:
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
