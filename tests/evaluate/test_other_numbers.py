"""A number that a plan takes is given another value, whose task is captured once."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import Mismatch
from kernel_lsp.evaluate.check import find_task
from kernel_lsp.evaluate.other_numbers import OtherNumbers
from kernel_lsp.evaluate.session import Session

TASK = """import torch


# kernel-lsp: x=f32[8, 40], alpha=0.5, beta=0.0
def f(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return x * alpha + beta
"""
KERNEL = """// kernel-lsp: 1
// task: task.py::f
// op: f(x: f32[B, D], alpha: float, beta: float) -> (out: f32[B, D])
// {contract}
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, alpha, beta, B * D)

__global__ void k(const float* x, float* out, float alpha, float beta, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] * {scale} + {offset};
}
"""


def kernel(scale: str = "alpha", offset: str = "beta", contract: str = "where: B > 0") -> Candidate:
    text = KERNEL.replace("{scale}", scale).replace("{offset}", offset).replace("{contract}", contract)
    return Candidate(text=text, origin=Origin(proposer="user"))


async def test_a_number_that_is_not_read_is_found_and_one_that_is_passes(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    source = find_task(tmp_path / "k.cu", "task.py::f", None, tmp_path)
    async with Session(Settings(device="cpu")) as session:
        task = await session.capture(source, with_backward=False)
        evaluator = OtherNumbers(await session.evaluator(task), session, source, task)
        kernels = [kernel(), kernel(scale="0.5f"), kernel(offset="0.0f")]
        found = [(await evaluator.evaluate(each, "full")).outcome for each in kernels]
        contract = await evaluator.evaluate(kernel(scale="0.5f", contract="where: alpha == 0.5"), "full")
        screened = await evaluator.evaluate(kernels[1], "screen")
    assert [outcome.kind for outcome in found] == ["correct", "mismatch", "mismatch"]
    assert isinstance(found[1], Mismatch)
    assert "alpha=0.375 instead of 0.5, beta=0.25 instead of 0" in found[1].message
    assert contract.is_correct
    assert screened.is_correct
