"""A small world for searches of models: a task without a file, a device that reads a kernel's worth in its text."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.event import Event
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.measurement import Estimate
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, Symbol, Task, TaskTensor, TensorType
from kernel_lsp.core.verdict import (
    BuildFailed,
    CaseResult,
    CheckOutcome,
    Correct,
    Crashed,
    KernelFacts,
    Mismatch,
    TensorError,
    Verdict,
)
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords, ProposalRecord
from kernel_lsp.evolve.propose.model_run import ModelRun, ModelTools
from kernel_lsp.evolve.run.evaluations import Evaluations
from kernel_lsp.evolve.run.final_verification import SearchResult
from kernel_lsp.evolve.run.request import ModelChoices, OptimizeRequest, SeedKernel
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.llm.prompts import Prompts
from kernel_lsp.llm.recording import Recording
from kernel_lsp.llm.request import Model, ModelFailed, ModelRequest, Replied
from kernel_lsp.llm.specs import Roster

TYPE = TensorType(dtype=DType.F32, shape=("B", "D"))
TASK = Task(
    name="scale",
    target="model.py::scale",
    kind="function",
    source_file="model.py",
    source_line=1,
    symbols=(Symbol(name="B", captured=4096, minimum=1), Symbol(name="D", captured=4096, minimum=1)),
    arguments=(TaskTensor(name="x", type=TYPE, role="input"),),
    forward=Graph(
        inputs=("x",),
        input_types=(TYPE,),
        nodes=(GraphNode(name="mul", op="aten.mul.Tensor", arguments=({"node": "x"}, 2.0), types=(TYPE,)),),
        outputs=(GraphOutput(name="out", node="mul", type=TYPE),),
    ),
    reference_source="def scale_reference(x):\n    return x * 2.0\n",
    configurations=(),
    torch_version="2.13",
)
PLAN = "// kernel-lsp: 1\n// op: scale(x: f32[B, D]) -> (out: f32[B, D])\n// launch: k<<<B, 256>>>(x, out)\n"


def kernel(time_us: float, *marks: str) -> str:
    """A kernel's text. Its worth stands in it; marks are WRONG, BROKEN, CRASH, ON_GPU_WRONG, SLOW_FULL."""
    return f"{PLAN}\n__global__ void k(const float* x, float* out) {{ /* T={time_us} {' '.join(marks)} */ }}\n"


def reply(time_us: float, *marks: str, name: str = "proposal") -> str:
    return f"NAME: {name}\nTHOUGHT: it takes {time_us}\nCODE:\n```cuda\n{kernel(time_us, *marks)}```\n"


class FakeDevice:
    """Evaluates by reading. `gpu` devices see ON_GPU_WRONG. Keeps what it was asked and how long it was busy."""

    def __init__(self, n_slots: int = 2, delay_s: float = 0.0, *, is_gpu: bool = False) -> None:
        self.n_slots, self._delay_s, self._is_gpu = n_slots, delay_s, is_gpu
        self.baseline_wait_s = 0.0
        self.occupied_by = ""
        self.asked: list[tuple[str, str]] = []
        self.busy_s = 0.0
        self.first_s: float | None = None
        self.last_s = 0.0

    def is_on_gpu(self, candidate_id: str) -> bool:
        return candidate_id == self.occupied_by

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        started = time.monotonic()
        self.first_s = started if self.first_s is None else self.first_s
        await asyncio.sleep(self._delay_s)
        self.last_s = time.monotonic()
        self.busy_s += self.last_s - started
        self.asked.append((candidate.id, depth))
        return verdict_of(candidate, depth, is_gpu=self._is_gpu)


def verdict_of(
    candidate: Candidate, depth: Literal["rank", "screen", "full"] = "screen", *, is_gpu: bool = False
) -> Verdict:
    """Return the device's verdict of a text."""
    text = candidate.text
    outcome = _outcome(text, depth, is_gpu=is_gpu)
    found = re.search(r"T=([\d.]+)", text)
    estimate = _estimate(float(found[1])) if found and outcome.kind == "correct" else None
    return Verdict(
        candidate_id=candidate.id,
        depth=depth,
        device="fake",
        outcome=outcome,
        estimate=estimate,
        program_hash=hashlib.sha256((found[0] if found else text).encode()).hexdigest()[:16],
        kernels=(FACTS,) if outcome.kind == "correct" else (),
    )


FACTS = KernelFacts(
    kernel="k",
    symbol="k",
    n_registers=40,
    spill_store_bytes=0,
    spill_load_bytes=0,
    stack_bytes=0,
    shared_bytes=0,
)


def _outcome(text: str, depth: str, *, is_gpu: bool) -> CheckOutcome:
    case = CaseResult(
        operation="scale",
        family="normal",
        shapes={"x": (7, 5)},
        n_blocks=1,
        n_blocks_run=1,
        errors=(
            TensorError(
                output="out",
                relative_l2=0.1,
                relative_l2_budget=1e-6,
                max_error=1.0,
                max_error_budget=1e-6,
                n_wrong=3,
                n_elements=35,
                worst_index=(6, 4),
                expected=2.0,
                found=1.0,
            ),
        ),
    )
    if "BROKEN" in text:
        finding = Finding(
            code="nvrtc-20", severity=Severity.ERROR, message="identifier undefined", source="nvrtc", line=5
        )
        return BuildFailed(findings=(finding,))
    if "CRASH" in text:
        return Crashed(message="reads out of bounds")
    if ("ON_GPU_WRONG" in text and is_gpu) or re.search(r"\bWRONG\b", text):
        return Mismatch(message="3 of 35 elements wrong", failed=case)
    if "FULL_WRONG" in text and depth == "full":
        return Mismatch(message="3 of 35 elements wrong", failed=case)
    return Correct(cases=(case,))


def _estimate(time_us: float) -> Estimate:
    return Estimate(
        time_us=time_us,
        low_us=time_us,
        high_us=time_us,
        gpu="H200",
        bound="memory",
        bytes_moved=134_217_728,
        n_operations=16_777_216,
        n_launches=1,
        shapes={},
        dtypes={},
        date="2026-01-01",
        method="fake",
    )


@dataclass
class Ran:
    """Archive and result of a search."""

    result: SearchResult
    events: list[Event]
    proposals: list[ProposalRecord]
    device: FakeDevice

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]


@dataclass
class World:
    """One workspace and one run in it."""

    folder: Path
    n_generations: int = 2
    n_proposals: int = 4
    choices: ModelChoices = field(default_factory=lambda: ModelChoices(early_stop="off", repair_rounds=1))
    device: FakeDevice = field(default_factory=FakeDevice)
    executor: FakeDevice | None = None
    program: Any = None
    seed: int = 0
    run_id: str | None = None
    recording: Recording | None = None
    seed_kernels: tuple[SeedKernel, ...] = ()

    async def search(
        self, models: Mapping[str, Sequence[Model]] | Model, listen: Callable[[Event], None] | None = None
    ) -> Ran:
        """Run, or go on with, the search."""
        by_purpose = {p: tuple(m) for p, m in models.items()} if isinstance(models, Mapping) else {"": (models,)}
        with Archive(self.folder) as archive:
            request = OptimizeRequest(
                target="model.py::scale",
                directory=self.folder,
                target_gpu="H200",
                generations=self.n_generations,
                proposals=self.n_proposals,
                seed=self.seed,
                choices=self.choices,
                seed_kernels=self.seed_kernels,
            )
            if self.run_id is None:
                self.run_id = archive.start_run(request.target, request.model_dump(mode="json"))
            search = ModelRun(
                run_id=self.run_id,
                archive=archive,
                request=request,
                tools=ModelTools(Roster(by_purpose), Prompts(self.folder / ".kernel-lsp"), self.recording),
                workspace=self.folder,
                task=TASK,
                target="../model.py::scale",
                gpu=find_gpu("H200"),
                evaluations=Evaluations(self.run_id, archive, self.device, self.executor),
                program=self.program,
                deadline_s=600.0,
            ).search()
            events = []
            async for event in search.run():
                events.append(event)
                if listen is not None:
                    listen(event)
            assert search.result is not None
            return Ran(search.result, events, ModelRecords(archive, self.run_id).proposals(), self.device)


def numbered(
    make: Callable[[int], str | Replied | ModelFailed],
) -> Callable[[ModelRequest], str | Replied | ModelFailed]:
    """Answers by the number of the proposal that asks."""
    return lambda request: make(request.sample)


@dataclass(frozen=True)
class Knob:
    name: str = "speed"
    values: tuple[int | str, ...] = tuple(range(50, 90))
    default: int | str = 80


@dataclass(frozen=True)
class Realized:
    schedule: dict[str, int | str]
    text: str
    knobs: tuple[Knob, ...] = (Knob(),)
    is_valid: bool = True


class Program:
    """Kernels take as long as their knob says, one of `speeds` us. `version` changes the text of all."""

    def __init__(self, version: str = "", speeds: tuple[int, ...] = tuple(range(50, 90))) -> None:
        self.version, self.knobs = version, (Knob(values=speeds),)

    def realize(self, schedule: Mapping[str, int | str]) -> Realized:
        speed = schedule.get("speed", 80)
        return Realized({"speed": speed}, kernel(float(speed)) + self.version, self.knobs)
