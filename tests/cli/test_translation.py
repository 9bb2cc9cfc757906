"""A model translates what the generator has no rule for, forward and backward, and corrects itself from what was found.

The model is a script behind `command:`: these tests prove plumbing, not models.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords
from tests.cli.commands import Ran, run, write

TARGETS = """
import torch


# kernel-lsp: x=f32[B=64, D=250]
def running(x):
    return torch.cummax(x, dim=-1).values + torch.nonzero_static(x, size=1).sum() * 0


# kernel-lsp: x=f32[B=64, D=250]
def swish(x):
    return x * torch.sigmoid(x) * 3.0
"""
RUNNING = """\
// kernel-lsp: 1
// op: {signature}
// launch: k<<<ceil_div(B, 128), 128>>>(x, {result}, B, D)

#include <math_constants.h>
__global__ void k(const float* __restrict__ x, float* __restrict__ out, int B, int D) {{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= B) return;
    float best = -CUDART_INF_F;
    for (int i = {wrong}; i < D; ++i) {{
        const float value = x[row * (long long)D + i];
        if (value >= best || value != value) best = value;
        if (best != best) {{
            for (; i < D; ++i) out[row * (long long)D + i] = best;
            break;
        }}
        out[row * (long long)D + i] = best;
    }}
}}
"""
SWISH = """\
// kernel-lsp: 1
// op: {signature}
// launch: forward<<<ceil_div(B * D, 256), 256>>>(x, {result}, B * D)
// op: {backward}
// launch: backward<<<ceil_div(B * D, 256), 256>>>(grad_{result}, x, grad_x, B * D)

__global__ void forward(const float* __restrict__ x, float* __restrict__ out, int n) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i])) * 3.0f;
}}

__global__ void backward(const float* __restrict__ grad, const float* __restrict__ x, float* __restrict__ out, int n) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float s = 1.0f / (1.0f + expf(-x[i]));
    out[i] = grad[i] * (3.0f - {wrong}) * s * (1.0f + x[i] * (1.0f - s));
}}
"""
MODEL = """
import re, sys
prompt = sys.stdin.read()
signatures = re.findall(r"^// op: ((?:running|swish)\\w*\\(.*)$", prompt, re.MULTILINE)[-2:]
signatures = list(dict.fromkeys(s for s in signatures if s.startswith(("running(", "swish"))))
is_backward = any("_backward(" in s for s in signatures)
names = dict(signature=signatures[0] if is_backward else signatures[-1], backward=signatures[-1])
names["result"] = re.search(r"-> \\((\\w+)", names["signature"])[1]
names["wrong"] = 0 if "What was found" in prompt else 1
print("NAME: scripted\\nTHOUGHT: a script wrote this\\nCODE:\\n```cuda\\n" + KERNEL.format(**names) + "```")
"""


def translate(folder: Path, target: str, kernel: str, *options: str) -> Ran:
    write(folder, TARGETS)
    write(folder, "", "pyproject.toml")
    program = write(folder, f"KERNEL = {kernel!r}\n{MODEL}", "scripted.py")
    model = ("--model", f"command:{sys.executable} {program}", "--generations", "1", "--proposals", "1")
    return run(folder, "optimize", f"model.py::{target}", "--device", "cpu", "--json", *model, *options)


def outcomes(folder: Path) -> list[str]:
    with Archive(folder) as archive:
        (proposal,) = ModelRecords(archive, archive.run("last").run_id).proposals()
    return [round_.outcome for round_ in proposal.rounds]


def test_what_no_rule_can_do_is_translated_and_corrected(tmp_path: Path) -> None:
    ran = translate(tmp_path, "running", RUNNING, "--apply")
    assert ran.status == 0, ran.stderr
    assert "no rule for this target" in ran.stderr
    assert outcomes(tmp_path) == ["mismatch", "correct"]
    assert (
        (tmp_path / "kernels" / "running.cu")
        .read_text()
        .startswith("// kernel-lsp: 1\n// task: ../model.py::running\n")
    )


def test_a_wrong_backward_is_corrected(tmp_path: Path) -> None:
    ran = translate(tmp_path, "swish", SWISH, "--backward")
    assert ran.status == 0, ran.stderr
    assert outcomes(tmp_path) == ["mismatch", "correct"]
    assert set(ran.json["comparisons"]) == {"swish", "swish_backward"}


def test_without_a_model_the_generators_limit_is_told(tmp_path: Path) -> None:
    write(tmp_path, TARGETS)
    ran = run(tmp_path, "optimize", "model.py::running", "--device", "cpu", "--json")
    assert ran.status == 2
    assert "nonzero_static" in ran.stderr
