"""Draw large random tensors in several threads: one, as PyTorch has, takes 1.2 s for 100 M numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LARGE_ELEMENTS = 1 << 24
CHUNK_ELEMENTS = 1 << 22
"""Elements drawn from one seed: the values depend on no number of threads."""
MAX_THREADS = 16
FILLS: dict[Any, Callable[..., torch.Tensor]] = {torch.rand: torch.Tensor.uniform_, torch.randn: torch.Tensor.normal_}
PLAIN = {"dtype", "device"}


class ParallelRandom(TorchFunctionMode):
    """Draw what `torch.rand` and `torch.randn` make on processors in float32, where it is large. Each chunk has a
    generator of its own, seeded from PyTorch's."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function in FILLS and given.keys() <= PLAIN:
            made = torch.empty(*args, **given)
            is_plain = made.device.type == "cpu" and made.dtype is torch.float32
            if is_plain and made.numel() >= LARGE_ELEMENTS:
                _fill(made.view(-1), FILLS[function], None)
                return made
        return function(*args, **given)


def standard_normal(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Draw a float32 tensor on the processors. Where it is large, each chunk has a generator seeded from this one."""
    if shape.numel() < LARGE_ELEMENTS:
        return torch.randn(shape, generator=generator)
    made = torch.empty(shape)
    _fill(made.view(-1), torch.Tensor.normal_, generator)
    return made


def _fill(values: torch.Tensor, fill: Callable[..., torch.Tensor], generator: torch.Generator | None) -> None:
    first_seed = int(torch.randint(1 << 62, (), generator=generator).item())

    def draw(numbered: tuple[int, torch.Tensor]) -> None:
        number, chunk = numbered
        fill(chunk, generator=torch.Generator().manual_seed(first_seed + number))

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        for _ in threads.map(draw, enumerate(values.split(CHUNK_ELEMENTS))):
            pass
