"""Time of matrix products and convolutions in the vendor's libraries, through ATen, without TF32.

A roofline with an efficiency, plus a fixed part and a part per step of the inner dimension. The last two are fitted to
two measured rows (Linear 128->10 and Linear 1600->128 with ReLU, batch 64, f32, H200) and so are no prediction there;
`docs/estimates.md` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.gpu.roofline import US_PER_S, peak_rate
from kernel_lsp.gpu.specs import GpuSpec

LIBRARY_COMPUTE_EFFICIENCY = 0.67
"""Of the peak rate: 90.2 GFLOP in 2016 us (LLaMA feed-forward, f32, H200, measured) is 67 % of 66.9 TFLOP/s."""
LIBRARY_BANDWIDTH_EFFICIENCY = 0.8
LIBRARY_FIXED_US = 11.8
LIBRARY_US_PER_INNER_STEP = 0.0051
FIXED_FADES_AT_US = 60.0
"""The fixed part is latency, which a product long enough to fill the GPU hides: it fades out towards this time."""
ATTENTION_COMPUTE_EFFICIENCY = 0.45


@dataclass(frozen=True)
class ProductShape:
    """`batch` products of (m, k) by (k, n). For a convolution m is positions, n output channels, k the window."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def n_operations(self) -> int:
        """A multiply-add counts two."""
        return 2 * self.batch * self.m * self.n * self.k


def product_us(gpu: GpuSpec, shape: ProductShape, n_bytes: int, dtype: DType) -> float:
    """Device time of one product, without the launch."""
    compute_us = shape.n_operations / (peak_rate(gpu, dtype) * LIBRARY_COMPUTE_EFFICIENCY) * US_PER_S
    memory_us = n_bytes / (gpu.bandwidth * LIBRARY_BANDWIDTH_EFFICIENCY) * US_PER_S
    roofline_us = max(compute_us, memory_us)
    latency_us = LIBRARY_FIXED_US + LIBRARY_US_PER_INNER_STEP * shape.k
    return roofline_us + latency_us * math.exp(-roofline_us / FIXED_FADES_AT_US)


def attention_us(gpu: GpuSpec, n_operations: int, n_bytes: int, dtype: DType) -> float:
    """Device time of a fused attention kernel, without the launch."""
    compute_us = n_operations / (peak_rate(gpu, dtype) * ATTENTION_COMPUTE_EFFICIENCY) * US_PER_S
    memory_us = n_bytes / (gpu.bandwidth * LIBRARY_BANDWIDTH_EFFICIENCY) * US_PER_S
    return max(compute_us, memory_us)
