"""Check that what one architecture alone can do is compiled for it, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.verdict import BuildFailed, Built
from kernel_lsp.toolchain.nvrtc import compile as rules
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import compile_cuda
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain
from kernel_lsp.worker.shipped import cuda_runtime

WAITS = '__global__ void k(float* x) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); x[0] = 1; }'
ASKS = """\
__global__ void k(float* x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    x[0] = 1;
#else
    __trap();
#endif
}
"""


@pytest.mark.parametrize(
    ("architecture", "own"),
    [("sm_90", "sm_90a"), ("sm_120", "sm_120a"), ("sm_89", ""), ("sm_90a", ""), ("sm_103f", "")],
)
def test_architectures_from_hopper_on_have_their_own(architecture: str, own: str) -> None:
    assert rules.own_architecture(architecture) == own


@pytest.mark.parametrize(
    "said",
    [
        "ptxas app.ptx, line 41; error   : Instruction 'wgmma.fence' not supported on .target 'sm_90'",
        "ptxas app.ptx, line 9; error   : Instruction 'setmaxnreg' cannot be compiled for architecture 'sm_100'",
        "ptxas app.ptx, line 9; error   : Feature '.kind::f8f6f4' requires .target sm_120a",
    ],
)
def test_what_ptxas_says_of_such_an_instruction_is_known_here_and_in_operators(said: str) -> None:
    assert rules.needs_own(said)
    assert cuda_runtime.NEEDS_OWN.search(said)


def test_operators_decide_by_the_same_words() -> None:
    assert cuda_runtime.NEEDS_OWN.pattern == rules._REFUSED.pattern
    assert cuda_runtime.ASKS_FOR_OWN.pattern == rules._ASKS.pattern
    assert cuda_runtime.FIRST_WITH_OWN == rules.FIRST_WITH_OWN


async def test_an_instruction_of_hopper_alone_is_compiled_for_it(toolchain: Toolchain) -> None:
    built = await compile_cuda(WAITS, toolchain=toolchain, name_expressions=("k",), architecture="sm_90")
    assert isinstance(built, Built), built
    assert built.architecture == "sm_90a"
    assert ".target sm_90a" in built.ptx


async def test_it_is_compiled_for_nothing_else(toolchain: Toolchain, tmp_path: Path) -> None:
    await compile_cuda(
        WAITS, toolchain=toolchain, name_expressions=("k",), architecture="sm_90", cache=BuildCache(tmp_path)
    )
    assert len([*tmp_path.glob("*/*.json")]) == 1


async def test_an_instruction_that_no_kernel_uses_is_no_reason(toolchain: Toolchain) -> None:
    unused = WAITS.replace("__global__ void k", "__device__ inline void waits")
    text = f"{unused}\n__global__ void k(float* x) {{ x[0] = 1; }}"
    built = await compile_cuda(text, toolchain=toolchain, name_expressions=("k",), architecture="sm_90")
    assert isinstance(built, Built)
    assert built.architecture == "sm_90"


async def test_elsewhere_the_first_refusal_is_told(toolchain: Toolchain) -> None:
    failed = await compile_cuda(WAITS, toolchain=toolchain, name_expressions=("k",), architecture="sm_100")
    assert isinstance(failed, BuildFailed)
    assert "sm_100'" in failed.findings[0].message


async def test_a_text_that_asks_for_it_is_compiled_for_it_at_once(toolchain: Toolchain) -> None:
    built = await compile_cuda(ASKS, toolchain=toolchain, name_expressions=("k",), architecture="sm_90")
    assert isinstance(built, Built)
    assert "trap" not in built.ptx
