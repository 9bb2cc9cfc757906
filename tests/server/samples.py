"""Files to open, and what jobs could have told about them."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.measurement import Comparison, Estimate, LineEstimate
from kernel_lsp.engine.messages import RunSummary, TargetEstimate
from kernel_lsp.server.analysis.analysis_worker import analyse

SCALE = """\
import torch
from torch import nn


# kernel-lsp: x=f32[64, 256], weight=f32[256]
def scale(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    shifted = x * weight + 1.0
    return torch.relu(shifted)


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scale(x, x) + x.sum().item()
"""
SCALE_LINE, SHIFTED_LINE, NET_LINE, NET_FORWARD_LINE, CALL_LINE = 5, 6, 10, 11, 12

KERNEL = """\
// kernel-lsp: 1
// task: scale.py::scale
// op: scale(x: f32[N, D], weight: f32[D]) -> (out: f32[N, D])
// launch: scale<<<ceil_div(N * D, 256), 256>>>(x, weight, out, N * D, D)

__global__ void scale(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out,
                      int n, int d) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * weight[i % d] < -1.0f ? 0.0f : x[i] * weight[i % d] + 1.0f;
}
"""
KERNEL_LINE, STORE_LINE = 5, 8


def estimate(time_us: float = 20.0, gpu: str = "H200") -> Estimate:
    return Estimate(
        time_us=time_us,
        low_us=time_us / 2,
        high_us=time_us * 2,
        gpu=gpu,
        bound="memory",
        bytes_moved=2_000_000,
        n_operations=3_000_000,
        n_launches=3,
        shapes={"x": (64, 256)},
        dtypes={"x": "f32"},
        date="2026-11-21",
        method="a test's",
    )


def target_estimate(path: Path) -> TargetEstimate:
    """Return the verdict of `scale`."""
    line = LineEstimate(
        file=str(path),
        line=SHIFTED_LINE + 1,
        text="shifted = x * weight + 1.0",
        operations=("mul", "add"),
        time_us=15.0,
        low_us=7.5,
        high_us=30.0,
        floor_us=0.25,
        bound="launch",
        share=0.75,
        bytes_moved=1_000_000,
        n_operations=2_000_000,
        n_launches=2,
    )
    return TargetEstimate(target="scale.py::scale", estimate=estimate(), floor_us=5.0, lines=(line,))


def run_of_scale(path: Path, status: str = "finished", *, symbol: str = "scale", name: str = "scale") -> RunSummary:
    """A run whose winner takes 5 us where eager takes 20."""
    found = status == "finished"
    target = analyse("python", str(path), SCALE).target(symbol)
    comparison = Comparison(baseline_name="eager", baseline=estimate(), ours=estimate(5.0))
    return RunSummary(
        run_id="1121-000000-abcdef",
        target=f"{path.name}::{symbol}",
        file=str(path),
        symbol=symbol,
        status=status,
        started="2099-01-01T00:00:00+00:00",
        digest=target.digest if target is not None else "",
        name=name,
        out=path.parent / "kernels",
        candidate_id="0123456789abcdef" if found else None,
        reason="lowest",
        device="PTX executor (CPU)",
        comparisons={name: comparison} if found else {},
    )
