"""Subjects of timing: the calls, their buffers, and the number of calls of a sample."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..failure import Failure, short_message
from .stopwatch import CudaStopwatch, HostStopwatch, Stopwatch

Results = Mapping[str, torch.Tensor]


class CapturedCalls:
    """Calls as one CUDA graph. Calling it replays them on the current stream and returns at once.

    `arm` returns the calls, on the captured stream and before the capture, so that autograd's later work is captured,
    too. `results` has those that a watch may examine, by set of buffers. Raises RuntimeError for calls that cannot be
    captured.
    """

    def __init__(self, arm: Callable[[int], Callable[[], Any]], places: Sequence[int], device: int, pool: Any) -> None:
        self.places = tuple(places)
        self.results: Mapping[int, Results] = {}
        stream = capture_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            self._calls = [arm(place) for place in places]
            stream.synchronize()
            self._graph.capture_begin(pool=pool)
            try:
                for call in self._calls:
                    call()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)

    def __call__(self) -> None:
        self._graph.replay()


@functools.cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """Return one stream per device: the default stream cannot be captured."""
    return torch.cuda.Stream(device)


GRAPH, STREAM = "graph", "stream"
"""Launch methods of a sample's calls: as one CUDA graph of ours, or one after the other."""
N_WARM_UP = 3
N_PROBES = 5
LEAST_SAMPLE_US = 200.0
"""Minimum microseconds of a sample. More calls are added until it is reached, which divides the overhead, 2.9 us on one
H200."""
LONG_US = 5000.0
"""Microseconds of a call from which one sample says as much as several: launches, the timer's resolution and what ran
before are in its last digits, and each further sample costs the GPU's time."""
N_PROBE_CALLS = 8
"""Calls of the sample that determines the calls per sample: a single one is mostly launch."""
MAX_SHARED_GRAPHS = 4
"""Maximum graphs of several calls each, which begin at different sets of buffers."""
MAX_SLEEP_US = 4000.0
SLEEP_MARGIN = 1.5
"""Factor on the host's own time to enqueue, which varies."""
LEAST_SLEEP_US = 20.0
"""Microseconds for the events and the sleep's own launch."""
MAX_SETS = 16
SET_BYTES_BUDGET = 2 << 30
"""Maximum bytes of all copies of one subject's buffers; two are made of smaller ones than `ONE_SET_BYTES` in any
case."""
ONE_SET_BYTES = 4 << 30
"""Bytes of a subject's buffers from which there is one set: a call evicts its own first bytes from L2 long before it
ends, and copies of a task of 20 GB, beside PyTorch's, would exceed 80 GB."""
FREE_MEMORY_SHARE = 8
"""Divisor of the device's free memory: that share may go into copies."""

Arm = Callable[[int], Callable[[], Any]]


class NoWatch:
    """A watch that checks nothing."""

    def captured(self, places: Sequence[int]) -> Mapping[int, Results]:
        """Return no results."""
        return {}

    def before_block(self, calls: Sequence[tuple[int, Results]]) -> None:
        """Do nothing."""

    def after_block(self) -> None:
        """Do nothing."""

    def report(self) -> dict[str, Any]:
        """Return an empty report."""
        return {}


@dataclass
class Subject:
    """A subject to time. `arm(place)` does the untimed preparation and returns a call on the buffers at `place`, of
    `n_sets`; `arm_operator` the same for a call as a user makes it. At most `max_calls` are armed at once. `graph_arm`
    arms the calls that a CUDA graph captures; None where the subject has graphs of its own. The calls of an `is_large`
    one run on a stream where the host enqueues them in time, and what they allocate is freed after each block: a graph
    would keep it."""

    arm: Arm
    arm_operator: Arm
    n_sets: int
    device: int | None
    graph_arm: Arm | None = None
    max_calls: int = MAX_SETS
    is_large: bool = False
    watch: Any = field(default_factory=NoWatch)
    n_calls: int = 1
    written_bytes: int = 0
    """Minimum bytes that one call writes: its results."""
    call_us: float = 0.0
    """The device's time for one call."""
    own_enqueue_us: float = 0.0
    """The host's time for one call."""
    enqueue_us: float = 0.0
    """The host's time for one call, or for one replay of all calls."""
    graphs: list[CapturedCalls] = field(default_factory=list)
    warm_graph: CapturedCalls | None = None
    capture_problem: str = "it has graphs of its own, or runs on no GPU"

    def places(self, start: int) -> Sequence[int]:
        """Return the sets of buffers that the sample at `start` uses."""
        if self.graphs:
            return self.graphs[start % len(self.graphs)].places
        return self.around(start * self.n_calls)

    def around(self, start: int) -> Sequence[int]:
        """Return as many sets as a sample has calls, from `start` on, wrapping around."""
        return [(start + offset) % self.n_sets for offset in range(self.n_calls)]

    def intact_results(self, starts: Sequence[int]) -> list[tuple[int, Results]]:
        """Return the sets of buffers that samples at `starts`, in this order, leave with results, and the results that
        their graph keeps. Graphs share a pool: replayed again, one may overwrite with its temporaries the results of
        each that was captured after it."""
        if not self.graphs:
            return [(place, {}) for place in sorted({place for start in starts for place in self.places(start)})]
        found: list[tuple[int, Results]] = []
        earliest = len(self.graphs)
        for index in (start % len(self.graphs) for start in reversed(starts)):
            if index < earliest:
                found += self.graphs[index].results.items()
                earliest = index
        return found

    def cold_sample(self, start: int) -> list[Callable[[], Any]]:
        """Return the calls of one cold sample."""
        if self.graphs:
            return [self.graphs[start % len(self.graphs)]]
        return [self.arm(place) for place in self.places(start)]

    def warm_sample(self) -> list[Callable[[], Any]]:
        """Return calls on the same buffers again and again."""
        if self.warm_graph is not None:
            return [self.warm_graph]
        return [self.arm(0) for _ in range(self.n_calls)]

    @property
    def is_long(self) -> bool:
        """Check whether one call is a sample that needs no repetition."""
        return self.call_us >= LONG_US

    @property
    def n_probes(self) -> int:
        """Return the calls of a probe."""
        return 1 if self.is_long else N_PROBES

    @property
    def prefers_stream(self) -> bool:
        """Check whether a graph would cost memory or calls that matter and save no time."""
        is_enqueued = SLEEP_MARGIN * self.own_enqueue_us < MAX_SLEEP_US - LEAST_SLEEP_US
        return (self.is_large or self.is_long) and is_enqueued

    def free_temporaries(self) -> None:
        """Give back what the calls of a large subject allocated: other processes time their own meanwhile."""
        if self.is_large and self.device is not None:
            torch.cuda.empty_cache()

    @property
    def sleep_us(self) -> float:
        """Return the time that the device waits for the host to enqueue a sample."""
        n_enqueued = 1 if self.graphs else self.n_calls
        return min(MAX_SLEEP_US, LEAST_SLEEP_US + SLEEP_MARGIN * n_enqueued * self.enqueue_us)


def warm_up(subject: Subject) -> None:
    """Call it on every set of buffers, and measure a call's cost on the device and on the host. What the first call
    only tried is given back: cuDNN's choices for an inception module took 83 GiB of an H200, which references and
    candidates then lacked."""
    stopwatch = stopwatch_of(subject.device)
    subject.arm(0)()
    if subject.device is not None:
        torch.cuda.empty_cache()
        subject.arm(0)()  # which allocates what it uses
    stopwatch.cold_sample([subject.arm(0)], LEAST_SLEEP_US)
    subject.call_us = stopwatch.take()[-1]
    for place in range(1, subject.n_sets if subject.is_long else max(N_WARM_UP, subject.n_sets)):
        subject.arm(place % subject.n_sets)()
    stopwatch.wait()
    subject.own_enqueue_us = _enqueue_us(lambda: subject.arm(0), stopwatch, subject.n_probes)


def put_calls(subject: Subject, n_calls: int, method: str) -> None:
    """Set the calls of each sample, as far as possible: as graphs, where they can be captured and the other side does
    not run on a stream."""
    subject.graphs, subject.warm_graph, subject.enqueue_us = [], None, subject.own_enqueue_us
    subject.n_calls = max(1, min(n_calls, subject.max_calls, subject.n_sets))
    if method == STREAM or subject.prefers_stream or not _capture(subject, stopwatch_of(subject.device)):
        subject.n_calls = min(subject.n_calls, _affordable_calls(subject))


def long_enough(subject: Subject) -> int:
    """Return the calls for one sample: a power of two, so that small differences in time seldom change it."""
    if subject.is_long:
        return 1
    subject.enqueue_us = subject.own_enqueue_us
    subject.n_calls = max(1, min(N_PROBE_CALLS, subject.max_calls, subject.n_sets, _affordable_calls(subject)))
    wanted = LEAST_SAMPLE_US / max(probe_us(subject), 1e-3)
    return 1 << max(0, math.ceil(math.log2(wanted)))


def probe_us(subject: Subject) -> float:
    """Return the time per call, in the shortest of a few samples."""
    stopwatch = stopwatch_of(subject.device)
    for _ in range(subject.n_probes):
        stopwatch.cold_sample(subject.cold_sample(0), subject.sleep_us, subject.written_bytes)
    return min(stopwatch.take()) / subject.n_calls


def set_precision() -> None:
    """Set the same precision in every timed process: TF32 is off, as the tolerances of correctness assume; cuDNN
    selects its algorithms by trying them."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def is_large(set_bytes: int) -> bool:
    """Check whether buffers of so many bytes, with the results, are the only set."""
    return set_bytes >= ONE_SET_BYTES


def n_affordable_sets(set_bytes: int, device: int | None) -> int:
    """Return the number of copies of a subject's buffers."""
    if is_large(set_bytes):
        return 1
    budget = SET_BYTES_BUDGET
    if device is not None:
        budget = min(budget, torch.cuda.mem_get_info(device)[0] // FREE_MEMORY_SHARE)
    return max(2, min(MAX_SETS, budget // max(set_bytes, 1)))


def refuse_zeros(inputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse inputs of only zeros: they take less power, so a GPU runs them faster than real data."""
    floating = [tensor for tensor in inputs.values() if tensor.is_floating_point() and tensor.numel()]
    if floating and not any(bool(tensor.any()) for tensor in floating):
        raise Failure("all floating inputs are zero: times on zeros are not true of other inputs")


@functools.cache
def stopwatch_of(device: int | None) -> Stopwatch:
    """Return one stopwatch per device, with its memory to flush with."""
    return HostStopwatch() if device is None else CudaStopwatch(device)


def _capture(subject: Subject, stopwatch: Stopwatch) -> bool:
    """Capture the subject's calls as graphs; returns whether that succeeded. Calls that cannot be captured stay as they
    are."""
    if subject.graph_arm is None or subject.device is None:
        return False
    arm, device, pool = subject.graph_arm, subject.device, torch.cuda.graph_pool_handle()
    n_graphs = subject.n_sets if subject.n_calls == 1 else min(MAX_SHARED_GRAPHS, subject.n_sets)
    starts = [index * subject.n_sets // n_graphs for index in range(n_graphs)]
    try:
        graphs = []
        for start in starts:
            graphs.append(graph := CapturedCalls(arm, subject.around(start), device, pool))
            graph.results = subject.watch.captured(graph.places)
        warm_graph = CapturedCalls(arm, [0] * subject.n_calls, device, pool)
        for graph in (*graphs, warm_graph):
            graph()
        stopwatch.wait()
    except RuntimeError as error:  # torch raises nothing narrower for calls that cannot be captured
        subject.capture_problem = short_message(error)
        return False
    subject.graphs, subject.warm_graph, subject.capture_problem = graphs, warm_graph, ""
    subject.enqueue_us = _enqueue_us(lambda: graphs[0], stopwatch, subject.n_probes)
    return True


def _enqueue_us(arm: Callable[[], Callable[[], Any]], stopwatch: Stopwatch, n_probes: int) -> float:
    """Return the host's time for one call, while the device is otherwise idle."""
    times = []
    for _ in range(n_probes):
        call = arm()
        stopwatch.wait()
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    stopwatch.wait()
    return min(times)


def _affordable_calls(subject: Subject) -> int:
    """Return the number of calls that the device can be kept waiting for."""
    return max(1, int((MAX_SLEEP_US - LEAST_SLEEP_US) / max(SLEEP_MARGIN * subject.enqueue_us, 1.0)))
