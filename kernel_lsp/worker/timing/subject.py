"""Subjects of timing: what is called, on which buffers, and how many calls make a sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..failure import Failure, short_message
from .graph import CapturedCalls
from .stopwatch import CudaStopwatch, HostStopwatch, Stopwatch

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


def warm_up(subject: Subject) -> None:
    """Call it on every set of buffers, and learn what a call costs the host."""
    stopwatch = stopwatch_of(subject.device)
    for place in range(max(N_WARM_UP, subject.n_sets)):
        subject.arm(place % subject.n_sets)()
    stopwatch.wait()
    subject.own_enqueue_us = _enqueue_us(lambda: subject.arm(0), stopwatch)


def put_calls(subject: Subject, n_calls: int, method: str = GRAPH) -> None:
    """Put so many calls into each sample, as far as it can have them: as graphs where they can be captured, unless what
    they are compared with runs on a stream."""
    subject.graphs, subject.warm_graph, subject.enqueue_us = [], None, subject.own_enqueue_us
    subject.n_calls = max(1, min(n_calls, subject.max_calls, subject.n_sets))
    if method == STREAM or not _capture(subject, stopwatch_of(subject.device)):
        subject.n_calls = min(subject.n_calls, _affordable_calls(subject))


def long_enough(subject: Subject) -> int:
    """Calls for one sample: a power of two, so that small differences in time seldom make one."""
    subject.enqueue_us = subject.own_enqueue_us
    subject.n_calls = max(1, min(N_PROBE_CALLS, subject.max_calls, subject.n_sets, _affordable_calls(subject)))
    wanted = LEAST_SAMPLE_US / max(probe_us(subject), 1e-3)
    return 1 << max(0, math.ceil(math.log2(wanted)))


def probe_us(subject: Subject) -> float:
    """Per call, in the shortest of a few samples."""
    stopwatch = stopwatch_of(subject.device)
    for _ in range(N_PROBES):
        stopwatch.cold_sample(subject.cold_sample(0), subject.sleep_us, subject.written_bytes)
    return min(stopwatch.take()) / subject.n_calls


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


# --- below: capturing and the host's part

_STOPWATCHES: dict[int | None, Stopwatch] = {}


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
