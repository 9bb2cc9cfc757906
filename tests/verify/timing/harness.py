"""A timer over fake workers, which are real processes, and a task to time."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.task import Graph, GraphNode, GraphOutput, Task, TaskTensor, TensorType
from kernel_lsp.errors import TargetError
from kernel_lsp.process.case_files import CaseFiles, CaseTensor
from kernel_lsp.process.supervisor import Answered, Conversation
from kernel_lsp.verify.timing.baseline_cache import BaselineCache
from kernel_lsp.verify.timing.baselines import Baselines
from kernel_lsp.verify.timing.operation import OperationTimer
from kernel_lsp.verify.timing.result import Timed, TimedOperation, TimingOutcome
from kernel_lsp.verify.timing.rounds import TimingPlan

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
PATIENCE_S = 30.0
TIMES_US = {"ours": 40.0, "eager": 120.0, "default": 60.0, "reduce-overhead": 50.0, "max-autotune": 45.0}
N_ELEMENTS = 1 << 20


class FakeWorker:
    """The worker's client, over the fake program."""

    def __init__(self, behaviour: Mapping[str, Any]) -> None:
        self._conversation = Conversation([sys.executable, FAKE_WORKER, json.dumps(behaviour)])

    async def __aenter__(self) -> FakeWorker:
        await self._conversation.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._conversation.close()

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        answer = await self._conversation.ask({"command": command, **arguments}, deadline_s=deadline_s)
        if isinstance(answer, Answered):
            return answer.reply
        raise TargetError(f"the worker ended during '{command}'")

    def hold(self) -> None:
        self._conversation.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._conversation.signal(signal.SIGCONT)

    @property
    def is_alive(self) -> bool:
        return self._conversation.is_alive


@dataclass
class Bench:
    """A timer, a candidate's worker, and the processes' log."""

    folder: Path
    timer: OperationTimer
    worker: FakeWorker
    made: list[FakeWorker] = field(default_factory=list)

    async def time(
        self, candidate_id: str = "a", *, patience_s: float = PATIENCE_S, n_elements: int = N_ELEMENTS
    ) -> TimingOutcome:
        timed = operation(candidate_id, n_elements)
        return await self.timer.time_operation(self.worker, timed, patience_s=patience_s)

    async def comparison(self, *, patience_s: float = PATIENCE_S) -> Comparison:
        outcome = await self.time(patience_s=patience_s)
        assert isinstance(outcome, Timed), outcome
        return outcome.comparison

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    candidate: Mapping[str, Any] | None = None,
    baselines: Sequence[str] = ("eager", "compile"),
    plan: TimingPlan | None = None,
    patience_s: float = 0.0,
    peers: Sequence[str] = (),
    starts_ahead: bool = False,
    **behaviour: Any,
) -> AsyncIterator[Bench]:
    """`behaviour` is of the baselines' processes, `candidate` what the candidate's has instead."""
    common = {"log": str(folder / "log"), "times_us": TIMES_US, **behaviour}
    made: list[FakeWorker] = []

    def make_worker() -> FakeWorker:
        made.append(FakeWorker({**common, "seed": 100 + len(made)}))
        return made[-1]

    known = BaselineCache(folder / "cache")
    pytorch = Baselines(make_worker, known, device=0, names=baselines, peers=peers, starts_ahead=starts_ahead)
    timer = OperationTimer(task(), pytorch, plan=plan, patience_s=patience_s)
    async with FakeWorker({**common, **(candidate or {})}) as worker, timer:
        yield Bench(folder, timer, worker, made)


def task() -> Task:
    """y = relu(x)"""
    vector = TensorType(dtype=DType.F32, shape=("N",))
    relu = GraphNode(name="y", op="aten.relu.default", arguments=({"node": "x"},), types=(vector,))
    graph = Graph(
        inputs=("x",), input_types=(vector,), nodes=(relu,), outputs=(GraphOutput(name="out", node="y", type=vector),)
    )
    return Task(
        name="relu",
        target="model.py::relu",
        kind="function",
        source_file="model.py",
        source_line=1,
        symbols=(),
        arguments=(TaskTensor(name="x", type=vector, role="input"),),
        forward=graph,
        reference_source="def relu_reference(x):\n    return torch.relu(x)\n",
        configurations=(),
        torch_version="2.11.0",
    )


def bound(n_elements: int) -> BoundOperation:
    tensors = tuple(
        BoundTensor(name=name, dtype=DType.F32, shape=(n_elements,), role=role)  # type: ignore[arg-type]
        for name, role in (("x", "input"), ("out", "output"))
    )
    return BoundOperation(name="relu", dims={"N": n_elements}, tensors=tensors, steps=())


def operation(candidate_id: str, n_elements: int) -> TimedOperation:
    x = CaseTensor("x", Path("x.bin"), DType.F32, (n_elements,))
    files = CaseFiles("given", 0, (x,))
    return TimedOperation(candidate_id, bound(n_elements), "forward", files)
