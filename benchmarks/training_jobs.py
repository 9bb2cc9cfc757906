"""Write forty operations of training code as job folders of `kernel_variants.py`, to time their default texts.

    python benchmarks/training_jobs.py OUT [--dtype bfloat16]                   # a folder per operation
    python benchmarks/kernel_variants.py render OUT --default-only              # CPU
    python benchmarks/kernel_variants.py bind OUT                               # CPU
    python benchmarks/kernel_variants.py time OUT --compile default --out F     # GPU

Norms, losses, pools, convolutions and gates at sizes of vision and language models, each with its gradients: what no
row of the suite covers. They show where a default text loses to `torch.compile` before any search.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

TASK = """import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {arguments}):
{body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
CAST_MODEL = "self.to(torch.{dtype})"
CAST_INPUTS = "x.to(torch.{dtype}) if x.is_floating_point() else x for x in ({inputs},)"


@dataclass(frozen=True)
class Operation:
    """A module's constructor, the names of its inputs, its code and the code that draws the inputs."""

    init: str
    arguments: str
    body: str
    inputs: str
    has_gradients: bool = True

    def text(self, dtype: str) -> str:
        """Return the file in KernelBench's form, with parameters and floating inputs of a `dtype` of torch."""
        init, inputs = self.init, self.inputs
        if dtype != "float32":
            init = f"{init}\n{CAST_MODEL.format(dtype=dtype)}".strip()
            inputs = CAST_INPUTS.format(dtype=dtype, inputs=inputs)
        init, body = (indent(code or "pass", " " * 8) for code in (init, self.body))
        return TASK.format(init=init, arguments=self.arguments, body=body, inputs=inputs)


OPERATIONS = {
    "causal_attention": Operation(
        "",
        "q, k, v",
        "return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "torch.randn(4, 12, 1024, 64), torch.randn(4, 12, 1024, 64), torch.randn(4, 12, 1024, 64)",
    ),
    "average_pool": Operation(
        "",
        "x",
        "return F.avg_pool2d(x, 2)",
        "torch.randn(32, 128, 112, 112)",
    ),
    "binary_cross_entropy": Operation(
        "",
        "x, t",
        "return F.binary_cross_entropy_with_logits(x, t)",
        "torch.randn(4096, 4096), torch.rand(4096, 4096)",
    ),
    "batch_norm_1d_relu": Operation(
        "self.n = nn.BatchNorm1d(1024)",
        "x",
        "return F.relu(self.n(x))",
        "torch.randn(8192, 1024)",
    ),
    "batch_norm_residual_relu": Operation(
        "self.n = nn.BatchNorm2d(256)",
        "x, y",
        "return F.relu(self.n(x) + y)",
        "torch.randn(32, 256, 28, 28), torch.randn(32, 256, 28, 28)",
    ),
    "batch_norm_silu": Operation(
        "self.n = nn.BatchNorm2d(96)",
        "x",
        "return F.silu(self.n(x))",
        "torch.randn(32, 96, 56, 56)",
    ),
    "convolution_1d_gelu": Operation(
        "self.c = nn.Conv1d(256, 256, 3, padding=1)",
        "x",
        "return F.gelu(self.c(x))",
        "torch.randn(16, 256, 2048)",
    ),
    "convolution_batch_norm_relu": Operation(
        "self.c = nn.Conv2d(64, 64, 3, padding=1, bias=False); self.n = nn.BatchNorm2d(64)",
        "x",
        "return F.relu(self.n(self.c(x)))",
        "torch.randn(32, 64, 56, 56)",
    ),
    "cosine_similarity": Operation(
        "",
        "x, y",
        "return F.cosine_similarity(x, y, dim=-1)",
        "torch.randn(16384, 1024), torch.randn(16384, 1024)",
    ),
    "dice_loss": Operation(
        "",
        "x, t",
        """p = torch.sigmoid(x)
i = (p * t).sum((2, 3))
u = p.sum((2, 3)) + t.sum((2, 3))
return 1 - ((2 * i + 1) / (u + 1)).mean()""",
        "torch.randn(16, 8, 512, 512), (torch.rand(16, 8, 512, 512) > 0.5).float()",
    ),
    "depthwise_convolution_silu": Operation(
        "self.c = nn.Conv2d(192, 192, 3, padding=1, groups=192)",
        "x",
        "return F.silu(self.c(x))",
        "torch.randn(32, 192, 56, 56)",
    ),
    "embedding_with_positions": Operation(
        "self.e = nn.Embedding(50000, 512); self.p = nn.Embedding(2048, 512)",
        "i",
        "return self.e(i) + self.p(torch.arange(i.shape[1], device=i.device))",
        "torch.randint(0, 50000, (16, 1024))",
    ),
    "focal_loss": Operation(
        "",
        "x, t",
        """p = torch.sigmoid(x)
ce = F.binary_cross_entropy_with_logits(x, t, reduction='none')
pt = p * t + (1 - p) * (1 - t)
return (0.25 * ce * (1 - pt) ** 2).mean()""",
        "torch.randn(4096, 2048), (torch.rand(4096, 2048) > 0.5).float()",
    ),
    "global_average_pool": Operation(
        "",
        "x",
        "return F.adaptive_avg_pool2d(x, 1).flatten(1)",
        "torch.randn(64, 512, 28, 28)",
    ),
    "gated_linear_unit": Operation(
        "",
        "x",
        "return F.glu(x, -1)",
        "torch.randn(8192, 4096)",
    ),
    "group_norm_silu": Operation(
        "self.n = nn.GroupNorm(32, 256)",
        "x",
        "return F.silu(self.n(x))",
        "torch.randn(16, 256, 64, 64)",
    ),
    "global_response_norm": Operation(
        "self.g = nn.Parameter(torch.ones(1, 1, 1, 384)); self.b = nn.Parameter(torch.zeros(1, 1, 1, 384))",
        "x",
        """gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
return self.g * (x * nx) + self.b + x""",
        "torch.randn(32, 56, 56, 384)",
    ),
    "gaussian_kl_divergence": Operation(
        "",
        "m, v",
        "return -0.5 * (1 + v - m.pow(2) - v.exp()).sum(-1).mean()",
        "torch.randn(65536, 256), torch.randn(65536, 256)",
    ),
    "instance_norm_leaky_relu": Operation(
        "self.n = nn.InstanceNorm2d(64, affine=True)",
        "x",
        "return F.leaky_relu(self.n(x), 0.2)",
        "torch.randn(16, 64, 128, 128)",
    ),
    "info_nce": Operation(
        "",
        "x, y",
        """x = F.normalize(x, dim=-1)
y = F.normalize(y, dim=-1)
l = x @ y.t() / 0.07
return F.cross_entropy(l, torch.arange(x.shape[0], device=x.device))""",
        "torch.randn(2048, 256), torch.randn(2048, 256)",
    ),
    "normalize_rows": Operation(
        "",
        "x",
        "return F.normalize(x, dim=-1)",
        "torch.randn(16384, 1024)",
    ),
    "normalize_channels": Operation(
        "",
        "x",
        "return F.normalize(x, dim=1)",
        "torch.randn(32, 128, 64, 64)",
    ),
    "layer_norm_channels": Operation(
        "self.w = nn.Parameter(torch.ones(96)); self.b = nn.Parameter(torch.zeros(96))",
        "x",
        """u = x.mean(1, keepdim=True)
s = (x - u).pow(2).mean(1, keepdim=True)
x = (x - u) / torch.sqrt(s + 1e-6)
return self.w[:, None, None] * x + self.b[:, None, None]""",
        "torch.randn(32, 96, 56, 56)",
    ),
    "layer_norm_gelu": Operation(
        "self.n = nn.LayerNorm(1024)",
        "x",
        "return F.gelu(self.n(x))",
        "torch.randn(8192, 1024)",
    ),
    "logsumexp": Operation(
        "",
        "x",
        "return torch.logsumexp(x, -1)",
        "torch.randn(8192, 8192)",
    ),
    "lstm_cell": Operation(
        "self.c = nn.LSTMCell(512, 512)",
        "x, h, c",
        "return self.c(x, (h, c))[0]",
        "torch.randn(256, 512), torch.randn(256, 512), torch.randn(256, 512)",
    ),
    "max_pool_3_by_2": Operation(
        "",
        "x",
        "return F.max_pool2d(x, 3, 2, 1)",
        "torch.randn(32, 64, 112, 112)",
    ),
    "mlp_gelu": Operation(
        "self.a = nn.Linear(768, 3072); self.b = nn.Linear(3072, 768)",
        "x",
        "return self.b(F.gelu(self.a(x)))",
        "torch.randn(4096, 768)",
    ),
    "mlp_small": Operation(
        "self.a = nn.Linear(256, 1024); self.b = nn.Linear(1024, 256)",
        "x",
        "return self.b(F.relu(self.a(x)))",
        "torch.randn(512, 256)",
    ),
    "mean_squared_error": Operation(
        "",
        "x, t",
        "return F.mse_loss(x, t)",
        "torch.randn(4096, 4096), torch.rand(4096, 4096)",
    ),
    "pixel_shuffle": Operation(
        "",
        "x",
        "return F.pixel_shuffle(x, 2)",
        "torch.randn(16, 256, 64, 64)",
    ),
    "rotary_embedding": Operation(
        "",
        "q, c, s",
        """h = q.shape[-1] // 2
r = torch.cat((-q[..., h:], q[..., :h]), -1)
return q * c + r * s""",
        "torch.randn(4, 16, 2048, 64), torch.randn(2048, 64), torch.randn(2048, 64)",
    ),
    "squeeze_excitation": Operation(
        "self.a = nn.Linear(256, 16); self.b = nn.Linear(16, 256)",
        "x",
        """s = x.mean((2, 3))
s = torch.sigmoid(self.b(F.relu(self.a(s))))
return x * s[:, :, None, None]""",
        "torch.randn(32, 256, 56, 56)",
    ),
    "smooth_l1": Operation(
        "",
        "x, t",
        "return F.smooth_l1_loss(x, t, beta=0.5)",
        "torch.randn(4096, 4096), torch.rand(4096, 4096)",
    ),
    "masked_softmax": Operation(
        "",
        "x, m",
        "return torch.softmax((x * 0.125).masked_fill(m, float('-inf')), -1)",
        "torch.randn(8, 12, 512, 512), torch.rand(512, 512) > 0.8",
    ),
    "total_variation": Operation(
        "",
        "x",
        "return (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()",
        "torch.randn(16, 3, 512, 512)",
    ),
    "upsample_bilinear": Operation(
        "",
        "x",
        "return F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)",
        "torch.randn(16, 64, 64, 64)",
    ),
    "upsample_nearest": Operation(
        "",
        "x",
        "return F.interpolate(x, scale_factor=2, mode='nearest')",
        "torch.randn(16, 128, 64, 64)",
    ),
    "max_pool_3_by_1": Operation(
        "",
        "x",
        "return F.max_pool2d(x, 3, 1, 1)",
        "torch.randn(16, 64, 56, 56)",
    ),
    "max_pool_5_by_1": Operation(
        "",
        "x",
        "return F.max_pool2d(x, 5, 1, 2)",
        "torch.randn(16, 128, 28, 28)",
    ),
}


def write_folders(description: str, operations: Mapping[str, Operation]) -> int:
    """Write the folders below the one that the command line gives."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    arguments = parser.parse_args()
    for name, operation in operations.items():
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "task.py").write_text(operation.text(arguments.dtype), encoding="utf-8")
        if operation.has_gradients:
            (folder / "BACKWARD").touch()
    print(f"{len(operations)} operations in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(write_folders(__doc__, OPERATIONS))
