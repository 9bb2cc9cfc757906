"""Make each case once, for every candidate: input files and expected outputs."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Container, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.core.task import Task
from kernel_lsp.errors import TargetError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.case_files import CaseFiles, CaseTensor, ChosenFrom
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.verify.model.cases import Case, graph_of, shapes_for
from kernel_lsp.verify.oracle.arrays import map_array, map_mask
from kernel_lsp.verify.oracle.compare import Choice, Expectation
from kernel_lsp.verify.oracle.narrow_rounding import with_one_answer
from kernel_lsp.verify.oracle.shared_turn import SharedGpu, SharedTurn


@dataclass(frozen=True)
class NoCase:
    """PyTorch itself cannot run this case, so it is inconclusive for a candidate."""

    reason: str


LARGE_ELEMENTS = 1 << 18
"""Elements of all inputs from which a GPU makes the reference, where there is one. A transposed 3d convolution has 15
cases of 0.6 to 0.9 million, which took 0.7 to 2 s each on two cores; its full check waited 16 s for cases."""


SAMPLED_FROM_BYTES = 256 << 20
"""Bytes of inputs and outputs from which a case is compared at a sample of its slices, of an eighth as many: a smaller
one is compared whole within a second."""

DESCRIBED_ELEMENTS = 1 << 26
"""Elements of all inputs from which files may describe some: 256 MiB take 0.2 s to be made on processors."""


class CaseStore:
    """Requests each case from the worker once. Expected values stay in files that only this process opens.

    References of large cases are made on the `gpu`, in the worker's own process and in turns of their own, which those
    that wait together share. No candidate runs meanwhile, and the worker keeps nothing there.
    """

    def __init__(
        self,
        task: Task,
        worker: Worker,
        directory: Path,
        gpu: SharedGpu | None = None,
        *,
        may_sample: bool = False,
    ) -> None:
        """`may_sample`: large cases made on the GPU have the results of a few slices, instead of all."""
        self._task, self._worker, self._directory, self._gpu = task, worker, directory, gpu
        self._turn = None if gpu is None else SharedTurn(gpu)
        self._may_sample = may_sample
        self._made: dict[tuple[Case, bool], asyncio.Task[CaseFiles | NoCase]] = {}
        self._expectations: dict[tuple[CaseTensor, ...], tuple[Expectation, ...]] = {}
        self._ahead: set[asyncio.Task[None]] = set()
        self._was_asked = asyncio.Event()
        self._serial = itertools.count()
        self._with_one_answer = with_one_answer(task.forward)

    async def get(self, case: Case, *, by_workers: bool = False) -> CaseFiles | NoCase:
        """Return the case's files. Concurrent requests share one answer. A failure, e.g. for lack of disk space, is
        retried for the next request. `by_workers`: nobody else reads its inputs, so that files of large ones may
        describe them."""
        return await asyncio.shield(self.begin(case, by_workers=by_workers))

    async def make_without_turn(self, case: Case) -> None:
        """Make the case on processors unless it is made: for callers that must not wait for a turn on the GPU, which a
        candidate that waits for them holds."""
        await asyncio.shield(self.begin(case, may_take_turn=False))

    def begin(
        self, case: Case, *, may_take_turn: bool = True, by_workers: bool = False
    ) -> asyncio.Task[CaseFiles | NoCase]:
        """Begin to make the case unless that has begun."""
        self._was_asked.set()
        may_describe = by_workers and may_take_turn and self.describes(case)
        making = self._made.get((case, may_describe))
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            gpu = self._gpu if may_take_turn and self.takes_a_turn(case) else None
            directory = self._directory / f"case-{next(self._serial)}"
            making = asyncio.create_task(self._make(case, directory, gpu, may_describe))
            self._made[case, may_describe] = making
        return making

    def describes(self, case: Case) -> bool:
        """Check whether the user's own inputs are so large that files may describe some for workers."""
        is_own = self._may_sample and case.family == "given" and not case.values
        return is_own and self.takes_a_turn(case) and self._n_input_elements(case) >= DESCRIBED_ELEMENTS

    def takes_a_turn(self, case: Case) -> bool:
        """Check whether the case is made on the GPU, in a turn. A caller inside a turn must not wait for it."""
        return self._gpu is not None and self._n_input_elements(case) >= LARGE_ELEMENTS

    def begin_in_order(self, first: Sequence[Case], then: Sequence[Case], *, by_workers: Container[Case] = ()) -> None:
        """Begin to make all cases, `first` ones first: others would overtake a large one that waits for its turn on the
        GPU. The inputs of those `by_workers` are read by workers alone."""

        async def in_order() -> None:
            await asyncio.gather(
                *(self.begin(case, by_workers=case in by_workers) for case in first), return_exceptions=True
            )
            for case in then:
                self.begin(case, by_workers=case in by_workers)

        self._go_ahead(in_order())

    def make_ahead(self, cases: Sequence[Case], *, by_workers: Container[Case] = ()) -> None:
        """Make cases that nobody waits for yet, each once no other is being made: a request waits for one at most."""

        async def one_by_one() -> None:
            for case in cases:
                while making := [task for task in self._made.values() if not task.done()]:
                    await asyncio.wait(making)
                self.begin(case, by_workers=case in by_workers)

        self._go_ahead(one_by_one())

    def _go_ahead(self, making: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(making)
        self._ahead.add(task)
        task.add_done_callback(self._ahead.discard)

    def expectations(self, files: CaseFiles) -> tuple[Expectation, ...]:
        """Return the expectations of each output, opened once for the files: a described case has other values than the
        same case in written ones."""
        references = tuple(each.reference for each in files.outputs)
        if references not in self._expectations:
            self._expectations[references] = read_expectations(files)
        return self._expectations[references]

    async def idle(self) -> None:
        """Wait until some case was requested and none is being made."""
        await self._was_asked.wait()
        while making := [task for task in (*self._ahead, *self._made.values()) if not task.done()]:
            await asyncio.wait(making)

    async def close(self) -> None:
        """Stop making cases."""
        await end_tasks(*self._ahead, *self._made.values())

    async def _make(self, case: Case, directory: Path, gpu: SharedGpu | None, may_describe: bool) -> CaseFiles | NoCase:
        """Make the case. Without the user's `get_inputs`, "given" is a normal distribution."""
        made = await self._ask(case, directory, gpu, may_describe)
        if case.family == "given" and isinstance(made, NoCase):
            return await self._ask(replace(case, family="normal"), directory / "normal", gpu)
        return made

    async def _ask(
        self, case: Case, directory: Path, gpu: SharedGpu | None, may_describe: bool = False
    ) -> CaseFiles | NoCase:
        directory.mkdir(parents=True)
        try:
            if gpu is None or self._turn is None:
                files = await self._make_case(case, directory, None)
            else:
                async with self._turn.held():
                    files = await self._make_case(case, directory, gpu.index, may_describe)
        except TargetError as error:
            if not self._worker.is_alive:
                raise
            return NoCase(error.message)
        return NoCase(files.reason) if files.is_degenerate else files

    def _n_input_elements(self, case: Case) -> int:
        return sum(math.prod(shape) for shape in self._shapes(case).values())

    def _shapes(self, case: Case) -> dict[str, tuple[int, ...]]:
        return shapes_for(graph_of(self._task, case.operation), dict(case.sizes))

    async def _make_case(self, case: Case, directory: Path, gpu: int | None, may_describe: bool = False) -> CaseFiles:
        files = await self._worker.make_case(
            case.operation,
            shapes=self._shapes(case),
            family=case.family,
            seed=case.seed,
            directory=directory,
            configuration=self._task.configuration,
            gpu=gpu,
            values=case.values,
            sample_from_bytes=SAMPLED_FROM_BYTES if self._may_sample and gpu is not None else None,
            may_describe=may_describe,
        )
        single = self._with_one_answer if case.operation == "forward" else frozenset()
        may_recur = any(not type_.dtype.is_floating for type_ in graph_of(self._task, case.operation).input_types)
        outputs = tuple(
            replace(each, rounding=replace(each.rounding, has_one_answer=each.name in single, may_recur=may_recur))
            for each in files.outputs
        )
        return replace(files, outputs=outputs)


def read_expectations(files: CaseFiles) -> tuple[Expectation, ...]:
    """Return the expectation of each output, in the task's order. Files are read on access."""
    return tuple(
        Expectation(
            output=each.name,
            dtype=each.dtype,
            reference=_mapped(each.reference),
            native=None if each.native is None else _mapped(each.native),
            unspecified=None if each.unspecified is None else map_mask(each.unspecified.path, each.unspecified.shape),
            rounding=each.rounding,
            may_lose_nans=each.may_lose_nans,
            chosen=None if each.chosen is None else _opened(each.chosen),
            slices=files.slices,
        )
        for each in files.outputs
    )


def _opened(chosen: ChosenFrom) -> Choice:
    return Choice(_mapped(chosen.values), map_mask(chosen.ties.path, chosen.ties.shape), chosen)


def _mapped(tensor: CaseTensor) -> np.ndarray:
    return map_array(tensor.path, tensor.dtype, tensor.shape)
