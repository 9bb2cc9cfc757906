"""Commands for a CUDA device: load a candidate, run its bound operations on case files, time it beside PyTorch.

Verdicts are reached elsewhere: here outputs are poisoned, computed and copied out. An operation is the JSON of
`kernel_lsp.core.plan.BoundOperation`; tensors in files are the entries of `files`.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .cuda_runtime import CudaError, on_device
from .failure import Failure, short_message
from .files import read_tensor
from .gpu_check import forget, handle_check, handle_recheck
from .gpu_device import device_facts, open_device
from .gpu_load import LOADED, handle_load, loaded_candidate, unload
from .gpu_run import BoundRun, on, same_bytes
from .reference import compile_reference

__all__ = ["COMMANDS", "LOADED"]

L2_FLUSH_FACTOR = 2
MIN_SAMPLES = 60
GRADIENT_PREFIX = "grad_"
"""Of the inputs of a backward that are the gradients of its results; they come first."""
N_WARM_UP = 3
LOW_PERCENTILE, HIGH_PERCENTILE = 10, 90
SLEEP_CYCLES_PER_US = 2000
"""Of `torch.cuda._sleep`, at the highest clock of current GPUs: sleeping too long costs little."""
MAX_SLEEP_US = 2000.0


def handle_unload(request: dict[str, Any]) -> dict[str, Any]:
    """``{"candidate"}``: forget it and what it ran on. Answers ``{"unloaded"}``: whether it was there."""
    forget(request["candidate"])
    return {"unloaded": unload(request["candidate"])}


def handle_time(request: dict[str, Any]) -> dict[str, Any]:
    """``{"candidate", "operation", "inputs", "reference": {"name", "source", "arguments", "direction"}, "n_samples"}``.

    `arguments` are the reference's, in order: ``{"tensor": name}`` or ``{"value": number}``. With the direction
    ``backward`` PyTorch's time is that of autograd going back through the reference, whose forward ran before. Times
    are of the device, with a cold L2, in microseconds:
    ``{"status": "timed", "ours": {...}, "eager": {...}, "is_stable", ...facts}``.
    `is_stable` says whether the outputs after the last timed call have the bytes of those after the first call.
    """
    candidate = loaded_candidate(request)
    n_samples = max(MIN_SAMPLES, int(request.get("n_samples", MIN_SAMPLES)))
    with on_device(candidate.device), torch.no_grad():
        try:
            originals = {entry["name"]: read_tensor(entry) for entry in request["inputs"]}
            _refuse_zeros(originals)
            run = BoundRun(candidate, request["operation"], originals)
            eager = _reference_call(request["reference"], originals, candidate.device)
            run()
            first = run.outputs()
            samples = interleaved_times(run, eager, n_samples, candidate.device)
            after = run.outputs()
        except (CudaError, RuntimeError) as error:
            return {"status": "crashed", "message": short_message(error)}
    return {
        "status": "timed",
        "ours": summary(samples[0]),
        "eager": summary(samples[1]),
        "is_stable": all(same_bytes(first[name], after[name]) for name in first),
        "cache": "cold",
        "date": datetime.date.today().isoformat(),
        **device_facts(candidate.device),
    }


COMMANDS = {
    "open_device": open_device,
    "load": handle_load,
    "unload": handle_unload,
    "check": handle_check,
    "recheck": handle_recheck,
    "time": handle_time,
}


def interleaved_times(
    first: Callable[[], Any], second: Callable[[], Any], n_samples: int, device: int
) -> tuple[list[float], list[float]]:
    """Device times of both in microseconds, taken A-B-B-A, each call after a flush of L2.

    The device sleeps before each start event for as long as the host needs to enqueue the call, so that the gaps
    between launches are the device's and not Python's.
    """
    flush = _L2Flush(device)
    timers = [_CallTimer(call, flush) for call in (first, second)]
    while len(timers[0].samples_us) < n_samples:
        for index in (0, 1, 1, 0):
            timers[index].sample()
    return timers[0].samples_us, timers[1].samples_us


def summary(samples_us: Sequence[float]) -> dict[str, Any]:
    """Median, 10th and 90th percentile."""
    cuts = statistics.quantiles(samples_us, n=100, method="inclusive")
    return {
        "time_us": statistics.median(samples_us),
        "low_us": cuts[LOW_PERCENTILE - 1],
        "high_us": cuts[HIGH_PERCENTILE - 1],
        "n_samples": len(samples_us),
    }


# --- below: timing


class _L2Flush:
    """Writes over more memory than L2 holds, with other values each time."""

    def __init__(self, device: int) -> None:
        n_bytes = L2_FLUSH_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        self._memory = torch.randint(1, 1 << 30, (n_bytes // 4,), dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self._memory.add_(1)


class _CallTimer:
    """Takes samples of one call."""

    def __init__(self, call: Callable[[], Any], flush: Callable[[], None]) -> None:
        self._call, self._flush = call, flush
        self.samples_us: list[float] = []
        for _ in range(N_WARM_UP):
            call()
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        enqueue_us = (time.perf_counter() - started) * 1e6
        self._sleep_cycles = int(min(2 * enqueue_us, MAX_SLEEP_US) * SLEEP_CYCLES_PER_US)

    def sample(self) -> None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush()
        torch.cuda._sleep(self._sleep_cycles)
        start.record()
        self._call()
        end.record()
        end.synchronize()
        self.samples_us.append(start.elapsed_time(end) * 1e3)


def _refuse_zeros(inputs: dict[str, torch.Tensor]) -> None:
    """Zeros take less power, so a GPU runs them faster than anything real."""
    floating = [tensor for tensor in inputs.values() if tensor.is_floating_point() and tensor.numel()]
    if floating and not any(bool(tensor.any()) for tensor in floating):
        raise Failure("all floating inputs are zero: times on zeros are not true of other inputs")


def _reference_call(reference: dict[str, Any], inputs: dict[str, torch.Tensor], device: int) -> Callable[[], Any]:
    """PyTorch's own computation on copies of the inputs, which the candidate cannot touch."""
    function = compile_reference(reference["source"], reference["name"])
    arguments = [
        inputs[argument["tensor"]].to(on(device)) if "tensor" in argument else argument["value"]
        for argument in reference["arguments"]
    ]
    if reference.get("direction") == "backward":
        given = [value.to(on(device)) for name, value in inputs.items() if name.startswith(GRADIENT_PREFIX)]
        return _backward_call(function, arguments, given)
    return lambda: function(*arguments)


def _backward_call(function: Callable[..., Any], arguments: list[Any], given: list[torch.Tensor]) -> Callable[[], Any]:
    """Autograd's way back, again and again over one forward."""
    floating = [a for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    with torch.enable_grad():
        for argument in floating:
            argument.requires_grad_()
        results = function(*arguments)
    flat = results if isinstance(results, (tuple, list)) else (results,)
    flat = [result for result in flat if result.requires_grad]
    return lambda: torch.autograd.grad(flat, floating, given[: len(flat)], retain_graph=True, allow_unused=True)
