"""Check that every verdict is reached through `Verifier.verify`: no caller is without one of its stages.

`scripts/run_corpora.py` verifies all ten attacks; here one or three show that a caller has the stage that finds them.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import CandidateEvaluated, RunFinished
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Stalled, Unsupported, Verdict
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.agent.tools import AgentTools
from kernel_lsp.evolve.run.export_source import checked_winner
from kernel_lsp.evolve.run.judge_calibration import label
from kernel_lsp.evolve.run.optimize import start_request
from kernel_lsp.evolve.run.request import SeedKernel
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.ptx import executor
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.probes import far_sizes
from kernel_lsp.verify.session.check_kernel import check_kernel
from kernel_lsp.verify.session.evaluation import NOT_LOOKED_FURTHER
from kernel_lsp.verify.session.scalar_mutation import MutatedTask
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.verifier import Verifier
from tests.corpora import Kernel, read_kernels
from tests.verify.copies import TASK
from tests.verify.test_scalar_mutation import counted_captures

CORPUS = Path(__file__).parent.parent / "attacks"
ATTACKS = [kernel for kernel in read_kernels(CORPUS) if kernel.without == ("numbers",)]
"""Correct with the scalars of their task, and with no others: only scalar mutation catches them."""
BLENDED = [kernel for kernel in ATTACKS if kernel.task_line == "tasks.py::blended"]
SETTINGS = load_settings(CORPUS, {"device": "cpu"})
POWER = """import torch


# kernel-lsp: x=f32[512, 256], p=1.5
def power(x: torch.Tensor, p: float) -> torch.Tensor:
    return torch.pow(x.abs(), p)
"""
NO_POWER = """// kernel-lsp: 1
// task: model.py::power
// op: power(x: f32[B, D], p: float) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, p, B * D)

__global__ void k(const float* x, float* out, float p, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = fabsf(x[i]) * sqrtf(fabsf(x[i]));
}
"""
"""Ignores its scalar, and so is faster than any kernel that does not."""


SCALED_FOLDER = """import torch


def forward_fn(x, scale):
    return x * scale


class Model(torch.nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x, fn=forward_fn):
        return fn(x, self.scale)


def get_inputs(rows: int = 8):
    return [torch.randn(rows, 40)]
"""
SCALES = '{"single_init_configs": [{"scale": 2.0}, {"scale": 3.0}]}'
TWICE = """// kernel-lsp: 1
// op: forward(x: f32[B, D]) -> (out: f32[B, D])
// launch: k<<<ceil_div(B * D, 128), 128>>>(x, out, B * D)

__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] * SCALE;
}
"""


def candidate(text: str) -> Candidate:
    return Candidate(text=text, origin=Origin(proposer="user"))


def corpus_in(folder: Path, kernels: Sequence[Kernel] = BLENDED) -> Path:
    for file in (CORPUS / "tasks.py", *(kernel.file for kernel in kernels)):
        shutil.copy(file, folder)
    return folder


def refused(kernels: Sequence[Kernel]) -> dict[str, str]:
    return {kernel.file.name: "mismatch" for kernel in kernels}


def test_there_are_ten_attacks_that_scalar_mutation_alone_catches() -> None:
    assert len(ATTACKS) == 10
    assert len(BLENDED) >= 3


async def test_check_refuses_them() -> None:
    verdict = await check_kernel(BLENDED[0].file, None, CORPUS, SETTINGS)
    assert verdict.outcome.kind == "mismatch"


async def test_a_kernel_whose_far_sizes_were_not_checked_is_not_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(POWER.replace("p=1.5", "p=2.0"))
    kernel = tmp_path / "kernel.cu"
    kernel.write_text(NO_POWER.replace("fabsf(x[i]) * sqrtf(fabsf(x[i]))", "powf(fabsf(x[i]), p)"))
    settings = load_settings(tmp_path, {"device": "cpu"})
    in_time = await check_kernel(kernel, None, tmp_path, settings)
    monkeypatch.setattr(far_sizes, "CPU_S", 1e-6)
    too_late = await check_kernel(kernel, None, tmp_path, settings)
    assert in_time.is_correct, in_time.outcome
    assert too_late.outcome.kind == "unsupported"
    assert NOT_LOOKED_FURTHER in too_late.outcome.message


async def test_a_kernel_that_gets_too_little_cpu_time_is_neither_correct_nor_at_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "WALL_PER_CPU", 1e-6)
    verdict = await check_kernel(BLENDED[0].file, None, CORPUS, SETTINGS)
    assert verdict.outcome.kind == "unsupported"
    assert executor.TRY_AGAIN in verdict.outcome.message
    assert type(Verdict.model_validate_json(verdict.model_dump_json()).outcome) is Unsupported


async def test_scalars_that_a_worker_had_no_time_for_are_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that exceeds its deadline ends the worker."""
    captured, n_captures = Worker.capture, itertools.count()

    async def capture(self: Worker, *given: Any, **named: Any) -> Task:
        if next(n_captures):
            self._conversation.kill()
        return await captured(self, *given, **named)

    async def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(Worker, "capture", capture)
    monkeypatch.setattr(Verifier, "_capture_ahead", nothing)
    verdict = await check_kernel(BLENDED[0].file, None, CORPUS, SETTINGS)
    assert verdict.outcome.kind == "unsupported", verdict.outcome
    assert "not checked with other scalars" in verdict.outcome.message


@pytest.mark.parametrize("outcome", [Stalled(message="busy"), Unsupported(message="no finite reference")])
def test_a_mutation_that_was_not_checked_is_not_passed(outcome: Unsupported) -> None:
    mutated = MutatedTask(TASK, frozenset("p"), "p=2", ())
    assert (mutated.failure(outcome) is not None) is isinstance(outcome, Stalled)


async def test_export_refuses_them() -> None:
    with pytest.raises(UserError, match='export refused: the kernel\'s verdict is "mismatch"'):
        await checked_winner(BLENDED[1].file, None, CORPUS, SETTINGS, "2026-01-01")


async def test_calibration_labels_them_as_faulty(tmp_path: Path) -> None:
    labelled = await label(corpus_in(tmp_path), SETTINGS)
    assert {Path(one.name).name: one.verdict.outcome.kind for one in labelled} == refused(BLENDED)


async def test_an_agent_earns_nothing_with_them() -> None:
    async with AgentTools("tasks.py::blended", CORPUS, SETTINGS, with_backward=False) as tools:
        results = [await tools.call("check", {"code": attack.text}) for attack in BLENDED]
    assert [result.reward for result in results] == [-1] * len(BLENDED)


async def test_no_search_ends_with_a_kernel_that_ignores_a_scalar(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(POWER)
    overrides = {"device": "cpu", "generations": 1, "proposals": 1}
    given = (SeedKernel(name="no_power.cu", text=NO_POWER),)
    run = start_request(tmp_path, "model.py::power", False, overrides, seed_kernels=given)
    events = [event async for event in run.events()]
    full = [event for event in events if isinstance(event, CandidateEvaluated) and event.depth == "full"]
    assert [event.outcome for event in full] == ["mismatch", "correct"]
    assert [event.candidate_id for event in events if isinstance(event, RunFinished)] == [full[1].candidate_id]


async def test_a_full_verdict_is_of_every_configuration_each_captured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "func_forward.py").write_text(SCALED_FOLDER)
    (tmp_path / "scaled" / "config_forward.json").write_text(
        '{"single_init_configs": [{"scale": 2.0}, {"scale": 3.0}]}'
    )
    source = read_target("scaled", tmp_path)
    async with Session(SETTINGS) as session:
        verifier = await session.verifier(source, await session.capture(source, with_backward=False))
        captured = counted_captures(session, monkeypatch)
        texts = [TWICE.replace("SCALE", scale) for scale in ("2.0f", "(1.0f + 1.0f)")]
        full = [await verifier.verify(candidate(text), "full") for text in texts]
        screen = await verifier.verify(candidate(texts[0]), "screen")
    assert [verdict.outcome.kind for verdict in (*full, screen)] == ["correct"] * 3
    assert [[each.is_served for each in verdict.configurations] for verdict in (*full, screen)] == [
        [True, False]
    ] * 2 + [[]]
    assert len(captured) == 1


async def test_a_configuration_outside_the_contract_is_not_served(tmp_path: Path) -> None:
    """Bench's row said "4 of 12 configurations", of which the kernel's contract held for one."""
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "func_forward.py").write_text(SCALED_FOLDER)
    (tmp_path / "scaled" / "config_forward.json").write_text(
        '{"multi_init_configs": [{"scale": 2.0}], "multi_input_configs": [{"rows": 8}, {"rows": 12}, {"rows": 16}]}'
    )
    text = TWICE.replace("SCALE", "2.0f").replace("// launch", "// where: B % 8 == 0\n// launch")
    source = read_target("scaled", tmp_path)
    async with Session(SETTINGS) as session:
        verifier = await session.verifier(source, await session.capture(source, with_backward=False))
        verdict = await verifier.verify(candidate(text), "full")
    assert verdict.is_correct
    assert [(each.is_served, bool(each.message)) for each in verdict.configurations] == [
        (True, False),
        (False, True),
        (True, False),
    ]


async def test_a_configuration_with_another_size_where_the_plan_has_a_constant_is_not_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "func_forward.py").write_text(SCALED_FOLDER)
    (tmp_path / "scaled" / "config_forward.json").write_text(
        '{"single_init_configs": [{"scale": 2.0}], "multi_init_configs": [{"scale": 2.0}],'
        ' "single_input_configs": [{"rows": 1}], "multi_input_configs": [{"rows": 1}, {"rows": 4}]}'
    )
    source, of_any_rows = read_target("scaled", tmp_path), TWICE.replace("SCALE", "2.0f")
    of_one_row = of_any_rows.replace("[B, D]", "[1, D]").replace("B * D", "D")
    async with Session(SETTINGS) as session:
        verifier = await session.verifier(source, await session.capture(source, with_backward=False))
        captured = counted_captures(session, monkeypatch)
        one = (await verifier.verify(candidate(of_one_row), "full")).configurations
        n_captured = len(captured)
        any_rows = (await verifier.verify(candidate(of_any_rows), "full")).configurations
    assert (n_captured, len(captured)) == (0, 1)
    assert [each.is_served for each in (*one, *any_rows)] == [True, False, True, True]
    reason = "dim 0 of 'x' is 4, and the capture has 1 there"
    assert one[1].message == f"forward: dim 0 of 'x' is 4, and '1' is 1; {reason}"


SCALED = """import torch


# kernel-lsp: x=f32[64, 256]
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3.0
"""
ROWS_IN_THE_NAME = """// kernel-lsp: 1
// task: model.py::scaled
// op: scaled(x: f32[B, D]) -> (out: f32[B, D])
// where: B * D <= 1073741824
// launch: k<D><<<ceil_div(B * D, 128), 128>>>(x, out, B)

template <int D>
__global__ void k(const float* x, float* out, int B) {
    const long long i = blockIdx.x * 128ll + threadIdx.x;
    if (i < (long long)B * D) out[i] = x[i] * 3.0f;
}
"""
"""A kernel for each row length: those that are chosen after the build have none."""


async def test_sizes_without_a_kernel_in_the_build_are_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SCALED)
    (tmp_path / "k.cu").write_text(ROWS_IN_THE_NAME)
    verdict = await check_kernel(tmp_path / "k.cu", None, tmp_path, load_settings(tmp_path, {"device": "cpu"}))
    assert verdict.outcome.kind == "correct"


BEHIND_A_BARRIER = """// kernel-lsp: 1
// task: model.py::scaled
// op: scaled(x: f32[B, D]) -> (out: f32[B, D])
// where: B <= 64
// where: D <= 1048576
// scratch: n_arrived: i32[1]
// fill: n_arrived = 0
// launch: k<<<B, 256>>>(x, out, n_arrived, B, D) cooperative=1

__global__ void k(const float* x, float* out, int* n_arrived, int B, int D) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(n_arrived, 1);
        while (*(volatile int*)n_arrived < B) {}
        __threadfence();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += 256) out[blockIdx.x * D + i] = x[blockIdx.x * D + i] * 3.0f;
}
"""


async def test_work_behind_a_barrier_of_the_grid_is_counted(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SCALED)
    (tmp_path / "k.cu").write_text(BEHIND_A_BARRIER)
    verdict = await check_kernel(tmp_path / "k.cu", None, tmp_path, load_settings(tmp_path, {"device": "cpu"}))
    assert verdict.outcome.kind == "correct"
    assert verdict.estimate is not None
    assert verdict.estimate.n_operations >= 64 * 256
