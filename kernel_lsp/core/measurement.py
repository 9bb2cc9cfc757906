"""Numbers shown to a user. Each carries its kind, GPU, shapes, dtype and date."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.model import Noun

Bound = Literal["memory", "compute", "latency", "launch", "library"]


class Estimate(Noun):
    """A predicted time with its interval. Never a measurement, and always said so."""

    kind: Literal["estimated"] = "estimated"
    time_us: float
    low_us: float
    high_us: float
    gpu: str
    bound: Bound
    bytes_moved: int
    """Compulsory device-memory traffic: each input read once, each output written once, per step."""
    n_operations: int
    """Floating-point operations."""
    n_launches: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    date: str
    method: str
    """How it was reached, e.g. ``roofline over ATen ops`` or ``executor counters``."""


class Measurement(Noun):
    """A time measured on a GPU, with its spread."""

    kind: Literal["measured"] = "measured"
    time_us: float
    """Median."""
    low_us: float
    high_us: float
    n_samples: int
    gpu: str
    driver: str
    torch_version: str
    cache: Literal["cold", "warm"]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    date: str


class Comparison(Noun):
    """Our time beside PyTorch's, both of one kind and on one GPU. `speedup` is theirs over ours."""

    baseline_name: str
    baseline: Estimate | Measurement
    ours: Estimate | Measurement

    @property
    def speedup(self) -> float:
        return self.baseline.time_us / self.ours.time_us
