"""The processes and folders behind the verdicts on one task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.verify.cpu.device import CpuDevice


@dataclass(frozen=True)
class Platform:
    """The resources shared by all evaluators of one task. `worker` captures and makes references; `cpu` is the PTX
    executor; cases lie below `directory`. `gpu` is the target of estimates. Each of `capture_numbers` names one capture
    in the worker; none is an index of a task folder's configuration."""

    worker: Worker
    compiler: Compiler
    gpu: GpuSpec
    directory: Path
    cpu: CpuDevice
    seed: int
    capture_numbers: Iterator[int]
