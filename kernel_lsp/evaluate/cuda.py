"""A GPU beside the executor: the same bound operation, run once for its values and many times for its time.

The values are judged here, from copies; the process that runs the candidate never sees what they should be. Thin for
now: one configuration, the captured one.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.measurement import Comparison, Measurement
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.task import Task, TaskTensor
from kernel_lsp.core.verdict import Built, CaseResult, Crashed, Mismatch
from kernel_lsp.errors import TargetError
from kernel_lsp.evaluate.arrays import read_array
from kernel_lsp.evaluate.case_store import read_expectations
from kernel_lsp.evaluate.cases import OperationKind
from kernel_lsp.evaluate.compare import BACKWARD_FACTOR, FORWARD_FACTOR, compare, is_within_budget
from kernel_lsp.evaluate.judgement import describe_error
from kernel_lsp.process.worker_client import CaseFiles, CaseTensor, Worker

LOAD_DEADLINE_S = 60.0
RUN_DEADLINE_S = 60.0
TIME_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Measured:
    """Right on the GPU, and how fast."""

    comparison: Comparison


class GpuDevice:
    """One GPU with a warm worker of its own, replaced after any crash. Use as ``async with``."""

    name: str

    def __init__(self, task: Task, python: Path, index: int, directory: Path) -> None:
        self._task, self._python, self._index, self._directory = task, python, index, directory
        self._worker = Worker(python)
        self._n_runs = 0

    async def __aenter__(self) -> GpuDevice:
        await self._worker.__aenter__()
        self.name = (await self._worker.describe()).devices[self._index]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.__aexit__(None, None, None)

    async def measure(
        self, candidate_id: str, built: Built, bound: BoundOperation, direction: OperationKind, files: CaseFiles
    ) -> Measured | Mismatch | Crashed:
        """Run and judge once, then time beside eager PyTorch. A lost context or a hang is an outcome."""
        self._n_runs += 1
        directory = self._directory / f"gpu-{self._n_runs}"
        directory.mkdir(parents=True)
        try:
            return await self._measure(candidate_id, built, bound, direction, files, directory)
        except TargetError as error:
            await self._replace_worker()
            return Crashed(message=f"on the GPU: {error.message}")
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def _measure(
        self,
        candidate_id: str,
        built: Built,
        bound: BoundOperation,
        direction: OperationKind,
        files: CaseFiles,
        directory: Path,
    ) -> Measured | Mismatch | Crashed:
        request = {"candidate": candidate_id, "device": self._index, "ptx": built.ptx, "symbols": built.symbols}
        loaded = await self._worker.ask("load", {**request, "kernels": list(built.symbols)}, deadline_s=LOAD_DEADLINE_S)
        if not loaded["loaded"]:
            return Crashed(message=f"the GPU's driver does not load it: {loaded['log']}")
        job = {
            "candidate": candidate_id,
            "operation": bound.model_dump(mode="json"),
            "inputs": [_entry(tensor) for tensor in files.inputs],
        }
        outputs = [tensor for tensor in bound.tensors if tensor.role == "output"]
        paths = {tensor.name: directory / f"{tensor.name}.bin" for tensor in outputs}
        ran = await self._worker.ask(
            "run", {**job, "outputs": {name: str(path) for name, path in paths.items()}}, deadline_s=RUN_DEADLINE_S
        )
        failure = _failure(ran) or _judge(bound, direction, files, outputs, paths)
        if failure is not None:
            if isinstance(failure, Crashed):
                await self._replace_worker()
            return failure
        timed = await self._worker.ask(
            "time", {**job, "reference": self._reference(direction)}, deadline_s=TIME_DEADLINE_S
        )
        if timed["status"] == "crashed":
            await self._replace_worker()
            return Crashed(message=f"while timed on the GPU: {timed['message']}")
        return Measured(_comparison(timed, bound))

    def _reference(self, direction: OperationKind) -> dict[str, Any]:
        arguments = [
            {"tensor": argument.name} if isinstance(argument, TaskTensor) else {"value": argument.value}
            for argument in self._task.arguments
        ]
        return {
            "name": self._task.name,
            "source": self._task.reference_source,
            "arguments": arguments,
            "direction": direction,
        }

    async def _replace_worker(self) -> None:
        await self._worker.__aexit__(None, None, None)
        self._worker = Worker(self._python)
        await self._worker.__aenter__()


# --- below: reading what the worker said


def _failure(ran: Mapping[str, Any]) -> Crashed | None:
    if ran["status"] == "crashed":
        return Crashed(message=f"on the GPU: {ran['message']}")
    if ran["changed_inputs"]:
        return Crashed(message=f"on the GPU it changed its inputs: {', '.join(ran['changed_inputs'])}")
    if ran["overrun"]:
        return Crashed(message=f"on the GPU it wrote outside of: {', '.join(ran['overrun'])}")
    return None


def _judge(
    bound: BoundOperation,
    direction: OperationKind,
    files: CaseFiles,
    outputs: list[BoundTensor],
    paths: Mapping[str, Path],
) -> Mismatch | None:
    factor = FORWARD_FACTOR if direction == "forward" else BACKWARD_FACTOR
    errors = tuple(
        compare(read_array(paths[tensor.name], tensor.dtype, tensor.shape), expectation, factor=factor)
        for tensor, expectation in zip(outputs, read_expectations(files), strict=True)
    )
    wrong = next((error for error in errors if not is_within_budget(error)), None)
    if wrong is None:
        return None
    shapes = {tensor.name: tensor.shape for tensor in bound.tensors if tensor.role == "input"}
    result = CaseResult(
        operation=bound.name, family=files.family, shapes=shapes, n_blocks=0, n_blocks_run=0, errors=errors
    )
    return Mismatch(message=f"on the GPU: {describe_error(wrong, result)}", failed=result)


def _comparison(timed: Mapping[str, Any], bound: BoundOperation) -> Comparison:
    shapes = {tensor.name: tensor.shape for tensor in bound.tensors if tensor.role != "scratch"}
    dtypes = {tensor.name: tensor.dtype.value for tensor in bound.tensors if tensor.role != "scratch"}
    common = {name: timed[name] for name in ("gpu", "driver", "torch_version", "cache", "date")}
    ours, eager = (Measurement(**timed[whose], **common, shapes=shapes, dtypes=dtypes) for whose in ("ours", "eager"))
    return Comparison(baseline_name="eager", baseline=eager, ours=ours)


def _entry(tensor: CaseTensor) -> dict[str, Any]:
    dtype: DType = tensor.dtype
    return {"name": tensor.name, "path": str(tensor.path), "dtype": dtype.value, "shape": list(tensor.shape)}
