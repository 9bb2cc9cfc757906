"""The table of GPUs. A GPU that is not in it gets no number.

Rates are peak, dense (without structured sparsity). Tensor rates are with f32 accumulation. A rate of 0 means that the
hardware has no such unit.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernel_lsp.errors import SettingError

KIB = 1 << 10
MIB = 1 << 20
N_SCHEDULERS_PER_SM = 4
"""Warp schedulers per multiprocessor; each issues one instruction per cycle (tuning guides, all architectures here)."""


@dataclass(frozen=True)
class Architecture:
    """Properties shared by all GPUs of one compute capability (CUDA C++ Programming Guide, table "Technical
    Specifications per Compute Capability", and the arithmetic throughput table; lanes are results per cycle and SM)."""

    capability: tuple[int, int]
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    max_shared_bytes_per_block: int
    f32_lanes: int
    f64_lanes: int
    special_lanes: int = 16
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    max_threads_per_block: int = 1024
    reserved_shared_bytes_per_block: int = KIB
    """Bytes of each block's shared memory reserved for the system, since compute capability 8.0."""

    @property
    def name(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class GpuSpec:
    """One GPU. Bandwidths in bytes per second, rates in floating-point operations per second, clock in Hz."""

    name: str
    architecture: Architecture
    n_sms: int
    clock_hz: float
    datasheet_bandwidth: float
    l2_bytes: int
    tf32_rate: float
    f16_rate: float
    bf16_rate: float
    measured_bandwidth: float | None = None
    """Bandwidth of a large copy, reads plus writes; set only where we measured it."""
    aliases: tuple[str, ...] = ()

    @property
    def bandwidth(self) -> float:
        """Return the best known bandwidth: measured, else from the datasheet."""
        return self.measured_bandwidth or self.datasheet_bandwidth

    @property
    def bandwidth_kind(self) -> Literal["measured", "datasheet"]:
        return "measured" if self.measured_bandwidth else "datasheet"

    @property
    def f32_rate(self) -> float:
        """Peak f32 rate; a multiply-add counts as two."""
        return 2.0 * self.architecture.f32_lanes * self.n_sms * self.clock_hz

    @property
    def f64_rate(self) -> float:
        return 2.0 * self.architecture.f64_lanes * self.n_sms * self.clock_hz


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU called `name` by a datasheet or a driver, ignoring case, vendor and form factor.

    Raises SettingError, with the known names, for one that is not in the table.
    """
    wanted = _key(name)
    for spec in GPUS:
        if wanted in (_key(spelling) for spelling in (spec.name, *spec.aliases)):
            return spec
    names = [spec.name for spec in GPUS]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise SettingError(f"no figures are known for the GPU '{name}'", next_step=f"{hint}Known: {', '.join(names)}")


def known_gpu(name: str) -> GpuSpec | None:
    """Return the GPU called `name`; None for one that is not in the table."""
    try:
        return find_gpu(name)
    except SettingError:
        return None


def _key(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return " ".join(word for word in words if word not in _IGNORED_WORDS)


_IGNORED_WORDS = {"nvidia", "geforce", "tesla", "quadro", "gpu", "tensor", "core", "generation"}

_SM_70 = Architecture((7, 0), 2048, 32, 96 * KIB, 96 * KIB, 64, 32, reserved_shared_bytes_per_block=0)
_SM_75 = Architecture((7, 5), 1024, 16, 64 * KIB, 64 * KIB, 64, 2, reserved_shared_bytes_per_block=0)
_SM_80 = Architecture((8, 0), 2048, 32, 164 * KIB, 163 * KIB, 64, 32)
_SM_86 = Architecture((8, 6), 1536, 16, 100 * KIB, 99 * KIB, 128, 2)
_SM_89 = Architecture((8, 9), 1536, 24, 100 * KIB, 99 * KIB, 128, 2)
_SM_90 = Architecture((9, 0), 2048, 32, 228 * KIB, 227 * KIB, 128, 64)
_SM_100 = Architecture((10, 0), 2048, 32, 228 * KIB, 227 * KIB, 128, 64)
_SM_120 = Architecture((12, 0), 1536, 24, 100 * KIB, 99 * KIB, 128, 2)

_T = 1e12

GPUS: tuple[GpuSpec, ...] = (
    # H200 datasheet (4.8 TB/s, 141 GB, dense tensor rates are half of the sparse ones printed); SM count, clock
    # and L2 as the driver of one H200 reports them; copy bandwidth measured for this project on it.
    GpuSpec("H200", _SM_90, 132, 1.98e9, 4.8e12, 60 * MIB, 494.7 * _T, 989.4 * _T, 989.4 * _T, 4.3e12,
            aliases=("H200 SXM", "H200 141GB")),
    # H100 datasheet and Hopper architecture paper. SXM5: 132 SMs, HBM3 3.35 TB/s.
    GpuSpec("H100 SXM", _SM_90, 132, 1.98e9, 3.35e12, 50 * MIB, 494.7 * _T, 989.4 * _T, 989.4 * _T,
            aliases=("H100 SXM5", "H100 80GB HBM3", "H100 SXM5 80GB")),
    # H100 PCIe: 114 SMs, HBM2e 2.0 TB/s.
    GpuSpec("H100 PCIe", _SM_90, 114, 1.755e9, 2.039e12, 50 * MIB, 378.0 * _T, 756.0 * _T, 756.0 * _T,
            aliases=("H100 PCIe 80GB",)),
    # A100 datasheet and Ampere GA100 architecture paper: 108 SMs, 1410 MHz, 40 MB L2.
    GpuSpec("A100 40GB", _SM_80, 108, 1.41e9, 1.555e12, 40 * MIB, 156.0 * _T, 312.0 * _T, 312.0 * _T,
            aliases=("A100-SXM4-40GB", "A100-PCIE-40GB", "A100 SXM 40GB", "A100 PCIe 40GB")),
    GpuSpec("A100 80GB", _SM_80, 108, 1.41e9, 2.039e12, 40 * MIB, 156.0 * _T, 312.0 * _T, 312.0 * _T,
            aliases=("A100-SXM4-80GB", "A100 SXM 80GB")),
    GpuSpec("A100 80GB PCIe", _SM_80, 108, 1.41e9, 1.935e12, 40 * MIB, 156.0 * _T, 312.0 * _T, 312.0 * _T,
            aliases=("A100 PCIe 80GB", "A100-PCIE-80GB")),
    # A10 datasheet: 600 GB/s; GA102 with 72 SMs.
    GpuSpec("A10", _SM_86, 72, 1.695e9, 0.6e12, 6 * MIB, 62.5 * _T, 125.0 * _T, 125.0 * _T),
    # L4 datasheet: 300 GB/s, AD104 with 58 SMs and 48 MB L2; 30.3 TFLOP/s f32.
    GpuSpec("L4", _SM_89, 58, 2.04e9, 0.3e12, 48 * MIB, 60.0 * _T, 121.0 * _T, 121.0 * _T),
    # L40S datasheet: 864 GB/s, 91.6 TFLOP/s f32; AD102 with 142 SMs and 96 MB L2 (Ada architecture paper).
    GpuSpec("L40S", _SM_89, 142, 2.52e9, 0.864e12, 96 * MIB, 183.0 * _T, 362.0 * _T, 362.0 * _T),
    # V100 datasheet and Volta architecture paper: 80 SMs, 1530 MHz, 900 GB/s, 6 MB L2. No bf16, no TF32.
    GpuSpec("V100", _SM_70, 80, 1.53e9, 0.9e12, 6 * MIB, 0.0, 125.0 * _T, 0.0,
            aliases=("V100-SXM2-16GB", "V100-SXM2-32GB", "V100 SXM2", "V100-SXM3-32GB")),
    # T4 datasheet and Turing architecture paper: 40 SMs, 1590 MHz, 320 GB/s, 4 MB L2.
    GpuSpec("T4", _SM_75, 40, 1.59e9, 0.32e12, 4 * MIB, 0.0, 65.0 * _T, 0.0),
    # GA102 architecture paper, appendix: RTX 3090 has 82 SMs at 1695 MHz, 936 GB/s, f16 with f32 accumulation 71.
    GpuSpec("RTX 3090", _SM_86, 82, 1.695e9, 0.936e12, 6 * MIB, 35.6 * _T, 71.0 * _T, 71.0 * _T),
    # Ada architecture paper, appendix: RTX 4090 has 128 SMs at 2520 MHz, 1008 GB/s, 72 MB L2, f16/f32 165.2.
    GpuSpec("RTX 4090", _SM_89, 128, 2.52e9, 1.008e12, 72 * MIB, 82.6 * _T, 165.2 * _T, 165.2 * _T),
    # RTX Blackwell architecture paper, appendix: RTX 5090 has 170 SMs at 2407 MHz, 1792 GB/s, 96 MB L2, f16/f32 209.5.
    GpuSpec("RTX 5090", _SM_120, 170, 2.407e9, 1.792e12, 96 * MIB, 104.8 * _T, 209.5 * _T, 209.5 * _T),
    # RTX 6000 Ada datasheet: 142 SMs, 960 GB/s, 91.1 TFLOP/s f32; 96 MB L2 (Ada architecture paper).
    GpuSpec("RTX 6000 Ada", _SM_89, 142, 2.505e9, 0.96e12, 96 * MIB, 182.1 * _T, 364.2 * _T, 364.2 * _T),
    # HGX B200 datasheet, per GPU: 8 TB/s, dense bf16 2.25 PFLOP/s, f32 75 TFLOP/s over
    # 148 SMs; L2 as the CUDA driver reports it.
    GpuSpec("B200", _SM_100, 148, 1.965e9, 8.0e12, 126 * MIB, 1125.0 * _T, 2250.0 * _T, 2250.0 * _T),
)  # fmt: skip


DEVICE_FOLDER = Path("/dev")
DEVICE_PATTERNS = ("nvidia[0-9]*", "dxg")
"""Device files of the driver, and of Windows GPUs under WSL."""


def has_gpu() -> bool:
    """Return True when a GPU device file exists. Only running something shows that the GPU works."""
    return any(next(DEVICE_FOLDER.glob(pattern), None) is not None for pattern in DEVICE_PATTERNS)
