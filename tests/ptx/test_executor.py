"""The executor as its users see it: a process that loads and runs, samples blocks, counts, and may die."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

from kernel_lsp.core.plan import BoundFill, BoundLaunch, ScalarArgument, TensorArgument
from kernel_lsp.core.verdict import Crashed, Rejected, Stalled, TimedOut, Unsupported
from kernel_lsp.errors import EnvironmentProblem, InternalError
from kernel_lsp.process.supervisor import Died
from kernel_lsp.ptx import executor as executor_module
from kernel_lsp.ptx.executor import (
    WRITTEN_BY_KERNEL,
    BlockSample,
    BufferFile,
    ExecutionReport,
    Loaded,
    PtxExecutor,
    RunOptions,
    written_ranges,
)

SCALE = """
template <int BLOCK> __global__ void scale(const float* x, float* out, float factor, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) out[i] = x[i] * factor;
}
"""
NAME = "scale<128>"
N = 10_000


@pytest.fixture
def scale(compile_cuda):
    return compile_cuda(SCALE, NAME)


@pytest.fixture
async def executor():
    async with PtxExecutor() as started:
        yield started


SPIN = 'extern "C" __global__ void spin(float* out) { while (out[0] < 1) out[0] *= 0.5f; }'
SPINNING = BoundLaunch(
    kernel="spin", grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0, arguments=(TensorArgument(tensor="out"),)
)


def buffers(directory, x, out, **changes):
    """The two tensors as files."""
    x.tofile(directory / "x")
    out.tofile(directory / "out")
    return [
        BufferFile("x", directory / "x", x.nbytes, "input", f"f32[{x.size}]"),
        BufferFile("out", directory / "out", out.nbytes, "output", f"f32[{out.size}]", **changes),
    ]


def launch(n=N, factor=2.0, n_blocks=None):
    return BoundLaunch(
        kernel=NAME,
        grid=(n_blocks or -(-n // 128), 1, 1),
        block=(128, 1, 1),
        shared_bytes=0,
        arguments=(
            TensorArgument(tensor="x"),
            TensorArgument(tensor="out"),
            ScalarArgument(cuda_type="float", value=factor),
            ScalarArgument(cuda_type="int", value=n),
        ),
    )


@pytest.mark.parametrize("is_quick", [False, True])
async def test_a_plan_runs_in_a_process_of_its_own(executor, scale, tmp_path, is_quick):
    loaded = await executor.load(scale.ptx, "scale.cu", is_quick=is_quick)
    assert isinstance(loaded, Loaded)
    assert [kernel.symbol for kernel in loaded.kernels] == [scale.symbols[NAME]]
    x = np.arange(N, dtype="f4")
    files = buffers(tmp_path, x, np.zeros(N, "f4"))
    report = await executor.run(files, [BoundFill(tensor="out", value=-1), launch()], scale.symbols)
    assert isinstance(report, ExecutionReport)
    assert report.findings == ()
    assert report.n_blocks_run == (79,)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", "f4"), 2 * x)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "x", "f4"), x)


async def test_a_sample_of_blocks_says_what_it_wrote(executor, scale, tmp_path):
    await executor.load(scale.ptx, "scale.cu")
    x = np.ones(N, "f4")
    files = buffers(tmp_path, x, np.full(N, np.nan, "f4"))
    report = await executor.run(files, [launch()], scale.symbols, RunOptions(sample=BlockSample(5, seed=1)))
    assert isinstance(report, ExecutionReport)
    assert (report.n_blocks_run, report.counters[0].n_blocks) == ((5,), 79)
    marks = np.fromfile(tmp_path / "out.written", np.uint8)
    written = (marks & WRITTEN_BY_KERNEL != 0).reshape(-1, 4).all(1)
    out = np.fromfile(tmp_path / "out", "f4")
    np.testing.assert_array_equal(~np.isnan(out), written)
    blocks = {int(i) // 128 for i in np.flatnonzero(written)}
    assert {0, 78} <= blocks
    assert len(blocks) == 5
    in_ranges = np.zeros(N * 4, bool)
    for start, stop in written_ranges(tmp_path / "out"):
        in_ranges[start:stop] = True
    assert in_ranges[marks != 0].all()


async def test_samples_with_other_seeds_are_other_blocks(executor, scale, tmp_path):
    await executor.load(scale.ptx, "scale.cu")
    x = np.ones(N, "f4")
    seen = set()
    for seed in range(3):
        files = buffers(tmp_path, x, np.zeros(N, "f4"))
        await executor.run(files, [launch()], scale.symbols, RunOptions(sample=BlockSample(5, seed=seed)))
        seen.add(np.fromfile(tmp_path / "out", "f4").tobytes())
    assert len(seen) == 3


async def test_blocks_that_are_named_run_and_no_others(executor, scale, tmp_path):
    await executor.load(scale.ptx, "scale.cu")
    files = buffers(tmp_path, np.ones(N, "f4"), np.full(N, np.nan, "f4"))
    sample = BlockSample(3, blocks=(70, 2, 3, 1000))
    report = await executor.run(files, [launch()], scale.symbols, RunOptions(sample=sample))
    assert isinstance(report, ExecutionReport)
    written = np.flatnonzero(~np.isnan(np.fromfile(tmp_path / "out", "f4")))
    assert ({int(i) // 128 for i in written}, report.n_blocks_run) == ({2, 3, 70}, (3,))


async def test_after_a_sample_a_block_that_needs_the_rest_is_left_out(executor, compile_cuda, tmp_path):
    text = (
        SCALE
        + 'extern "C" __global__ void turn(const float* x, float* out, float factor, int n) {'
        + (" int i = blockIdx.x * 128 + threadIdx.x; if (i < n) out[i] = out[n - 1 - i]; }")
    )
    built = compile_cuda(text, NAME)
    await executor.load(built.ptx, "scale.cu")
    second = launch().model_copy(update={"kernel": "turn"})
    files = buffers(tmp_path, np.ones(N, "f4"), np.zeros(N, "f4"))
    report = await executor.run(files, [launch(), second], built.symbols, RunOptions(sample=BlockSample(4)))
    assert isinstance(report, ExecutionReport)
    assert report.findings == ()
    assert report.n_blocks_run[0] == 4
    assert report.n_blocks_run[1] < 4


async def test_what_an_earlier_run_wrote_may_be_read_when_said(executor, compile_cuda, tmp_path):
    built = compile_cuda('extern "C" __global__ void twice(float* out) { out[threadIdx.x] *= 2; }')
    await executor.load(built.ptx, "k.cu")
    step = BoundLaunch(
        kernel="twice", grid=(1, 1, 1), block=(8, 1, 1), shared_bytes=0, arguments=(TensorArgument(tensor="out"),)
    )
    out = np.ones(8, "f4")
    refused = await executor.run(buffers(tmp_path, out, out), [step], {})
    assert isinstance(refused, ExecutionReport)
    assert [finding.code for finding in refused.findings] == ["uninitialized-read"]
    allowed = await executor.run(buffers(tmp_path, out, out, is_initialised=True), [step], {})
    assert isinstance(allowed, ExecutionReport)
    assert allowed.findings == ()


async def test_counters_of_a_simple_kernel(executor, scale, tmp_path):
    await executor.load(scale.ptx, "scale.cu")
    files = buffers(tmp_path, np.ones(1024, "f4"), np.zeros(1024, "f4"))
    report = await executor.run(files, [launch(1024)], scale.symbols, RunOptions(n_traced_blocks=2))
    assert isinstance(report, ExecutionReport)
    counters = report.counters[0]
    assert (counters.n_blocks, counters.n_blocks_run, counters.n_blocks_traced) == (8, 8, 2)
    assert counters.n_threads_per_block == 128
    assert (counters.global_load_bytes, counters.global_store_bytes) == (4096, 4096)
    assert counters.n_floating_operations == 1024
    assert counters.n_instructions == counters.max_instructions_per_thread * 1024
    # Two blocks of four warps, a load and a store each; 32 floats are four sectors.
    assert (counters.n_global_requests, counters.n_global_sectors) == (16, 64)


@pytest.mark.parametrize(("stride", "n_sectors"), [(1, 4), (2, 8), (8, 32), (32, 32)])
async def test_sectors_depend_on_the_stride(executor, compile_cuda, tmp_path, stride, n_sectors):
    built = compile_cuda(
        f'extern "C" __global__ void copy(const float* x, float* out) {{ out[0] = x[threadIdx.x * {stride}]; }}'
    )
    await executor.load(built.ptx, "k.cu")
    step = BoundLaunch(
        kernel="copy",
        grid=(1, 1, 1),
        block=(32, 1, 1),
        shared_bytes=0,
        arguments=(TensorArgument(tensor="x"), TensorArgument(tensor="out")),
    )
    files = buffers(tmp_path, np.ones(1024, "f4"), np.zeros(1, "f4"))
    report = await executor.run(files, [step], {})
    assert isinstance(report, ExecutionReport)
    assert (report.counters[0].n_global_requests, report.counters[0].n_global_sectors) == (2, n_sectors + 1)


async def test_an_unknown_instruction_is_an_outcome(executor):
    head = ".version 9.0\n.target sm_90\n.address_size 64\n"
    ptx = head + ".visible .entry k() { .reg .b32 %r<3>; sprint.b32 %r1, %r2; ret; }"
    outcome = await executor.load(ptx, "k.cu")
    assert isinstance(outcome, Unsupported)
    assert outcome.instruction == "sprint.b32 %r1, %r2"


async def test_text_that_is_not_ptx_is_unsupported(executor):
    for text in ("hello", "{", ".visible .entry k(", ".entry k() { add.s32 %r1, [-], 3; }"):
        assert isinstance(await executor.load(text, "k.cu"), Unsupported)


async def test_a_loop_without_end_is_timed_out_and_the_executor_lives_on(executor, compile_cuda, tmp_path):
    built = compile_cuda(SPIN)
    await executor.load(built.ptx, "k.cu")
    files = buffers(tmp_path, np.ones(1, "f4"), np.zeros(2, "f4"), is_initialised=True)
    outcome = await executor.run(files, [SPINNING], {}, RunOptions(max_instructions=10**6))
    assert isinstance(outcome, TimedOut)
    assert isinstance(await executor.load(built.ptx, "k.cu"), Loaded)


async def test_a_missed_deadline_ends_the_process_and_the_next_load_starts_one(executor, compile_cuda, tmp_path):
    built = compile_cuda(SPIN)
    await executor.load(built.ptx, "k.cu")
    files = buffers(tmp_path, np.ones(1, "f4"), np.zeros(2, "f4"), is_initialised=True)
    options = RunOptions(max_instructions=10**13, cpu_s=0.5)
    assert isinstance(await executor.run(files, [SPINNING], {}, options), TimedOut)
    assert isinstance(await executor.load(built.ptx, "k.cu"), Loaded)


async def test_a_parent_that_ignores_the_signal_lifts_no_limit(compile_cuda, tmp_path):
    built = compile_cuda(SPIN)
    files = buffers(tmp_path, np.ones(1, "f4"), np.zeros(2, "f4"), is_initialised=True)
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        async with PtxExecutor() as executor:
            await executor.load(built.ptx, "k.cu")
            options = RunOptions(max_instructions=10**13, cpu_s=0.5)
            assert isinstance(await executor.run(files, [SPINNING], {}, options), TimedOut)
    finally:
        signal.signal(signal.SIGPROF, before)


async def test_a_process_that_waits_for_a_core_is_not_timed_out(executor, scale, tmp_path):
    """The budget is CPU time: a stopped process has none."""
    await executor.load(scale.ptx, "scale.cu")
    pid = executor._conversation.pid
    running = asyncio.create_task(executor.load(scale.ptx, "scale.cu", cpu_s=0.5))
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(1.0)
    assert not running.done()
    os.kill(pid, signal.SIGCONT)
    assert isinstance(await running, Loaded)


async def test_a_process_without_a_core_says_nothing_of_the_kernel(executor, scale, monkeypatch):
    await executor.load(scale.ptx, "scale.cu")
    monkeypatch.setattr(executor_module, "WALL_PER_CPU", 1.0)
    os.kill(executor._conversation.pid, signal.SIGSTOP)
    outcome = await executor.run([], [launch()], scale.symbols, RunOptions(cpu_s=0.2))
    assert isinstance(outcome, Stalled)
    assert "idle" in outcome.message
    assert await executor.run([], [launch()], scale.symbols) is outcome
    assert isinstance(await executor.load(scale.ptx, "scale.cu"), Loaded)


async def test_an_inspection_finds_endless_loops_and_leaves_the_loaded_module(executor, scale, tmp_path, compile_cuda):
    await executor.load(scale.ptx, "scale.cu")
    endless = compile_cuda('extern "C" __global__ void k() { volatile int go_on = 1; while (go_on) {} }', "k")
    refused = await executor.inspect(endless.ptx, "k.cu")
    assert isinstance(refused, Rejected)
    assert {finding.kernel for finding in refused.findings} == {"k"}
    assert await executor.inspect(scale.ptx, "scale.cu") is None
    assert isinstance(await executor.inspect("nothing that is PTX", "k.cu"), Unsupported)
    files = buffers(tmp_path, np.ones(N, "f4"), np.zeros(N, "f4"))
    assert isinstance(await executor.run(files, [launch()], scale.symbols), ExecutionReport)


async def test_a_killed_process_is_an_outcome(executor, scale):
    await executor.load(scale.ptx, "scale.cu")
    os.kill(executor._conversation._process.pid, signal.SIGKILL)
    assert isinstance(await executor.run([], [launch()], scale.symbols), Crashed)
    assert isinstance(await executor.load(scale.ptx, "scale.cu"), Loaded)


async def test_a_process_killed_while_it_compiles_in_a_run_says_nothing_of_the_kernel(executor, scale):
    await executor.load(scale.ptx, "scale.cu", is_quick=True)
    os.kill(executor._conversation._process.pid, signal.SIGKILL)
    outcome = await executor.run([], [launch()], scale.symbols)
    assert isinstance(outcome, Stalled)
    assert "memory is full" in outcome.message
    assert await executor.run([], [launch()], scale.symbols) is outcome


async def test_a_process_that_cannot_be_imported_is_a_fault_of_the_machine(monkeypatch):
    monkeypatch.setattr(executor_module, "PROGRAM", "no_such_package.program")
    async with PtxExecutor() as broken:
        with pytest.raises(EnvironmentProblem, match="cannot start: ModuleNotFoundError: No module named") as told:
            await broken.load("", "a.cu")
    assert "pip install" in told.value.next_step


@pytest.mark.parametrize(
    ("place", "last", "is_import"),
    [
        ("in <module>", "PermissionError: [Errno 13] Permission denied: 'llvmlite/__init__.py'", True),
        ("in main", "PermissionError: [Errno 13] Permission denied: 'out.bin'", False),
        ("in <module>", "MemoryError", False),
    ],
)
def test_only_an_import_before_any_request_is_a_fault_of_the_machine(place: str, last: str, is_import: bool) -> None:
    stderr = f'  File "confine.py", line 9, in main\n  File "ptx/executor_process.py", line 22, {place}\n{last}\n'
    assert bool(executor_module._import_error(Died(1, stderr))) == is_import


async def test_a_process_killed_while_it_loads_says_nothing_of_the_kernel(executor, scale):
    pid = executor._conversation._process.pid
    os.kill(pid, signal.SIGSTOP)
    loading = asyncio.create_task(executor.load(scale.ptx, "scale.cu"))
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    outcome = await loading
    assert isinstance(outcome, Unsupported)
    assert "memory is full" in outcome.message
    assert isinstance(await executor.load(scale.ptx, "scale.cu"), Loaded)


@pytest.mark.parametrize(
    "steps",
    [
        [launch().model_copy(update={"kernel": "missing"})],
        [launch().model_copy(update={"arguments": ()})],
        [BoundFill(tensor="missing", value=0)],
    ],
    ids=["kernel", "arguments", "tensor"],
)
async def test_a_request_that_does_not_fit_is_our_own_error(executor, scale, tmp_path, steps):
    await executor.load(scale.ptx, "scale.cu")
    files = buffers(tmp_path, np.ones(4, "f4"), np.ones(4, "f4"))
    with pytest.raises(InternalError):
        await executor.run(files, steps, scale.symbols)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("f32", 1.5, np.float32(1.5).tobytes()),
        ("f16", -2.0, np.float16(-2).tobytes()),
        ("bf16", 1.0, b"\x80\x3f"),
        ("bf16", float("inf"), b"\x80\x7f"),
        ("f64", 0.1, np.float64(0.1).tobytes()),
        ("i64", -1, b"\xff" * 8),
        ("u8", 200, b"\xc8"),
        ("bool", 1, b"\x01"),
    ],
)
async def test_fills_of_every_dtype(executor, scale, tmp_path, dtype, value, expected):
    await executor.load(scale.ptx, "scale.cu")
    n_elements = 3000
    (tmp_path / "t").write_bytes(bytes(n_elements * len(expected)))
    tensor = BufferFile("t", tmp_path / "t", n_elements * len(expected), "scratch", f"{dtype}[{n_elements}]")
    await executor.run([tensor], [BoundFill(tensor="t", value=value)], {})
    assert (tmp_path / "t").read_bytes() == expected * n_elements


async def test_each_line_has_its_own_counters(executor, compile_cuda, tmp_path):
    text = """extern "C" __global__ void copy(const float* x, float* out) {
    const float far = x[threadIdx.x * 8];
    if (threadIdx.x < 8)
        out[threadIdx.x] = far;
}
"""
    await executor.load(compile_cuda(text).ptx, "kernel.cu")
    arguments = (TensorArgument(tensor="x"), TensorArgument(tensor="out"))
    step = BoundLaunch(kernel="copy", grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0, arguments=arguments)
    report = await executor.run(buffers(tmp_path, np.ones(256, "f4"), np.zeros(8, "f4")), [step], {})
    assert isinstance(report, ExecutionReport)
    lines = {line.line: line for line in report.counters[0].lines}
    assert sum(line.n_instructions for line in lines.values()) <= report.counters[0].n_instructions
    load = next(line for line in lines.values() if line.n_global_requests and line.line < 4)
    assert load.n_global_sectors == load.n_global_accesses == load.n_global_bytes / 4
    store = lines[4]
    assert (store.n_global_requests, store.n_global_sectors, store.n_global_accesses) == (1, 1, 8)
    assert store.n_global_bytes == 32


async def test_without_traced_blocks_there_are_no_line_counters(executor, scale, tmp_path):
    await executor.load(scale.ptx, "scale.cu")
    files = buffers(tmp_path, np.ones(1024, "f4"), np.zeros(1024, "f4"))
    report = await executor.run(files, [launch(1024)], scale.symbols, RunOptions(n_traced_blocks=0))
    assert isinstance(report, ExecutionReport)
    assert report.counters[0].lines == ()
