"""Estimate matrix products and convolutions in the vendor's libraries, through ATen, without TF32.

A roofline with an efficiency, plus a fixed part and a part per step of the inner dimension. The last two are fitted to
Linear 1600->128 with ReLU, batch 64, forward and backward (f32, H200), so they are not a prediction for that case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.gpu.floor import US_PER_S, peak_rate
from kernel_lsp.gpu.specs import GpuSpec

PRODUCT_EFFICIENCY = 0.72
"""Fraction of the peak rate. Measured on one H200: 67 % (256 by 14336 by 4096, f32), 77 % (4096 cubed, f32), 82 % (8192
cubed, bf16)."""
CONVOLUTION_EFFICIENCY = 0.47
"""Fraction of the peak rate: 64 to 64 channels, 3x3, (32, 64, 56, 56), f32, takes 277 us with its bias (H200,
measured)."""
LIBRARY_BANDWIDTH_EFFICIENCY = 0.8
LIBRARY_FIXED_US = 6.0
LIBRARY_US_PER_INNER_STEP = 0.0085
FIXED_FADES_AT_US = 60.0
"""Decay constant of the fixed part, in microseconds: latency, which a product long enough to fill the GPU hides."""
ATTENTION_EFFICIENCY = 0.5
"""Fraction of the peak rate: 34 GFLOP in 1022 us (f32, heads of 64, H200, measured)."""


@dataclass(frozen=True)
class ProductShape:
    """`batch` products of (m, k) by (k, n). For a convolution m is positions, n output channels, k the window."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def n_operations(self) -> int:
        """Number of operations; a multiply-add counts as two."""
        return 2 * self.batch * self.m * self.n * self.k


def product_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, dtype: DType) -> float:
    """Estimate the device time of one matrix product, without the launch."""
    return _library_us(gpu, shape, n_bytes, peak_rate(gpu, dtype) * PRODUCT_EFFICIENCY)


def convolution_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, dtype: DType) -> float:
    """Estimate the device time of one convolution, without the launch and the bias."""
    return _library_us(gpu, shape, n_bytes, peak_rate(gpu, dtype) * CONVOLUTION_EFFICIENCY)


def _library_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, rate: float) -> float:
    compute_us = shape.n_operations / rate * US_PER_S
    memory_us = n_bytes / (gpu.bandwidth * LIBRARY_BANDWIDTH_EFFICIENCY) * US_PER_S
    roofline_us = max(compute_us, memory_us)
    latency_us = LIBRARY_FIXED_US + LIBRARY_US_PER_INNER_STEP * shape.k
    return roofline_us + latency_us * math.exp(-roofline_us / FIXED_FADES_AT_US)


def attention_us(gpu: GpuSpec, n_operations: int, n_bytes: int, dtype: DType) -> float:
    """Estimate the device time of a fused attention kernel, without the launch."""
    compute_us = n_operations / (peak_rate(gpu, dtype) * ATTENTION_EFFICIENCY) * US_PER_S
    memory_us = n_bytes / (gpu.bandwidth * LIBRARY_BANDWIDTH_EFFICIENCY) * US_PER_S
    return max(compute_us, memory_us)
