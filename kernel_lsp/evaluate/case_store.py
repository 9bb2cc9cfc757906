"""Cases made once and shared by every candidate: input files, and what the outputs should be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kernel_lsp.core.task import Task
from kernel_lsp.errors import TargetError
from kernel_lsp.evaluate.arrays import read_array
from kernel_lsp.evaluate.cases import Case, graph_of, shapes_for
from kernel_lsp.evaluate.compare import Expectation
from kernel_lsp.process.worker_client import CaseFiles, CaseTensor, Worker


@dataclass(frozen=True)
class NoCase:
    """PyTorch itself cannot run this case, so it says nothing about a candidate."""

    reason: str


class CaseStore:
    """Asks the worker for each case once. Expected values stay in files that only this process opens."""

    def __init__(self, task: Task, worker: Worker, directory: Path) -> None:
        self._task, self._worker, self._directory = task, worker, directory
        self._made: dict[Case, asyncio.Task[CaseFiles | NoCase]] = {}

    async def get(self, case: Case) -> CaseFiles | NoCase:
        """The case's files. Two candidates that ask at once wait for the same answer."""
        if case not in self._made:
            self._made[case] = asyncio.create_task(self._make(case, self._directory / f"case-{len(self._made)}"))
        return await asyncio.shield(self._made[case])

    async def close(self) -> None:
        """Stop making cases."""
        for making in self._made.values():
            making.cancel()
        await asyncio.gather(*self._made.values(), return_exceptions=True)

    async def _make(self, case: Case, directory: Path) -> CaseFiles | NoCase:
        """Without a `get_inputs` of the user's, what is "given" is a normal distribution."""
        made = await self._ask(case, directory)
        if case.family == "given" and isinstance(made, NoCase):
            return await self._ask(replace(case, family="normal"), directory / "normal")
        return made

    async def _ask(self, case: Case, directory: Path) -> CaseFiles | NoCase:
        directory.mkdir(parents=True)
        shapes = shapes_for(graph_of(self._task, case.operation), dict(case.sizes))
        try:
            files = await self._worker.make_case(
                case.operation,
                shapes=shapes,
                family=case.family,
                seed=case.seed,
                directory=directory,
                configuration=self._task.configuration,
            )
        except TargetError as error:
            if not self._worker.is_alive:
                raise
            return NoCase(error.message)
        return NoCase(files.reason) if files.is_degenerate else files


def read_expectations(files: CaseFiles) -> tuple[Expectation, ...]:
    """What each output should be, in the task's order."""
    native, perturbed = _by_name(files.native), _by_name(files.perturbed)
    return tuple(
        Expectation(
            output=tensor.name,
            dtype=files.output_dtypes[tensor.name],
            reference=_read(tensor),
            native=_read(native[tensor.name]),
            perturbed=_read(perturbed[tensor.name]) if tensor.name in perturbed else None,
        )
        for tensor in files.expected
    )


def _read(tensor: CaseTensor) -> np.ndarray:
    return read_array(tensor.path, tensor.dtype, tensor.shape)


def _by_name(tensors: Iterable[CaseTensor]) -> dict[str, CaseTensor]:
    return {tensor.name: tensor for tensor in tensors}
