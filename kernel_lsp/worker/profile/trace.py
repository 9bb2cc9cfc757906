"""The command `profile_trace`: list PyTorch's own launches for a task, from the torch profiler (kineto)."""

from __future__ import annotations

from typing import Any

import torch

from ..capture.program import quiet
from ..capture.reference import compile_reference
from ..failure import EnvironmentFailure, short_message
from ..files import read_tensor

N_WARM_UP, N_PROFILED = 3, 3


def profile_trace(request: dict[str, Any]) -> dict[str, Any]:
    """Trace ``{"device", "inputs": [file entries], "reference": {"name", "source", "arguments"}}`` -> ``{"kernels":
    [{"name", "n_calls", "time_us"}], "gpu"}``, per run of the reference, the longest first. Raises EnvironmentFailure
    without a GPU, or when the reference does not run on it."""
    index = int(request["device"])
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise EnvironmentFailure("torch sees no such GPU", next_step="use --device cpu")
    device = torch.device("cuda", index)
    reference = request["reference"]
    function = compile_reference(reference["source"], reference["name"])
    tensors = {entry["name"]: read_tensor(entry).to(device) for entry in request["inputs"]}
    arguments = [tensors[a["tensor"]] if "tensor" in a else a["value"] for a in reference["arguments"]]
    try:
        with torch.no_grad(), quiet():
            events = _profiled(lambda: function(*arguments))
    except RuntimeError as error:
        raise EnvironmentFailure(f"PyTorch's own code cannot be profiled: {short_message(error)}") from None
    return {"kernels": kernels_of(events), "gpu": torch.cuda.get_device_name(index)}


def kernels_of(events: list[Any]) -> list[dict[str, Any]]:
    """Return the device's events of the profiled runs, summed by name, as counts and microseconds of one run."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if "CUDA" not in str(event.device_type):
            continue
        known = found.setdefault(event.name, {"name": event.name, "n_calls": 0, "time_us": 0.0})
        known["n_calls"] += 1
        known["time_us"] += float(event.time_range.end - event.time_range.start)
    for known in found.values():
        known["n_calls"] = max(1, round(known["n_calls"] / N_PROFILED))
        known["time_us"] /= N_PROFILED
    return sorted(found.values(), key=lambda kernel: -kernel["time_us"])


def _profiled(call: Any) -> list[Any]:
    from torch.profiler import ProfilerActivity, profile

    for _ in range(N_WARM_UP):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(N_PROFILED):
            call()
        torch.cuda.synchronize()
    return list(profiler.events())
