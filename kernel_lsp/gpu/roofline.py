"""The roofline bound: compulsory bytes at the memory's bandwidth, operations at the unit's rate."""

from __future__ import annotations

from kernel_lsp.core.dtype import DType
from kernel_lsp.gpu.specs import GpuSpec

US_PER_S = 1e6


TF32_PRODUCTS = 3
"""Products of TF32 that add up to one of f32's accuracy: a = a_high + a_low, without a_low * b_low."""


def floor_us(gpu: GpuSpec, *, n_bytes: int, n_operations: int, rate: float | None = None) -> float:
    """Return the larger of `n_bytes` at the best known bandwidth of `gpu` and `n_operations` at `rate` per second, in
    microseconds; the default rate is that of f32 pipes. A shorter measured time is a measurement error."""
    return max(n_bytes / gpu.bandwidth, n_operations / (rate or gpu.f32_rate)) * US_PER_S


def product_rate(gpu: GpuSpec, dtype: DType) -> float:
    """Return the operations per second of matrix products and convolutions at the accuracy of `dtype`: those of f32 may
    be three of TF32 on tensor cores."""
    rate = peak_rate(gpu, dtype)
    return max(rate, gpu.tf32_rate / TF32_PRODUCTS) if dtype is DType.F32 else rate


def peak_rate(gpu: GpuSpec, dtype: DType) -> float:
    """Return the operations per second for `dtype`: tensor cores for f16 and bf16 if available, else the f32 (or f64)
    pipes, which also stand for integers."""
    if dtype is DType.F64:
        return gpu.f64_rate
    tensor = {DType.F16: gpu.f16_rate, DType.BF16: gpu.bf16_rate}.get(dtype, 0.0)
    return tensor or gpu.f32_rate
