"""Large random tensors: drawn in several threads, made later where they are needed, or described in files.

A described file stands for uniform numbers that each process makes on its own device. A number is a hash of its
position (SplitMix64; Steele, Lea and Flood 2014) in integer arithmetic, which has the same results on every device.
Inputs of 17 GB took 40 s until the reference of KernelBench's level1/45 was made, most of them on processors, and 4 s
in each process that read them.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

LARGE_ELEMENTS = 1 << 24
CHUNK_ELEMENTS = 1 << 22
"""Elements drawn from one seed: the values depend on no number of threads."""
MAX_THREADS = 16
FILLS: dict[Any, Callable[..., torch.Tensor]] = {torch.rand: torch.Tensor.uniform_, torch.randn: torch.Tensor.normal_}
PLAIN = {"dtype", "device"}
DRAWN_ELEMENTS = 1 << 26
"""Elements from which a tensor of `torch.rand` is made later: 256 MiB."""
KEEPS_VALUES = frozenset(("detach", "cpu", "contiguous"))
"""Functions that return a tensor's own memory. With more arguments, such as a memory format, they may copy it."""
METADATA = frozenset(
    (
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "size",
        "dim",
        "numel",
        "nelement",
        "ndimension",
        "stride",
        "__len__",
    )
)
"""Properties and methods of a tensor that read none of its numbers: masks are drawn in the shape of other inputs."""
PIECE_ELEMENTS = 1 << 24
"""Elements made at a time, to bound the memory used."""
HEAD = b"kernel-lsp uniform "
N_DIGITS = 20
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_N_BITS = 24
"""Bits of a number: multiples of 2^-24 are exact in float32, and what `torch.rand` has."""
PLAIN_BYTES = 1 << 30
MAP_NORESERVE = 0x4000
"""Flag of mmap from <asm-generic/mman.h>: the kernel then accepts mappings larger than the machine's memory."""


class ParallelRandom(TorchFunctionMode):
    """Draw what `torch.rand` and `torch.randn` make on processors in float32, and `torch.randint`, where it is large.
    Each chunk has a generator of its own, seeded from PyTorch's."""

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
        if function is torch.randint and given.keys() <= PLAIN and len(args) in (2, 3):
            *limits, shape = args
            made = torch.empty(shape, **{"dtype": torch.int64, **given})
            if made.device.type == "cpu" and made.numel() >= LARGE_ELEMENTS:
                low, high = (0, *limits)[-2:]
                _fill(made.view(-1), lambda chunk, generator: chunk.random_(low, high, generator=generator), None)
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


class DeferredRandom(TorchFunctionMode):
    """Return placeholders for large tensors of `torch.rand` on the CPU. After the user's code, `seed_of` identifies
    which of its tensors are placeholders. Code that reads one, or computes with it, is ended by a RuntimeError, and
    `was_read` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read = False
        self._seeds: dict[int, tuple[torch.Tensor, int]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function is torch.rand and given.keys() <= PLAIN:
            like = torch.empty(*args, **{**given, "device": "meta"})
            device = torch.empty(0, device=given.get("device")).device  # the code may have set another default
            is_plain = like.dtype is torch.float32 and device.type == "cpu"
            if is_plain and like.numel() >= DRAWN_ELEMENTS:
                return self._stand_in(like)
        is_kept = getattr(function, "__name__", "") in KEEPS_VALUES and len(args) == 1 and not given
        if (
            not is_kept
            and not _reads_metadata(function)
            and any(map(self._is_stand_in, pytree.tree_leaves((args, given))))
        ):
            self.was_read = True
            raise RuntimeError("large random numbers are read")
        return function(*args, **given)

    def seed_of(self, value: torch.Tensor) -> int | None:
        """Return the seed of a tensor that stands for numbers; None for one that holds its own."""
        return self._seeds[value.untyped_storage().data_ptr()][1] if self._is_stand_in(value) else None

    def _stand_in(self, like: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            made = untouched(like.shape, torch.float32)
            seed = int(torch.randint(1 << 62, ()).item())
        self._seeds[made.untyped_storage().data_ptr()] = (made, seed)
        return made

    def _is_stand_in(self, value: Any) -> bool:
        is_stored = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"
        return is_stored and value.untyped_storage().data_ptr() in self._seeds


def _reads_metadata(function: Any) -> bool:
    """Check whether a function reads metadata alone, such as a shape. A property is called as the `__get__` of its
    descriptor."""
    name = getattr(function, "__name__", "")
    return (getattr(function.__self__, "__name__", "") if name == "__get__" else name) in METADATA


def untouched(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that takes no memory until it is touched, whatever its size."""
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes <= PLAIN_BYTES or sys.platform != "linux":
        return torch.empty(tuple(shape), dtype=dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, n_bytes, flags=flags), dtype=dtype).view(tuple(shape))


def uniform(shape: Sequence[int], seed: int, device: torch.device) -> torch.Tensor:
    """Return float32 numbers in [0, 1), the same on every device."""
    made = torch.empty(tuple(shape), dtype=torch.float32, device=device)
    for number, part in enumerate(made.view(-1).split(PIECE_ELEMENTS)):
        start = number * PIECE_ELEMENTS
        bits = torch.arange(start + 1, start + 1 + part.numel(), dtype=torch.int64, device=device)
        bits.mul_(_STEP).add_(seed)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            bits.bitwise_xor_(_shifted(bits, shift)).mul_(factor)
        bits.bitwise_xor_(_shifted(bits, 31))
        part.copy_(_shifted(bits, 64 - _N_BITS)).mul_(2.0**-_N_BITS)
    return made


def _shifted(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift to the right, zeros in: torch's integers have a sign."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def describe(place: str, seed: int) -> None:
    """Write a file that stands for the numbers of this seed. Raises OSError."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(HEAD + str(seed).zfill(N_DIGITS).encode())


def described_seed(place: str) -> int | None:
    """Return the seed that a file describes its numbers by; None for a file that holds numbers."""
    if os.path.getsize(place) != len(HEAD) + N_DIGITS:
        return None
    with open(place, "rb") as file:
        content = file.read()
    return int(content[len(HEAD) :]) if content.startswith(HEAD) else None
