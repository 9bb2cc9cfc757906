"""Take samples of time: of the device between two events, or, without a device, of the host.

A sample is one interval around one or more calls. On a device, its preparation is the same for everything that is
timed. It reads twice the size of L2 (for cold samples), then sleeps on the device while the host enqueues the calls, so
that gaps between launches are the device's and not Python's.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

L2_FLUSH_FACTOR = 2
SLEEP_CYCLES_PER_US = 2000
"""Cycles of `torch.cuda._sleep` per microsecond, at the highest clock of current GPUs: sleeping too long costs
little."""
N_EMPTY_SAMPLES = 15
N_IDLE_LAUNCHES = 9
IDLE_US = 300.0
"""Host microseconds in which an idle device launches and ends a small kernel: 14 to 20 in the median of nine on an
H200, also with two busy processes per core. Beside the work of another process it took 2400, a time slice, and passes
over memory took 2.15 times as long (2026-11-29)."""
EVENT_TICK_US = 0.5
"""Resolution of CUDA's events in microseconds, as documented for cudaEventElapsedTime; newer GPUs resolve more."""

Calls = Sequence[Callable[[], Any]]
LIBRARY = "libnvidia-ml.so.1"
# Values of enums in nvml.h.
CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
THROTTLE_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""The bits for a forced slowdown. Others, e.g. idle, or clocks that an application set, are none."""


@dataclass
class Resolution:
    """`empty_us`: the time of an empty sample. `tick_us`: the smallest difference seen between two such times."""

    empty_us: float
    tick_us: float


class CudaStopwatch:
    """Samples on a GPU. They are enqueued; `take` waits for them."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        where = f"cuda:{device}"
        self._read = torch.rand(L2_FLUSH_FACTOR * self._l2_bytes // 4, device=where)
        self._written = torch.rand(self._l2_bytes // 4, device=where)
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def cold_sample(self, calls: Calls, sleep_us: float, written_bytes: int = 0) -> None:
        """Enqueue calls that find none of their data in L2."""
        self.flush(written_bytes)
        self.warm_sample(calls, sleep_us)

    def flush(self, written_bytes: int = 0) -> None:
        """Enqueue what evicts all data from L2. `written_bytes` of L2 are left dirty, as by a previous call that writes
        so many: a single call then takes as long as one of many. Leaving all of L2 dirty would charge a read-only
        kernel for up to 14 us of writes on an H200. Leaving none dirty would not charge a writing kernel for its
        own."""
        self._read.sum()
        self._written[: min(written_bytes, self._l2_bytes) // 4].add_(1.0)

    def warm_sample(self, calls: Calls, sleep_us: float) -> None:
        """Enqueue calls that find the previous contents of L2."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(sleep_us * SLEEP_CYCLES_PER_US))
        start.record()
        for call in calls:
            call()
        end.record()
        self._pending.append((start, end))

    def take(self) -> list[float]:
        """Return the microseconds of each sample since the last `take`."""
        self.wait()
        times = [start.elapsed_time(end) * 1e3 for start, end in self._pending]
        self._pending.clear()
        return times

    def wait(self) -> None:
        """Wait until the device has done all its work."""
        torch.cuda.synchronize(self._device)

    def is_idle(self) -> bool:
        """Check whether small kernels start at once: no other process's work occupies the device."""
        times_us = []
        for _ in range(N_IDLE_LAUNCHES):
            self.wait()
            started = time.perf_counter()
            self._written[:1].add_(1.0)
            self.wait()
            times_us.append((time.perf_counter() - started) * 1e6)
        return statistics.median(times_us) < IDLE_US

    def resolution(self) -> Resolution:
        """Measure samples with nothing between their events."""
        for _ in range(N_EMPTY_SAMPLES):
            self.cold_sample((), 0.0)
        return _resolution(self.take(), EVENT_TICK_US)


class HostStopwatch:
    """Samples of the host's clock, for computation on a CPU. There is no cache to flush and nothing to wait for."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def cold_sample(self, calls: Calls, sleep_us: float, written_bytes: int = 0) -> None:
        """Take a warm sample: a CPU's caches are not flushed."""
        self.warm_sample(calls, sleep_us)

    def warm_sample(self, calls: Calls, sleep_us: float) -> None:
        """Run the calls at once."""
        started = time.perf_counter_ns()
        for call in calls:
            call()
        self._times.append((time.perf_counter_ns() - started) / 1e3)

    def take(self) -> list[float]:
        """Return the microseconds of each sample since the last `take`."""
        times, self._times = self._times, []
        return times

    def wait(self) -> None:
        """Return at once: nothing runs asynchronously."""

    def is_idle(self) -> bool:
        """Return True: processors are shared at any time."""
        return True

    def resolution(self) -> Resolution:
        """Measure samples with nothing between two readings."""
        for _ in range(N_EMPTY_SAMPLES):
            self.warm_sample((), 0.0)
        return _resolution(self.take(), time.get_clock_info("perf_counter").resolution * 1e6)


def _resolution(empty_us: Sequence[float], coarsest_tick_us: float) -> Resolution:
    ordered = sorted(set(empty_us))
    gaps = [later - earlier for earlier, later in zip(ordered, ordered[1:])]
    return Resolution(statistics.median(empty_us), min([coarsest_tick_us, *gaps]))


Stopwatch = Union[CudaStopwatch, HostStopwatch]


class Clocks:
    """One GPU's readings. `reason` explains why there are none; empty where there are."""

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        self.reason = ""
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = ctypes.CDLL(library)
            self._check(self._nvml.nvmlInit_v2(), "nvmlInit")
            name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
            self._check(self._nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)), f"no GPU {uuid}")
        except (OSError, AttributeError, NvmlRefused) as error:
            self.reason = f"NVML: {error}"

    def read(self) -> dict[str, Any]:
        """Return ``{"sm_mhz", "memory_mhz", "temperature_c", "power_w", "throttled": [reasons]}``, without values that
        this GPU does not report; ``{"reason"}`` where NVML is missing."""
        if self.reason:
            return {"reason": self.reason}
        numbers = {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", CLOCK_SM),
            "memory_mhz": self._number("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            "temperature_c": self._number("nvmlDeviceGetTemperature", TEMPERATURE_GPU),
            "power_w": self._number("nvmlDeviceGetPowerUsage", scale=1e-3),
        }
        return {"throttled": self._throttled(), **{name: value for name, value in numbers.items() if value is not None}}

    def _throttled(self) -> list[str]:
        bits = ctypes.c_ulonglong()
        function = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        if function is None or function(self._handle, ctypes.byref(bits)):
            return []
        return [reason for bit, reason in THROTTLE_REASONS.items() if bits.value & bit]

    def _number(self, function: str, *arguments: int, scale: float = 1) -> float | None:
        """Return a reading, or None for one that this GPU does not have."""
        value = ctypes.c_uint()
        call = getattr(self._nvml, function, None)
        if call is None or call(self._handle, *arguments, ctypes.byref(value)):
            return None
        return value.value * scale

    def _check(self, status: int, what: str) -> None:
        if status:
            raise NvmlRefused(f"{what} ({status})")


class NvmlRefused(Exception):
    """NVML is present and refuses."""
