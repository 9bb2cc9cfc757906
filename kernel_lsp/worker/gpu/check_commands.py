"""Commands that run a candidate on case files for its results, not for its time.

This process checks what only the device can show: whether guards and inputs are unchanged, and whether equal contents
give equal bytes at other addresses, over other poison and from a module loaded anew. Values are judged elsewhere, from
the copies.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..cases.families import SAME_WIDTH
from ..failure import EnvironmentFailure, Failure, short_message
from ..files import LARGE_BYTES, place_of, read_tensor, taken, write_tensor
from ..shipped.cuda_runtime import CudaError, on_device
from . import device as gpu_device
from .fingerprints import as_bytes, in_pieces, spread
from .run import (
    OTHER_POISON_BYTE,
    BoundRun,
    Candidate,
    inputs_on,
    load_candidate,
    loaded_candidate,
    on,
    unload,
    unload_modules,
)

MAX_KEPT_BYTES = 64 << 20
"""Maximum bytes of one run's buffers to keep them. Later cases of the same shapes then reuse the same addresses."""
RUN_DEADLINE_S = 60.0
"""Default seconds of one run."""
MAX_RECHECK_BYTES = 1 << 30
"""Maximum bytes of one run's buffers for the runs from a fresh module: for larger ones the second run suffices."""

WARM_ELEMENTS = LARGE_BYTES // 4
"""Elements of float32, enough to be copied as large tensors are."""
WARM_UP = {
    "name": "warm_up",
    "tensors": [
        {"name": name, "role": role, "dtype": "f32", "shape": [WARM_ELEMENTS]}
        for name, role in (("x", "input"), ("out", "output"))
    ],
    "steps": [],
}


@dataclass
class _Remembered:
    """A case that gave the same bytes twice."""

    operation: dict[str, Any]
    entries: list[dict[str, Any]]
    fingerprints: dict[str, int]
    offsets: dict[str, int]


@dataclass
class _Session:
    """The state of one candidate between its requests."""

    runs: dict[str, BoundRun] = field(default_factory=dict)
    cases: dict[str, _Remembered] = field(default_factory=dict)


_SESSIONS: dict[str, _Session] = {}


def handle_check(request: dict[str, Any]) -> dict[str, Any]:
    """Check a case: ``{"candidate", "case", "operation", "inputs": [entries], "outputs": {name: path}, "again": {name:
    path}}``, and ``"offsets": {name: bytes}`` for inputs that begin at an offset from a page. Of an output in
    ``"slices": {name: {"dim", "ranges"}}`` only these are copied.

    Runs it twice: the second time in other buffers, over other poison. Answers ``{"status": "ran", "changed_inputs",
    "overrun", "outputs": [entries], "fingerprints": {name: int}, "spread": {name: {"relative_l2", "max"}}, "again":
    [entries], "unwritten": {name: int}, "scratch_bytes", "stages_s": {name: seconds}}``. `unwritten` counts the
    elements of sliced outputs that still hold the poison of both runs. `spread` names the outputs whose bytes differ,
    and only they are written to the paths of `again`. Otherwise the status is ``out_of_memory`` (with the
    ``others_bytes`` that other processes occupy, and ``total_bytes``), ``refused`` (an impossible launch or library
    step), ``crashed`` or ``timed_out`` (a run took longer than ``"run_deadline_s"``), with a ``message``. After the
    last two the CUDA context is lost, and this process must be replaced.
    """
    candidate = loaded_candidate(request)
    device = candidate.device

    def checked() -> dict[str, Any]:
        return gpu_device.once_there_is_memory(device, lambda: _check(candidate, request), lambda: _let_go(device))

    answer = guarded(candidate, checked)
    if answer["status"] == "ran" and not _is_small(request["operation"]):
        gpu_device.release_memory()  # which other processes may need: PyTorch is prepared meanwhile
    return answer


def handle_recheck(request: dict[str, Any]) -> dict[str, Any]:
    """Run every remembered case again, from a module loaded anew, in random order: ``{"candidate", "seed",
    "run_deadline_s"}``.

    Answers ``{"status": "ran", "n_cases", "differs": [case]}``, or as `handle_check`.
    """
    candidate = loaded_candidate(request)
    return guarded(candidate, lambda: _recheck(candidate, request))


def handle_unload(request: dict[str, Any]) -> dict[str, Any]:
    """Unload a candidate and its buffers: ``{"candidate"}``. Answers ``{"unloaded"}``: whether it was loaded."""
    _SESSIONS.pop(request["candidate"], None)
    return {"unloaded": unload(request["candidate"])}


def warm_up(request: dict[str, Any]) -> dict[str, Any]:
    """Copy a tensor to the file at `path` and back, make buffers with guards and poison, and read them: ``{"device",
    "path"}``. Leaves no file. Answers ``{"status": "warm"}``."""
    device, path = gpu_device.device_index(request), request["path"]
    with gpu_device.on_device(device), torch.no_grad():
        where = on(device)
        try:
            entry = write_tensor(path, "x", torch.zeros(WARM_ELEMENTS, device=where))
            inputs = {"x": read_tensor(entry, where)}
        finally:
            if os.path.exists(place_of(path)):
                os.remove(place_of(path))
        run = BoundRun(Candidate({}, device), WARM_UP, inputs)
        run()
        other = run.fresh()
        other.poison(OTHER_POISON_BYTE)
        for each in (run, other):
            each.output_fingerprints()
            each.changed_inputs({"x": 0})
            each.overrun()
        gpu_device.synchronize(device)
    return {"status": "warm"}


def guarded(candidate: Candidate, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what the work returns, or its failure as an answer of `handle_check`."""
    try:
        with on_device(candidate.device), torch.no_grad():
            return work()
    except EnvironmentFailure:
        raise  # e.g. a full disk, which is no fault of the candidate
    except gpu_device.StillRunning as running:
        return {"status": "timed_out", "message": short_message(running)}
    except torch.OutOfMemoryError as error:
        message = short_message(error)
    except (Failure, OverflowError) as error:
        return {"status": "refused", "message": short_message(error)}
    except (CudaError, RuntimeError) as error:
        return {"status": "crashed", "message": short_message(error)}
    _let_go(candidate.device)  # once the handler has ended, whose error refers to the tensors of the case
    return {
        "status": "out_of_memory",
        "message": message,
        "others_bytes": gpu_device.bytes_of_others(candidate.device),
        "total_bytes": gpu_device.total_bytes(candidate.device),
    }


def _let_go(device: int) -> None:
    for session in _SESSIONS.values():
        session.runs.clear()
    inputs_on(device).clear()
    gpu_device.release_memory()


def _check(candidate: Candidate, request: dict[str, Any]) -> dict[str, Any]:
    session, clock = _SESSIONS.setdefault(request["candidate"], _Session()), _Clock()
    tensors, fingerprints = inputs_on(candidate.device).get(request["inputs"])
    offsets: dict[str, int] = request.get("offsets", {})
    run = _run_for(session, candidate, request["operation"], tensors, offsets)
    if not inputs_on(candidate.device).may_stay_beside(_n_bytes(request["operation"])):
        run.drop_given_inputs()
        del tensors
        inputs_on(candidate.device).clear()
        gpu_device.release_memory()  # a block without room for guards is of no use to the second run
    deadline_s = float(request.get("run_deadline_s", RUN_DEADLINE_S))
    clock.lap("inputs")
    run()
    gpu_device.wait(candidate.device, deadline_s)
    first = run.output_fingerprints()
    changed, overrun = run.changed_inputs(fingerprints), run.overrun()
    clock.lap("first run")
    other = _elsewhere(run, candidate, deadline_s)
    second = other.output_fingerprints()
    differing = [name for name in first if first[name] != second[name]]
    if not differing:
        session.cases[request["case"]] = _Remembered(request["operation"], request["inputs"], first, offsets)
    overrun, changed = [*overrun, *other.overrun()], [*changed, *other.changed_inputs(fingerprints)]
    clock.lap("second run")
    slices = request.get("slices", {})
    unwritten = {name: n for name in slices if (n := _n_unwritten(run.tensors[name], other.tensors[name]))}
    _tell_numbers_from_poison(run, other)
    outputs = _written(run, request["outputs"], slices)
    clock.lap("copies")
    return {
        "status": "ran",
        "overrun": sorted(set(overrun)),
        "changed_inputs": sorted(set(changed)),
        "outputs": outputs,
        "fingerprints": {} if differing else first,
        "unwritten": unwritten,
        "scratch_bytes": run.scratch_bytes,
        "spread": {name: spread(run.tensors[name], other.tensors[name]) for name in differing},
        "again": _written(other, {name: request["again"][name] for name in differing}, slices),
        "stages_s": clock.laps_s,
    }


class _Clock:
    """Host seconds by activity."""

    def __init__(self) -> None:
        self.laps_s: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Attribute the time since the last lap to this activity."""
        now = time.monotonic()
        self.laps_s[name], self._last = now - self._last, now


def _run_for(
    session: _Session,
    candidate: Candidate,
    operation: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    offsets: dict[str, int],
) -> BoundRun:
    """Return the buffers of an earlier case of these shapes with new contents, or new buffers."""
    key = repr((operation["name"], operation["tensors"], sorted(offsets.items())))
    run = session.runs.get(key)
    if run is not None:
        run.refill(tensors)
        return run
    run = BoundRun(candidate, operation, tensors, offsets=offsets)
    if run.input_bytes + run.output_bytes + run.scratch_bytes <= MAX_KEPT_BYTES:
        session.runs[key] = run
    return run


def _elsewhere(run: BoundRun, candidate: Candidate, deadline_s: float) -> BoundRun:
    other = run.fresh()
    other.poison(OTHER_POISON_BYTE)
    other()
    gpu_device.wait(candidate.device, deadline_s)
    return other


def _tell_numbers_from_poison(run: BoundRun, other: BoundRun) -> None:
    """Clear the sign of written NaNs with all bits set: they look like poison. A kernel gets one by negating an
    arithmetic NaN. A value that stays the same over other poison was written."""
    elsewhere = other.output_tensors()
    for name, tensor in run.output_tensors().items():
        if not tensor.is_floating_point():
            continue
        for bits, others in in_pieces(tensor, elsewhere[name]):
            is_number = (bits == -1) & (others == -1)
            if bool(is_number.any()):
                bits.masked_fill_(is_number, torch.iinfo(bits.dtype).max)


def _n_unwritten(one: torch.Tensor, other: torch.Tensor) -> int:
    """Count the elements that hold the poison of both runs. Integers have no value that is never a result."""
    if not one.is_floating_point():
        return 0
    poison = as_bytes(torch.empty(1, dtype=one.dtype)).fill_(OTHER_POISON_BYTE).view(SAME_WIDTH[one.element_size()])
    return sum(int(((a == -1) & (b == poison.item())).sum()) for a, b in in_pieces(one, other))


def _written(run: BoundRun, paths: dict[str, str], slices: dict[str, Any]) -> list[dict[str, Any]]:
    tensors = run.output_tensors()
    for name, sliced in slices.items():
        tensors[name] = taken(tensors[name], sliced["dim"], sliced["ranges"])
    return [write_tensor(path, name, tensors[name]) for name, path in paths.items()]


def _recheck(candidate: Candidate, request: dict[str, Any]) -> dict[str, Any]:
    session = _SESSIONS.get(request["candidate"], _Session())
    session.runs.clear()
    fresh = load_candidate(candidate.codes, candidate.symbols, candidate.device)
    names = sorted(session.cases)
    random.Random(request["seed"]).shuffle(names)
    try:
        deadline_s = float(request.get("run_deadline_s", RUN_DEADLINE_S))
        small = [name for name in names if _is_small(session.cases[name].operation)]
        tried = {name: _is_same_again(fresh, session.cases[name], deadline_s) for name in small}
    except gpu_device.StillRunning:
        raise  # unloading would wait for it
    except BaseException:
        unload_modules(fresh)
        raise
    unload_modules(fresh)
    return {"status": "ran", "n_cases": len(tried), "differs": [name for name, is_same in tried.items() if not is_same]}


def _is_same_again(candidate: Candidate, case: _Remembered, deadline_s: float) -> bool:
    tensors, _ = inputs_on(candidate.device).get(case.entries)
    run = BoundRun(candidate, case.operation, tensors, offsets=case.offsets)
    run()
    gpu_device.wait(candidate.device, deadline_s)
    return run.output_fingerprints() == case.fingerprints


def _is_small(operation: dict[str, Any]) -> bool:
    return _n_bytes(operation) <= MAX_RECHECK_BYTES


def _n_bytes(operation: dict[str, Any]) -> int:
    """Return the bytes of an operation's tensors, as if all had elements of 4 bytes."""
    return sum(math.prod(tensor["shape"]) for tensor in operation["tensors"]) * 4
