"""The roofline bound: compulsory bytes at the memory's bandwidth, operations at the unit's rate."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.gpu.specs import GpuSpec

US_PER_S = 1e6


def floor_us(gpu: GpuSpec, *, n_bytes: int, n_operations: int, dtype: DType = DType.F32) -> float:
    """Return the larger of `n_bytes` at the best known bandwidth of `gpu` and `n_operations` at its peak rate for
    `dtype`, in microseconds. For f32 without TF32. A shorter measured time is a measurement error."""
    rate = peak_rate(gpu, dtype)
    return max(n_bytes / gpu.bandwidth, n_operations / rate) * US_PER_S


def peak_rate(gpu: GpuSpec, dtype: DType) -> float:
    """Return the operations per second for `dtype`: tensor cores for f16 and bf16 if available, else the f32 (or f64)
    pipes, which also stand for integers."""
    if dtype is DType.F64:
        return gpu.f64_rate
    tensor = {DType.F16: gpu.f16_rate, DType.BF16: gpu.bf16_rate}.get(dtype, 0.0)
    return tensor or gpu.f32_rate
