"""Assign candidates to GPUs: to the one with the fewest, and to another one when a GPU's machine is lost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from kernel_lsp.errors import ConnectionLostError
from kernel_lsp.verify.gpu.device import GpuDevice

LEFT_OUT_S = 30.0
"""Seconds for which a GPU whose machine was lost gets no candidates while others are there."""


class OnGpu(Protocol):
    """Anything that has a GPU, e.g. with its timer."""

    @property
    def device(self) -> GpuDevice: ...


G = TypeVar("G", bound=OnGpu)
T = TypeVar("T")


async def on_one_of(gpus: Sequence[G], work: Callable[[G], Awaitable[T]]) -> T:
    """Do the work of one candidate on one GPU. Raises ConnectionLostError when all GPUs are lost."""
    for n_left in reversed(range(len(gpus))):
        gpu = min(gpus, key=_order)
        with gpu.device.assigned():
            try:
                return await work(gpu)
            except ConnectionLostError:
                gpu.device.lost_until = time.monotonic() + LEFT_OUT_S
                if not n_left:
                    raise
    raise ValueError("there is no GPU")


def _order(gpu: OnGpu) -> tuple[float, int]:
    """Sort lost GPUs last, by the end of their time, and others by their candidates."""
    lost_until = gpu.device.lost_until
    return (lost_until if lost_until > time.monotonic() else 0.0, gpu.device.n_assigned)
