"""Commands that time one subject: `prepare_probe`, `set_calls`, `time_block` (a block of samples) and `end_timing`.

A subject is a candidate's operation (`timing_candidate`) or a way to run the task in PyTorch (`baseline`): these live
in different processes. Who asks for the blocks alternates between them; between two blocks nothing runs here.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .clocks import Clocks
from .failure import Failure, short_message
from .timing_graph import CapturedCalls
from .timing_stopwatch import CudaStopwatch, HostStopwatch, Resolution, Stopwatch

GRAPH, STREAM = "graph", "stream"
"""How the calls of a sample reach the device: as one CUDA graph of ours, or one after the other."""
N_WARM_UP = 3
N_PROBES = 5
LEAST_SAMPLE_US = 200.0
"""Calls are put into one sample until it is as long: what is around them, 2.9 us on one H200, is divided by them."""
N_PROBE_CALLS = 8
"""Of a sample that tells how many calls a sample should have: in a single one the launch is most of it."""
MAX_SHARED_GRAPHS = 4
"""Of several calls each: they begin at different sets of buffers."""
MAX_SLEEP_US = 4000.0
SLEEP_MARGIN = 1.5
"""Times the host's own time to enqueue: it varies."""
LEAST_SLEEP_US = 20.0
"""For the events and the sleep's own launch."""
MAX_SETS = 16
PROBE_ELEMENTS = 1 << 18
"""Of 4 bytes: a kernel of two or three microseconds, most of it its launch."""
SET_BYTES_BUDGET = 2 << 30
"""Of all copies of one subject's buffers; two are made whatever they take."""
FREE_MEMORY_SHARE = 8
"""One part in so many of the device's free memory may go into copies."""


Arm = Callable[[int], Callable[[], Any]]


class NoWatch:
    """Nothing about a subject's results is looked at."""

    def before_block(self, places: list[int]) -> None:
        """Nothing to prepare."""

    def after_block(self) -> None:
        """Nothing to look at."""

    def report(self) -> dict[str, Any]:
        """Nothing was looked at."""
        return {}


@dataclass
class Subject:
    """Something to time. `arm(place)` does what is not timed and gives a call on the buffers at `place`, of `n_sets`;
    `arm_operator` the same for a call as a user makes it. At most `max_calls` are armed at once. `graph_arm` arms what
    a CUDA graph captures; None where it has graphs of its own."""

    arm: Arm
    arm_operator: Arm
    n_sets: int
    device: int | None
    graph_arm: Arm | None = None
    max_calls: int = MAX_SETS
    watch: Any = field(default_factory=NoWatch)
    n_calls: int = 1
    written_bytes: int = 0
    """By one call, at least: its results."""
    own_enqueue_us: float = 0.0
    """The host's time for one call."""
    enqueue_us: float = 0.0
    """The host's time for one call, or for one replay of all calls."""
    graphs: list[CapturedCalls] = field(default_factory=list)
    warm_graph: CapturedCalls | None = None
    capture_problem: str = "it has graphs of its own, or runs on no GPU"

    def places(self, start: int) -> Sequence[int]:
        """The sets of buffers that the sample at `start` uses."""
        if self.graphs:
            return self.graphs[start % len(self.graphs)].places
        return self.around(start * self.n_calls)

    def around(self, start: int) -> Sequence[int]:
        """As many sets as a sample has calls, from `start` on, around the end."""
        return [(start + offset) % self.n_sets for offset in range(self.n_calls)]

    def cold_sample(self, start: int) -> list[Callable[[], Any]]:
        """What one sample runs."""
        if self.graphs:
            return [self.graphs[start % len(self.graphs)]]
        return [self.arm(place) for place in self.places(start)]

    def warm_sample(self) -> list[Callable[[], Any]]:
        """The same buffers again and again."""
        if self.warm_graph is not None:
            return [self.warm_graph]
        return [self.arm(0) for _ in range(self.n_calls)]

    @property
    def sleep_us(self) -> float:
        """How long the device waits for the host to enqueue a sample."""
        n_enqueued = 1 if self.graphs else self.n_calls
        return min(MAX_SLEEP_US, LEAST_SLEEP_US + SLEEP_MARGIN * n_enqueued * self.enqueue_us)


SUBJECTS: dict[str, Subject] = {}


def prepare_probe(request: dict[str, Any]) -> dict[str, Any]:
    """``{"subject", "device", "method"}``: one small kernel of PyTorch's, the same in every process: it tells how two
    processes differ. Answers as `admit` says."""
    device = None if request["device"] == "cpu" else int(request["device"])
    where = torch.device("cpu") if device is None else torch.device("cuda", device)
    pairs = [[torch.rand(PROBE_ELEMENTS, device=where) + 1 for _ in range(2)] for _ in range(MAX_SETS)]

    def arm(place: int) -> Callable[[], Any]:
        return lambda: torch.neg(pairs[place][0], out=pairs[place][1])

    graph_arm = arm if request["method"] == GRAPH else None
    try:
        subject = Subject(arm, _no_call, MAX_SETS, device, graph_arm=graph_arm)
        return {"status": "ready", **admit(request["subject"], subject, MAX_SETS)}
    except RuntimeError as error:  # torch raises nothing narrower for what a device refuses
        return {"status": "crashed", "message": str(error)[:500]}


def time_block(request: dict[str, Any]) -> dict[str, Any]:
    """``{"subject", "n_samples", "n_warm_samples", "n_operator_calls"}``.

    Answers ``{"status": "timed", "cold_us": [...], "places": [...], "warm_us": [...], "operator_us": [...],
    "clocks": {...}}``, times per call, and for each cold sample the first set of buffers that it used; or
    ``{"status": "crashed", "message"}`` when the device or PyTorch fails: then use another process.
    """
    subject = _subject(request)
    try:
        with torch.no_grad(), _on(subject.device):
            return {"status": "timed", **_block(subject, request)}
    except RuntimeError as error:  # torch raises nothing narrower for what a device refuses
        return {"status": "crashed", "message": str(error)[:500]}


def end_timing(request: dict[str, Any]) -> dict[str, Any]:
    """``{"subject"}``: forget it, and say what was seen of its results: `OutputWatch.report` for a candidate."""
    subject = _subject(request)
    del SUBJECTS[request["subject"]]
    return {"status": "ended", **subject.watch.report()}


def set_calls(request: dict[str, Any]) -> dict[str, Any]:
    """``{"subject", "n_calls"}``: put so many calls into each sample, so that what is around them weighs as much as on
    the other side. Answers as `admit` does, or ``{"status": "crashed", "message"}``."""
    subject = _subject(request)
    try:
        with torch.no_grad(), _on(subject.device):
            return {"status": "ready", **_arranged(subject, int(request["n_calls"]))}
    except RuntimeError as error:  # torch raises nothing narrower for what a device refuses
        return {"status": "crashed", "message": str(error)[:500]}


def admit(name: str, subject: Subject, n_calls: int = 0) -> dict[str, Any]:
    """Make a subject known under a name, warm it up, capture its graphs, and probe it. `n_calls` go into each sample,
    or as many as make it long enough.

    Answers ``{"n_sets", "n_calls", "max_calls", "method", "method_reason", "time_us", "enqueue_us", "resolution_us",
    "tick_us", ...facts of the device}``; `method` is `GRAPH` or `STREAM`, times are per call.
    """
    set_precision()
    with torch.no_grad(), _on(subject.device):
        stopwatch = stopwatch_of(subject.device)
        for place in range(max(N_WARM_UP, subject.n_sets)):
            subject.arm(place % subject.n_sets)()
        stopwatch.wait()
        subject.own_enqueue_us = _enqueue_us(lambda: subject.arm(0), stopwatch)
        SUBJECTS[name] = subject
        return _arranged(subject, n_calls or _long_enough(subject, stopwatch))


def set_precision() -> None:
    """The same in every process that is timed: TF32 off, as the budgets of correctness assume; cuDNN chooses its
    algorithms by trying them."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def n_affordable_sets(set_bytes: int, device: int | None) -> int:
    """How many copies of a subject's buffers are made."""
    budget = SET_BYTES_BUDGET
    if device is not None:
        budget = min(budget, torch.cuda.mem_get_info(device)[0] // FREE_MEMORY_SHARE)
    return max(2, min(MAX_SETS, budget // max(set_bytes, 1)))


def refuse_zeros(inputs: Mapping[str, torch.Tensor]) -> None:
    """Zeros take less power, so a GPU runs them faster than anything real."""
    floating = [tensor for tensor in inputs.values() if tensor.is_floating_point() and tensor.numel()]
    if floating and not any(bool(tensor.any()) for tensor in floating):
        raise Failure("all floating inputs are zero: times on zeros are not true of other inputs")


def stopwatch_of(device: int | None) -> Stopwatch:
    """One per device, with its memory to flush with."""
    if device not in _STOPWATCHES:
        _STOPWATCHES[device] = HostStopwatch() if device is None else CudaStopwatch(device)
    return _STOPWATCHES[device]


# --- below: a block

_STOPWATCHES: dict[int | None, Stopwatch] = {}
_CLOCKS: dict[int | None, Clocks] = {}
_RESOLUTIONS: dict[int | None, Resolution] = {}
_DRAW = random.Random()


def _block(subject: Subject, request: dict[str, Any]) -> dict[str, Any]:
    n_samples, stopwatch = int(request["n_samples"]), stopwatch_of(subject.device)
    start = _DRAW.randrange(subject.n_sets)
    # The first sample of a block comes after another process had the device: it is not kept.
    used = {place for index in range(n_samples + 1) for place in subject.places(start + index)}
    subject.watch.before_block(sorted(used))
    for index in range(n_samples + 1):
        stopwatch.cold_sample(subject.cold_sample(start + index), subject.sleep_us, subject.written_bytes)
    clocks = _clocks(subject.device).read()  # while the device is at it
    cold = stopwatch.take()[1:]
    warm = _warm_samples(subject, int(request["n_warm_samples"]))
    subject.watch.after_block()
    operator = _operator_samples(subject, int(request["n_operator_calls"]))
    per_call = [[time_us / subject.n_calls for time_us in samples] for samples in (cold, warm)]
    return {
        "cold_us": per_call[0],
        "places": [subject.places(start + index)[0] for index in range(1, n_samples + 1)],
        "warm_us": per_call[1],
        "operator_us": operator,
        "clocks": clocks,
    }


def _warm_samples(subject: Subject, n_samples: int) -> list[float]:
    stopwatch = stopwatch_of(subject.device)
    for index in range(n_samples):
        if index == 0:
            for call in subject.warm_sample():
                call()
        stopwatch.warm_sample(subject.warm_sample(), subject.sleep_us)
    return stopwatch.take()


def _operator_samples(subject: Subject, n_calls: int) -> list[float]:
    """One sample: the host's time per call until the device has done them all."""
    if n_calls == 0:
        return []
    stopwatch = stopwatch_of(subject.device)
    calls = [subject.arm_operator(index % subject.n_sets) for index in range(min(n_calls, subject.max_calls))]
    stopwatch.wait()
    started = time.perf_counter()
    for call in calls:
        call()
    stopwatch.wait()
    return [(time.perf_counter() - started) * 1e6 / len(calls)]


def _no_call(place: int) -> Callable[[], Any]:
    """Of a subject that is no operator."""
    return lambda: None


def _arranged(subject: Subject, n_calls: int) -> dict[str, Any]:
    """Put so many calls into each sample, as far as it can have them."""
    stopwatch = stopwatch_of(subject.device)
    subject.graphs, subject.warm_graph, subject.enqueue_us = [], None, subject.own_enqueue_us
    subject.n_calls = max(1, min(n_calls, subject.max_calls, subject.n_sets))
    if not _capture(subject, stopwatch):
        subject.n_calls = min(subject.n_calls, _affordable_calls(subject))
    resolution = _resolution(subject.device, stopwatch)
    return {
        "n_sets": subject.n_sets,
        "n_calls": subject.n_calls,
        "max_calls": min(subject.max_calls, subject.n_sets),
        "method": GRAPH if subject.graphs else STREAM,
        "method_reason": subject.capture_problem,
        "time_us": _probe_us(subject, stopwatch),
        "enqueue_us": subject.own_enqueue_us,
        "resolution_us": resolution.empty_us,
        "tick_us": resolution.tick_us,
        **_facts(subject.device),
    }


def _long_enough(subject: Subject, stopwatch: Stopwatch) -> int:
    """A power of two, so that small differences in time seldom make one."""
    subject.enqueue_us = subject.own_enqueue_us
    subject.n_calls = max(1, min(N_PROBE_CALLS, subject.max_calls, subject.n_sets, _affordable_calls(subject)))
    wanted = LEAST_SAMPLE_US / max(_probe_us(subject, stopwatch), 1e-3)
    return 1 << max(0, math.ceil(math.log2(wanted)))


def _capture(subject: Subject, stopwatch: Stopwatch) -> bool:
    """Whether the subject's calls are graphs from now on; what cannot be captured stays as it is."""
    if subject.graph_arm is None or subject.device is None:
        return False
    arm, device, pool = subject.graph_arm, subject.device, torch.cuda.graph_pool_handle()
    n_graphs = subject.n_sets if subject.n_calls == 1 else min(MAX_SHARED_GRAPHS, subject.n_sets)
    starts = [index * subject.n_sets // n_graphs for index in range(n_graphs)]
    try:
        graphs = [CapturedCalls(arm, subject.around(start), device, pool) for start in starts]
        warm_graph = CapturedCalls(arm, [0] * subject.n_calls, device, pool)
        for graph in (*graphs, warm_graph):
            graph()
        stopwatch.wait()
    except RuntimeError as error:  # torch raises nothing narrower for what cannot be captured
        subject.capture_problem = short_message(error)
        return False
    subject.graphs, subject.warm_graph, subject.capture_problem = graphs, warm_graph, ""
    subject.enqueue_us = _enqueue_us(lambda: graphs[0], stopwatch)
    return True


def _probe_us(subject: Subject, stopwatch: Stopwatch) -> float:
    """Per call, in the shortest of a few samples."""
    for _ in range(N_PROBES):
        stopwatch.cold_sample(subject.cold_sample(0), subject.sleep_us, subject.written_bytes)
    return min(stopwatch.take()) / subject.n_calls


def _enqueue_us(arm: Callable[[], Callable[[], Any]], stopwatch: Stopwatch) -> float:
    """The host's time for one call, while the device has nothing else to do."""
    times = []
    for _ in range(N_PROBES):
        call = arm()
        stopwatch.wait()
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    stopwatch.wait()
    return min(times)


def _affordable_calls(subject: Subject) -> int:
    """Calls that the device can be kept waiting for."""
    return max(1, int((MAX_SLEEP_US - LEAST_SLEEP_US) / max(SLEEP_MARGIN * subject.enqueue_us, 1.0)))


def _resolution(device: int | None, stopwatch: Stopwatch) -> Resolution:
    if device not in _RESOLUTIONS:
        _RESOLUTIONS[device] = stopwatch.resolution()
    return _RESOLUTIONS[device]


# --- below: the device


def _facts(device: int | None) -> dict[str, Any]:
    switches = {
        "tf32": _switch(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": _switch(torch.backends.cudnn.benchmark),
        "date": datetime.date.today().isoformat(),
        "pid": os.getpid(),
    }
    if device is None:
        facts = {"gpu": "CPU", "gpu_uuid": "", "driver": "none", "torch_version": torch.__version__}
    else:
        from .gpu_device import device_facts

        facts = {**device_facts(device), "gpu_uuid": _uuid(device)}
    return {**facts, **switches}


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"


def _uuid(device: int) -> str:
    """As NVML spells it; empty where torch does not tell."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"GPU-{uuid}" if uuid else ""


def _clocks(device: int | None) -> Clocks:
    if device not in _CLOCKS:
        _CLOCKS[device] = Clocks("" if device is None else _uuid(device))
    return _CLOCKS[device]


def _subject(request: dict[str, Any]) -> Subject:
    if request["subject"] not in SUBJECTS:
        raise Failure(f"nothing called {request['subject']} was prepared for timing in this process")
    return SUBJECTS[request["subject"]]


def _on(device: int | None) -> Any:
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)
