"""Measures what `estimate_vs_measured.py` compares with, on this machine's GPU. Needs torch with CUDA only.

    python benchmarks/estimate_vs_measured_gpu.py > benchmarks/estimate_vs_measured_h200.json

Device time: the GPU is kept busy until the CPU has launched everything, L2 is overwritten before each sample, and CUDA
events bracket the call. The median of `N_SAMPLES`; f32 without TF32.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

from estimate_vs_measured_launches import LAUNCHES, Launch

N_SAMPLES = 40
FLUSH_BYTES = 256 << 20
SLEEP_CYCLES = 2_000_000


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    eager = {name: time_us(call) for name, call in eager_calls().items()}
    launches = {}
    for launch in LAUNCHES:
        launches[launch.name] = time_us(launch_call(launch))
    gpu = torch.cuda.get_device_name()
    print(json.dumps({"gpu": gpu, "torch": torch.__version__, "eager_us": eager, "launch_us": launches}, indent=1))


def time_us(call: Callable[[], object]) -> float:
    """Median device time of one call."""
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    for _ in range(3):
        call()
    samples = []
    for _ in range(N_SAMPLES):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.fill_(1.0)
        torch.cuda._sleep(SLEEP_CYCLES)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e3)
    return round(statistics.median(samples), 3)


def launch_call(launch: Launch) -> Callable[[], object]:
    kernel = torch.cuda._compile_kernel(launch.text, "k")
    x = torch.randn(launch.n_elements, device="cuda")
    y = torch.empty_like(x)
    grid, block = (launch.grid, 1, 1), (launch.block, 1, 1)
    return lambda: kernel(grid=grid, block=block, args=(x, y, launch.argument))


def r(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def backward_of(output: torch.Tensor, *inputs: torch.Tensor) -> Callable[[], object]:
    gradient = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def eager_calls() -> dict[str, Callable[[], object]]:
    """Calls by name. Names are those of the functions in estimate_vs_measured_targets.py."""
    x, w, big, row = r(16, 1024, 4096), r(4096), r(8192, 8192), r(8192)
    half, labels = r(8192, 8192, dtype=torch.bfloat16), torch.randint(0, 4096, (4096,), device="cuda")
    ff = r(2, 128, 4096), r(14336, 4096), r(14336, 4096), r(4096, 14336)
    image, kernel, logits = r(32, 64, 56, 56), r(64, 64, 3, 3), r(4096, 4096)
    small, channels = r(64, 1600), r(64)
    table, ids = r(50000, 1024), torch.randint(0, 50000, (16384,), device="cuda")
    q = r(8, 16, 1024, 64)
    x1, w1, b1 = r(64, 1600, grad=True), r(128, 1600, grad=True), r(128, grad=True)
    pooled, logits_grad = r(64, 64, 28, 28, grad=True), r(4096, 4096, grad=True)
    normed, gamma, beta = r(8192, 4096, grad=True), r(4096, grad=True), r(4096, grad=True)
    return {
        "layer_norm": lambda: F.layer_norm(r1, (64, 256, 256), r2, r3),
        "rms_norm": lambda: x / torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-6) * w,
        "llama_ffw": lambda: F.linear(F.silu(F.linear(ff[0], ff[1])) * F.linear(ff[0], ff[2]), ff[3]),
        "linear_relu": lambda: F.relu(F.linear(small, w1, b1)),
        "add": lambda: big + big.T.T,
        "add_row": lambda: big + row,
        "gelu": lambda: F.gelu(big),
        "gelu_bf16": lambda: F.gelu(half),
        "sum_rows": lambda: big.sum(-1),
        "sum_columns": lambda: big.sum(0),
        "softmax": lambda: F.softmax(big, -1),
        "layer_norm_rows": lambda: F.layer_norm(big, (8192,), row, row),
        "group_norm_silu": lambda: F.silu(F.group_norm(image, 8, channels, channels)),
        "cross_entropy_large": lambda: F.cross_entropy(logits, labels),
        "embedding": lambda: F.embedding(ids, table),
        "cat": lambda: torch.cat((big, big), -1),
        "max_pool": lambda: F.max_pool2d(image, 2),
        "conv": lambda: F.conv2d(image, kernel, channels, padding=1),
        "mm_1024": lambda: big[:1024, :1024].contiguous() @ big[:1024, :1024].contiguous(),
        "mm_4096": lambda: logits @ logits,
        "mm_8192_bf16": lambda: half @ half,
        "attention": lambda: F.scaled_dot_product_attention(q, q, q),
        "tiny_add": lambda: channels + channels,
        "linear_relu_backward": backward_of(F.relu(F.linear(x1, w1, b1)), x1, w1, b1),
        "max_pool_backward": backward_of(F.max_pool2d(pooled, 2), pooled),
        "cross_entropy_large_backward": backward_of(F.cross_entropy(logits_grad, labels), logits_grad),
        "layer_norm_rows_backward": backward_of(F.layer_norm(normed, (4096,), gamma, beta), normed, gamma, beta),
        "gelu_backward": backward_of(F.gelu(logits_grad), logits_grad),
    }


r1, r2, r3 = r(1, 64, 256, 256), r(64, 256, 256), r(64, 256, 256)

if __name__ == "__main__":
    main()
