"""Describe a CUDA device, and wrap the few calls that need one: tests replace them."""

from __future__ import annotations

import functools
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..failure import EnvironmentFailure
from ..shipped.cuda_runtime import architecture_of, driver, make_context_current, on_device

SMI_DEADLINE_S = 20
SPIN_S, SLEEP_S = 0.002, 0.0005
"""Seconds of busy waiting, within which most work ends, and of sleep between two polls afterwards."""
AWAKE_S = 0.005
"""Maximum seconds that count between two polls: on a machine that is short of processors more may pass, which is not
the device's time."""
WAITS_FOR_MEMORY_S = (1.0, 2.0, 4.0)
"""Seconds to wait after each try that finds too little memory, while others occupy most of it: cuDNN's choices that a
process of PyTorch's modes tries took 83 GiB of an H200. A reference of an inception module in fp64, made on processors
instead, took 10 to 70 s of 16 cores; two candidates that fit were said not to."""
IN_VAIN_S = 60.0
"""Seconds after waits in vain in which nothing waits: others keep their memory, and every case of every candidate would
wait 7 s, with the GPU's lock held."""
CROWDED_SHARE = 2
"""Divisor of the memory: where less is free, others occupy most of it."""

T = TypeVar("T")
_waited_in_vain: dict[int, float] = {}
"""Ends of the last waits for memory in vain, by device."""


class StillRunning(Exception):
    """Launched work has not ended. This process must be replaced: the device will not be free."""


def open_device(request: dict[str, Any]) -> dict[str, Any]:
    """Create the context of ``{"device"}``, once. Answers the device's description, and the facts that every
    measurement carries."""
    device = device_index(request)
    with on_device(device):
        make_context_current(device)
        synchronize(device)
        return {
            **device_facts(device),
            "uuid": device_uuid(device),
            "architecture": architecture_of(device),
            "total_bytes": total_bytes(device),
            "n_devices": n_devices(),
        }


def device_index(request: dict[str, Any]) -> int:
    """Return the request's device. Raises EnvironmentFailure when torch does not see it."""
    device = int(request.get("device", 0))
    count = n_devices()
    if device >= count:
        raise EnvironmentFailure(
            f"there is no CUDA device {device}: torch {torch.__version__} sees {count}",
            next_step="use --device cpu, or an interpreter whose torch sees the GPU",
        )
    return device


def device_facts(device: int) -> dict[str, str]:
    """Return the facts that every measurement carries."""
    return {
        "gpu": torch.cuda.get_device_name(device),
        "driver": driver_version(),
        "torch_version": torch.__version__,
    }


def n_devices() -> int:
    """Return the number of devices that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_uuid(device: int) -> str:
    """Return the device's UUID, which does not depend on CUDA_VISIBLE_DEVICES."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(uuid) if uuid is not None else f"index-{device}"


def total_bytes(device: int) -> int:
    """Return the bytes of device memory."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def synchronize(device: int) -> None:
    """Wait for all work on the device. Raises RuntimeError for errors there since the last call."""
    torch.cuda.synchronize(device)


def wait(device: int, at_most_s: float) -> None:
    """Wait as `synchronize`, for at most so many seconds in which this process was awake. Raises StillRunning after
    them."""
    event, awake_s = torch.cuda.Event(), 0.0
    event.record()
    started = last = time.monotonic()
    while not event.query():
        now = time.monotonic()
        awake_s, last = awake_s + min(now - last, AWAKE_S), now
        if awake_s > at_most_s:
            raise StillRunning(f"a kernel still ran after {at_most_s:g} s")
        if now - started > SPIN_S:
            time.sleep(SLEEP_S)
    synchronize(device)


def release_memory() -> None:
    """Free the allocator's cached memory."""
    torch.cuda.empty_cache()


def once_there_is_memory(device: int, work: Callable[[], T], let_go: Callable[[], None]) -> T:
    """Return what `work` does. Where it finds too little memory, which others occupy, it is done again a little later,
    unless waiting was in vain just before; `let_go` frees what it had meanwhile. Raises torch.OutOfMemoryError."""
    may_wait = time.monotonic() - _waited_in_vain.get(device, -math.inf) >= IN_VAIN_S
    for wait_s in WAITS_FOR_MEMORY_S:
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # once this handler has ended, nothing refers to its tensors any more
        let_go()
        if not may_wait or not is_crowded(device):
            return work()
        time.sleep(wait_s)
    try:
        return work()
    except torch.OutOfMemoryError:
        _waited_in_vain[device] = time.monotonic()
        raise


def is_crowded(device: int) -> bool:
    """Check whether most of the device's memory is in use."""
    free_bytes, n_bytes = torch.cuda.mem_get_info(device)
    return free_bytes * CROWDED_SHARE < n_bytes


def bytes_of_others(device: int) -> int:
    """Return the bytes of device memory that other processes occupy, with this one's context."""
    free_bytes, n_bytes = torch.cuda.mem_get_info(device)
    return int(n_bytes - free_bytes - torch.cuda.memory_reserved(device))


def unload_module(module: Any) -> None:
    """Unload a module, best effort: one that stays only costs memory."""
    driver().cuModuleUnload(module)


@functools.lru_cache(maxsize=1)
def driver_version() -> str:
    """Return the version of the kernel module, e.g. ``580.159.04``; ``unknown`` where it cannot be determined."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
        return next(word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit())
    except (OSError, StopIteration):
        return _driver_version_of_smi()


def _driver_version_of_smi() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_DEADLINE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.split()[0] if done.stdout.split() else "unknown"
