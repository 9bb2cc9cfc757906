"""Commands that time one subject: `prepare_probe`, `set_calls`, `time_block` (a block of samples) and `end_timing`; and
`wait_until_idle`, before them.

A subject is a candidate's operation (`timing.candidate`) or a PyTorch baseline (`timing.baseline`): these live in
different processes. The client alternates blocks between them; between two blocks nothing runs here.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import torch

from ..failure import Failure
from ..files import device_of
from .stopwatch import Clocks, Resolution
from .subject import (
    GRAPH,
    MAX_SETS,
    STREAM,
    Subject,
    long_enough,
    probe_us,
    put_calls,
    set_precision,
    stopwatch_of,
    warm_up,
)

PROBE_ELEMENTS = 1 << 18
"""Elements of 4 bytes: a kernel of 2 or 3 us, most of it its launch."""

IDLE_POLL_S = 0.01

SUBJECTS: dict[str, Subject] = {}


def prepare_probe(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare one small kernel of PyTorch's, the same in every process, which shows the difference between two
    processes: ``{"subject", "device", "method"}``. Answers as `admit`."""
    where = device_of(request["device"])
    # Not drawn: CUDA's generator raises once a capture has failed, as that of a call that waits for the device does.
    pairs = [[torch.linspace(1, 2, PROBE_ELEMENTS, device=where) for _ in range(2)] for _ in range(MAX_SETS)]

    def arm(place: int) -> Callable[[], Any]:
        return lambda: torch.neg(pairs[place][0], out=pairs[place][1])

    graph_arm = arm if request["method"] == GRAPH else None
    try:
        subject = Subject(arm, lambda place: lambda: None, MAX_SETS, where.index, graph_arm=graph_arm)
        return {"status": "ready", **admit(request["subject"], subject, MAX_SETS)}
    except RuntimeError as error:  # torch raises nothing narrower for refusals of a device
        return {"status": "crashed", "message": str(error)[:500]}


def set_calls(request: dict[str, Any]) -> dict[str, Any]:
    """Set the calls of each sample, in a graph or on the stream, so that a sample's overhead weighs as much as on the
    other side: ``{"subject", "n_calls", "method"}``. Answers as `admit` does, or ``{"status": "crashed",
    "message"}``."""
    subject = _subject(request)
    try:
        with torch.no_grad(), _on(subject.device):
            return {"status": "ready", **_arranged(subject, int(request["n_calls"]), request.get("method", GRAPH))}
    except RuntimeError as error:  # torch raises nothing narrower for refusals of a device
        return {"status": "crashed", "message": str(error)[:500]}


def wait_until_idle(request: dict[str, Any]) -> dict[str, Any]:
    """Wait until no other process's work occupies the device of ``{"device", "at_most_s"}``. Answers ``{"status":
    "ready", "is_idle", "waited_s"}``."""
    stopwatch = stopwatch_of(device_of(request["device"]).index)
    started = time.monotonic()
    while not (is_idle := stopwatch.is_idle()) and time.monotonic() - started < float(request["at_most_s"]):
        time.sleep(IDLE_POLL_S)
    return {"status": "ready", "is_idle": is_idle, "waited_s": time.monotonic() - started}


def time_block(request: dict[str, Any]) -> dict[str, Any]:
    """Time a block: ``{"subject", "n_samples", "n_warm_samples", "n_operator_calls"}``.

    Answers ``{"status": "timed", "cold_us": [...], "places": [...], "warm_us": [...], "operator_us": [...], "clocks":
    {...}}``, times per call, and for each cold sample the first set of buffers that it used; or ``{"status": "crashed",
    "message"}`` when the device or PyTorch fails: then use another process.
    """
    subject = _subject(request)
    try:
        with torch.no_grad(), _on(subject.device):
            return {"status": "timed", **_block(subject, request)}
    except RuntimeError as error:  # torch raises nothing narrower for refusals of a device
        return {"status": "crashed", "message": str(error)[:500]}


def end_timing(request: dict[str, Any]) -> dict[str, Any]:
    """Remove the subject of ``{"subject"}``, and return the checks of its results: `OutputWatch.report` for a
    candidate."""
    subject = _subject(request)
    del SUBJECTS[request["subject"]]
    return {"status": "ended", **subject.watch.report()}


def admit(name: str, subject: Subject, n_calls: int = 0) -> dict[str, Any]:
    """Register a subject under a name, warm it up, capture its graphs, and probe it. `n_calls` go into each sample, or
    as many as make it long enough.

    Answers ``{"n_sets", "n_calls", "max_calls", "method", "method_reason", "time_us", "is_long", "enqueue_us",
    "resolution_us", "tick_us", ...facts of the device}``; `method` is `GRAPH` or `STREAM`, times are per call, and a
    call that `is_long` needs one sample.
    """
    set_precision()
    with torch.no_grad(), _on(subject.device):
        warm_up(subject)
        SUBJECTS[name] = subject
        return _arranged(subject, n_calls or long_enough(subject))


_DRAW = random.Random()


def _block(subject: Subject, request: dict[str, Any]) -> dict[str, Any]:
    n_samples, stopwatch = int(request["n_samples"]), stopwatch_of(subject.device)
    start = _DRAW.randrange(subject.n_sets)
    # Discard a short first sample of a block: another process used the device before it.
    n_discarded = 0 if subject.is_long else 1
    starts = range(start, start + n_discarded + n_samples)
    subject.watch.before_block(subject.intact_results(starts))
    for each in starts:
        stopwatch.cold_sample(subject.cold_sample(each), subject.sleep_us, subject.written_bytes)
    clocks = _clocks(subject.device).read()  # while the device is busy
    cold = stopwatch.take()[n_discarded:]
    warm = _warm_samples(subject, int(request["n_warm_samples"]))
    subject.watch.after_block()
    operator = _operator_samples(subject, int(request["n_operator_calls"]))
    subject.free_temporaries()
    per_call = [[time_us / subject.n_calls for time_us in samples] for samples in (cold, warm)]
    return {
        "cold_us": per_call[0],
        "places": [subject.places(start + n_discarded + index)[0] for index in range(n_samples)],
        "warm_us": per_call[1],
        "operator_us": operator,
        "clocks": clocks,
    }


def _warm_samples(subject: Subject, n_samples: int) -> list[float]:
    stopwatch = stopwatch_of(subject.device)
    for index in range(n_samples):
        if index == 0 and not subject.is_long:  # a long call leaves nothing else in L2
            for call in subject.warm_sample():
                call()
        stopwatch.warm_sample(subject.warm_sample(), subject.sleep_us)
    return stopwatch.take()


def _operator_samples(subject: Subject, n_calls: int) -> list[float]:
    """Return one sample: the host's time per call until the device has done them all."""
    if n_calls == 0:
        return []
    stopwatch = stopwatch_of(subject.device)
    calls = [subject.arm_operator(index % subject.n_sets) for index in range(min(n_calls, subject.max_calls))]
    if subject.is_large:
        calls[0]()  # the allocator has nothing cached
    stopwatch.wait()
    started = time.perf_counter()
    for call in calls:
        call()
    stopwatch.wait()
    return [(time.perf_counter() - started) * 1e6 / len(calls)]


def _arranged(subject: Subject, n_calls: int, method: str = GRAPH) -> dict[str, Any]:
    """Set the calls of each sample, and return the result."""
    put_calls(subject, n_calls, method)
    resolution = _resolution(subject.device)
    time_us = probe_us(subject)
    subject.free_temporaries()
    return {
        "n_sets": subject.n_sets,
        "n_calls": subject.n_calls,
        "max_calls": min(subject.max_calls, subject.n_sets),
        "method": GRAPH if subject.graphs else STREAM,
        "method_reason": subject.capture_problem,
        "time_us": time_us,
        "is_long": subject.is_long,
        "enqueue_us": subject.own_enqueue_us,
        "resolution_us": resolution.empty_us,
        "tick_us": resolution.tick_us,
        **_facts(subject.device),
    }


@functools.cache
def _resolution(device: int | None) -> Resolution:
    return stopwatch_of(device).resolution()


def _facts(device: int | None) -> dict[str, Any]:
    switches = {
        "tf32": _switch(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": _switch(torch.backends.cudnn.benchmark),
        "date": datetime.date.today().isoformat(),
        "pid": os.getpid(),
    }
    if device is None:
        facts: dict[str, Any] = {"gpu": "CPU", "gpu_uuid": "", "driver": "none", "torch_version": torch.__version__}
    else:
        from ..gpu.device import device_facts, total_bytes

        facts = {**device_facts(device), "gpu_uuid": _uuid(device), "total_bytes": total_bytes(device)}
    return {**facts, **switches}


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"


def _uuid(device: int) -> str:
    """Return the UUID in NVML's spelling; empty where torch does not tell."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"GPU-{uuid}" if uuid else ""


@functools.cache
def _clocks(device: int | None) -> Clocks:
    return Clocks("" if device is None else _uuid(device))


def _subject(request: dict[str, Any]) -> Subject:
    if request["subject"] not in SUBJECTS:
        raise Failure(f"nothing called {request['subject']} was prepared for timing in this process")
    return SUBJECTS[request["subject"]]


def _on(device: int | None) -> Any:
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)
