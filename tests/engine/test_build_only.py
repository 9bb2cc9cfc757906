"""A kernel that does not say what it computes is compiled, and no more is claimed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.engine.work import build_only
from kernel_lsp.plan.parser import parse_or_raise

TEXT = """// kernel-lsp: 1
// op: zero(x: f32[N]) -> (out: f32[N])
// launch: zero_all<VALUE><<<ceil_div(N, 256), 256>>>(out, N)

template <int SIZE>
__global__ void zero_all(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = SIZE;
}
"""


async def built(text: str, folder: Path) -> Verdict:
    return await build_only(text, parse_or_raise(text, "kernel.cu"), Settings(cache_directory=folder))


async def test_it_has_what_ptxas_says_and_is_not_called_checked(tmp_path: Path) -> None:
    verdict = await built(TEXT.replace("VALUE", "4"), tmp_path)
    assert verdict.outcome.kind == "unsupported"
    assert "// task:" in verdict.outcome.message
    assert [facts.kernel for facts in verdict.kernels] == ["zero_all<4>"]
    assert not verdict.is_correct


async def test_an_error_is_at_its_line(tmp_path: Path) -> None:
    verdict = await built(TEXT.replace("VALUE", "4").replace("= SIZE", "= SIEZ"), tmp_path)
    assert verdict.outcome.kind == "build_failed"
    assert {finding.line for finding in verdict.outcome.findings} == {8}


@pytest.mark.parametrize("argument", ["N", "N // 2"])
async def test_a_kernel_whose_name_depends_on_a_size_is_compiled_as_far_as_it_goes(
    tmp_path: Path, argument: str
) -> None:
    verdict = await built(TEXT.replace("VALUE", argument), tmp_path)
    assert verdict.outcome.kind == "unsupported"
    assert verdict.kernels == ()
