"""The blocks that a file launches its kernels with, and their occupancy."""

from __future__ import annotations

import pytest

from kernel_lsp.core.verdict import KernelFacts
from kernel_lsp.gpu.occupancy_text import occupancy_text
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.launch_blocks import LaunchedBlock, launched_blocks
from kernel_lsp.source.plan_draft import draft_plan

PLAN = """// kernel-lsp: 1
// task: model.py::f
// op: f(x: f32[N]) -> (out: f32[N])
// launch: f<<<ceil_div(N, 256), 256, 1024>>>(x, out, N)
"""
HOST = """#define THREADS 128
template <int B> __global__ void f(float* x) { x[threadIdx.x] = 1.0f; }
void run(float* x, int n, cudaStream_t stream) {
    const int warps = 4;
    dim3 block(16, 16);
    int half = half;
    HOLE
}
"""


@pytest.mark.parametrize(
    ("launch", "block"),
    [
        ("f<<<n, 256>>>(x);", LaunchedBlock("", 256)),
        ("f<<<n, THREADS>>>(x);", LaunchedBlock("", 128)),
        ("f<<<n, block>>>(x);", LaunchedBlock("", 256)),
        ("f<<<n, dim3(32, 8)>>>(x);", LaunchedBlock("", 256)),
        ("f<64><<<n, 64>>>(x);", LaunchedBlock("<64>", 64)),
        ("f<<<n, warps * 32, warps * sizeof(float), stream>>>(x);", LaunchedBlock("", 128, 16)),
        ("ns::f<<<n, 32>>>(x);", LaunchedBlock("", 32)),
    ],
)
def test_blocks_of_constants_are_found_in_host_code(launch: str, block: LaunchedBlock) -> None:
    assert launched_blocks(HOST.replace("HOLE", launch), None) == {"f": (block,)}


@pytest.mark.parametrize("sizes", ["n, n", "n, half", "n, 256, n * 4", "n"])
def test_a_block_that_only_a_call_knows_is_left_out(sizes: str) -> None:
    assert launched_blocks(HOST.replace("HOLE", f"f<<<{sizes}>>>(x);"), None) == {}


def test_those_of_a_plan_are_its_launches() -> None:
    assert launched_blocks(PLAN, parse(PLAN).plan) == {"f": (LaunchedBlock("", 256, 1024),)}


@pytest.mark.timeout(20)
def test_a_definition_that_names_itself_ends() -> None:
    """`int half = half;` is half typed, and the draft of a plan never ended."""
    assert "// launch: f" in draft_plan(HOST.replace("HOLE", "f<4><<<n, half>>>(x);"))


def facts(kernel: str, n_registers: int = 20) -> KernelFacts:
    return KernelFacts(
        kernel=kernel, symbol="", n_registers=n_registers, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0,
        shared_bytes=64,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "n_registers", "expected"),
    [
        ("f<256>", 20, "occupancy 100% on H200 (256 threads per block, limited by threads)"),
        ("f<1024>", 72, "occupancy 0% on H200 (1024 threads per block, no block fits: too many registers)"),
        ("f<32>", 20, "occupancy 3% on H200 (32 threads per block and 100000 B of dynamic shared memory, limited by "
         "shared memory)"),
    ],
)  # fmt: skip
def test_the_occupancy_is_that_of_the_instances_own_launch(kernel: str, n_registers: int, expected: str) -> None:
    blocks = (LaunchedBlock("<256>", 256), LaunchedBlock("<1024>", 1024), LaunchedBlock("<32>", 32, 100_000))
    assert occupancy_text(facts(kernel, n_registers), blocks, find_gpu("H200")) == expected


def test_without_a_known_block_there_is_none() -> None:
    assert occupancy_text(facts("f"), (), find_gpu("H200")) == ""
