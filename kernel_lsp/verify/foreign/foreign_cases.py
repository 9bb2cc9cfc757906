"""Choose the cases of a foreign kernel and judge its outputs, in this process and from copies."""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.config import ToleranceName, ToleranceSetting
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import (
    BuildFailed,
    CaseResult,
    CheckOutcome,
    Correct,
    Crashed,
    Mismatch,
    Rejected,
    TensorError,
    TimedOut,
    Unsupported,
)
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.verify.devices.device import DeviceCase
from kernel_lsp.verify.foreign.process import ForeignProcess
from kernel_lsp.verify.gpu.slot import Lost
from kernel_lsp.verify.model.cases import (
    Case,
    OperationKind,
    Sizes,
    captured_sizes,
    graph_of,
    n_total,
    seeded,
    shape_of,
    shapes_for,
    unjudged,
)
from kernel_lsp.verify.oracle.arrays import decode, map_array
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.oracle.judgement import judge_outputs
from kernel_lsp.verify.probes.finder import Finder
from kernel_lsp.verify.probes.sizes import reduced_sizes
from kernel_lsp.verify.timing.result import TimedOperation

FAMILIES = ("normal", "small_integers", "negative", "scaled_up", "scaled_down", "special_nan")
"""Families beyond `given`, at the captured sizes. Another draw of the same kind comes first."""
HIDDEN_FAMILIES = ("normal", "small_integers", "scaled_up")
"""Families at sizes that the task does not name: a few elements of a tail may be right by chance, as behind a ReLU."""
LARGE_ELEMENTS = 1 << 25
"""Elements of inputs and outputs from which two families must suffice for their time."""
N_HIDDEN = 2
"""Sizes that the task does not name, where its dims may change."""
CASE_DEADLINE_S = 60.0
STRICT: ToleranceName = "strict"
OVERRUN = "it wrote outside of its inputs"
"""The message of a write to the guards around inputs."""


@dataclass(frozen=True)
class ForeignCase(DeviceCase):
    """A case with its inputs in the candidate's folder and expected values in our memory alone. `is_hidden`: the task
    does not name its sizes."""

    inputs: tuple[dict[str, Any], ...]
    is_hidden: bool

    @property
    def is_timed(self) -> bool:
        """Check whether the case has the task's own inputs."""
        return self.case.family == "given"

    def timed(self, candidate_id: str) -> TimedOperation:
        """Return the case as a timer's operation."""
        return TimedOperation(candidate_id, self.bound, self.case.operation, self.files)

    def output_paths(self, folder: Path, suffix: str = "") -> dict[str, Path]:
        """Return the files of one call's outputs, by name."""
        return {tensor.name: folder / f"{tensor.name}{suffix}.bin" for tensor in self.bound.outputs}


def chosen_cases(task: Task, direction: OperationKind) -> list[tuple[Case, bool]]:
    """Return the cases of one direction, each with whether its sizes are hidden."""
    captured = captured_sizes(task)
    families = FAMILIES if n_total(task, direction, captured) <= LARGE_ELEMENTS else FAMILIES[:2]
    named = [_case(direction, captured, family, is_captured=True) for family in ("given", *families)]
    hidden = [sizes for sizes in reduced_sizes(Finder(task, direction, lambda _: True)) if sizes != captured][:N_HIDDEN]
    return [(case, False) for case in named] + [
        (_case(direction, sizes, family, is_captured=False), True) for sizes in hidden for family in HIDDEN_FAMILIES
    ]


async def make_case(store: CaseStore, task: Task, case: Case, folder: Path, *, is_hidden: bool) -> ForeignCase | NoCase:
    """Copy the inputs to `folder`, read expected values into memory, and delete their files. Runs in a thread: the
    worker makes the next case meanwhile."""
    files = await store.get(case)
    if isinstance(files, NoCase):
        return files
    return await asyncio.to_thread(_taken, store, task, case, files, folder, is_hidden=is_hidden)


class Judge:
    """Judges copies of outputs under one tolerance, or under all of them, of which the first decides."""

    def __init__(self, device_name: str, setting: ToleranceSetting = STRICT) -> None:
        self.device_name = device_name
        self.names: tuple[ToleranceName, ...] = (STRICT, *TOLERANCES) if setting == "all" else (setting,)
        self.mismatches: dict[ToleranceName, Mismatch] = {}
        """The first mismatch under each tolerance, at the task's own sizes."""

    @property
    def failure(self) -> Mismatch | None:
        """Return the first mismatch under the tolerance that decides."""
        return self.mismatches.get(self.names[0])

    @property
    def is_decided(self) -> bool:
        """Check whether further cases can change nothing: there is a mismatch under each tolerance."""
        return len(self.mismatches) == len(self.names)

    def judge(self, case: ForeignCase, paths: Mapping[str, Path]) -> CaseResult | Mismatch:
        """Judge one call's outputs, by name. Hidden sizes are judged under the tolerance that decides alone."""
        judged = {
            name: judge(case, paths, self.device_name, name)
            for name in self.names[: 1 if case.is_hidden else None]
            if name not in self.mismatches
        }
        if not case.is_hidden:
            self.mismatches |= {name: found for name, found in judged.items() if isinstance(found, Mismatch)}
        return self.failure or judged[self.names[0]]

    def refuse(self, case: ForeignCase, message: str) -> Mismatch:
        """Return the mismatch of outputs that no tolerance accepts, such as another shape."""
        found = Mismatch(message=message, failed=_unjudged(case, self.device_name))
        if not case.is_hidden:
            self.mismatches = dict.fromkeys(self.names, found) | self.mismatches
        return self.failure or found

    def described(self, outcome: CheckOutcome) -> dict[str, str]:
        """Return ``correct``, or why not, by tolerance; empty for one. A failure other than of values is all of
        theirs."""
        if len(self.names) == 1 or isinstance(outcome, Unsupported | Rejected | BuildFailed):
            return {}
        other = "" if isinstance(outcome, Correct | Mismatch) else f"{outcome.kind}: {outcome.message}"
        found = {name: self.mismatches.get(name) for name in self.names}
        return {name: each.message if each is not None else other or "correct" for name, each in found.items()}


async def run_case(
    process: ForeignProcess, case: ForeignCase, folder: Path, judge: Judge
) -> CaseResult | Mismatch | Crashed | TimedOut:
    """Run twice and judge both."""
    first, again = case.output_paths(folder), case.output_paths(folder, ".again")
    token = secrets.token_hex(16)
    request = {
        "direction": case.case.operation,
        "case": f"{case.case.family} {dict(case.case.sizes)}",
        "inputs": case.inputs,
        "declared": [
            {"name": tensor.name, "dtype": tensor.dtype.value, "shape": list(tensor.shape)}
            for tensor in case.bound.outputs
        ],
        "outputs": {name: str(path) for name, path in first.items()},
        "again": {name: str(path) for name, path in again.items()},
        "token": token,
    }
    ran = await process.ask("run_foreign", request, deadline_s=CASE_DEADLINE_S)
    if isinstance(ran, dict) and ran.get("status") == "refused":
        return judge.refuse(case, str(ran.get("message")))
    failure = misbehaviour(ran, token)
    if failure is not None:
        return failure
    assert isinstance(ran, dict)
    judged = judge.judge(case, first)
    if ran["spread"] and not judge.is_decided:
        judged = judge.judge(case, {**first, **{name: again[name] for name in ran["spread"]}})
    return judged


def misbehaviour(ran: Mapping[str, Any] | Lost, token: str) -> Crashed | TimedOut | None:
    """Return the failure of a call that breaks a rule for kernels, independent of its values."""
    if isinstance(ran, Lost):
        if ran.deadline_s:
            return TimedOut(message=ran.message, deadline_s=ran.deadline_s)
        return Crashed(message=ran.message)
    if ran.get("status") != "ran":
        return Crashed(message=str(ran.get("message", "it gave no answer")))
    if ran.get("token") != token:
        return Crashed(message="its process answered with something else than what it was asked")
    for what, message in (
        ("late", "these outputs changed after PyTorch's stream had finished (work on a stream or thread of its own)"),
        ("changed_inputs", "it changed its inputs"),
        ("overrun", OVERRUN),
    ):
        if ran.get(what):
            return Crashed(message=f"{message}: {', '.join(map(str, ran[what]))}")
    return None


def shuffled(cases: Sequence[ForeignCase], seed: int) -> list[ForeignCase]:
    """Shuffle the cases, with hidden sizes last: they are judged otherwise."""
    named = [case for case in cases if not case.is_hidden]
    random.Random(f"{seed}/{secrets.token_hex(4)}").shuffle(named)
    return [*named, *(case for case in cases if case.is_hidden)]


def judge(
    case: ForeignCase, paths: Mapping[str, Path], device_name: str, tolerance: ToleranceName = STRICT
) -> CaseResult | Mismatch:
    """Judge copies of one call's outputs, by name."""
    outputs = [(tensor, paths[tensor.name]) for tensor in case.bound.outputs]
    result = _unjudged(case, device_name)
    if tolerance != STRICT:
        return judge_elementwise(result, outputs, case.expectations, tolerance)
    return judge_outputs(case.case.operation, result, outputs, case.expectations)


def _unjudged(case: ForeignCase, device_name: str) -> CaseResult:
    return unjudged(case.bound, case.files.family, 0, 0, device=device_name)


def _taken(store: CaseStore, task: Task, case: Case, files: CaseFiles, folder: Path, *, is_hidden: bool) -> ForeignCase:
    expectations = tuple(_in_memory(expectation) for expectation in store.expectations(files))
    for tensor in (tensor for output in files.outputs for tensor in output.tensors):
        tensor.path.unlink(missing_ok=True)
    folder.mkdir(parents=True)
    inputs = []
    for tensor in files.inputs:
        shutil.copyfile(tensor.path, folder / tensor.path.name)
        inputs.append({**tensor.entry, "path": str(folder / tensor.path.name)})
    return ForeignCase(case, _bound(task, case, files), files, expectations, tuple(inputs), is_hidden)


def _in_memory(expectation: Expectation) -> Expectation:
    """Copy expected values from their mapped file, which another process could open."""
    native, unspecified = (None if a is None else a.copy() for a in (expectation.native, expectation.unspecified))
    chosen = None if expectation.chosen is None else expectation.chosen.in_memory()
    reference = expectation.reference.copy()
    return replace(expectation, reference=reference, native=native, chosen=chosen, unspecified=unspecified)


def _bound(task: Task, case: Case, files: CaseFiles) -> BoundOperation:
    """Return the operation's tensors without steps: how the kernel computes them is not known."""
    graph, sizes = graph_of(task, case.operation), dict(case.sizes)
    name = task.name if case.operation == "forward" else f"{task.name}_backward"
    shapes = {**shapes_for(graph, sizes), **{tensor.name: tensor.shape for tensor in files.inputs}}
    inputs = [
        BoundTensor(name=tensor.name, dtype=tensor.dtype, shape=shapes[tensor.name], role="input")
        for tensor in files.inputs
    ]
    outputs = [
        BoundTensor(name=output.name, dtype=output.type.dtype, shape=shape_of(output.type, sizes), role="output")
        for output in graph.outputs
        if output.type is not None and output.node is not None
    ]
    return BoundOperation(name=name, dims=sizes, tensors=(*inputs, *outputs), steps=())


def _case(direction: OperationKind, sizes: Sizes, family: str, *, is_captured: bool) -> Case:
    case = Case(direction, tuple(sorted(sizes.items())), family, 0, "forward", is_captured=is_captured)
    return seeded(case, 0, "foreign")


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute, by dtype; `other` is for dtypes that are not among them."""

    source: str
    by_dtype: Mapping[DType, tuple[float, float]]
    other: tuple[float, float]

    def of(self, dtype: DType) -> tuple[float, float]:
        return self.by_dtype.get(dtype, self.other)


TOLERANCES: dict[ToleranceName, Tolerance] = {
    "torch": Tolerance(
        "torch.testing.assert_close, its defaults",
        {DType.F64: (1e-7, 1e-7), DType.F32: (1.3e-6, 1e-5), DType.F16: (1e-3, 1e-5), DType.BF16: (1.6e-2, 1e-5)},
        (0.0, 0.0),
    ),
    "kernelbench": Tolerance("KernelBench", {DType.F32: (1e-4, 1e-4), DType.F64: (1e-4, 1e-4)}, (1e-2, 1e-2)),
    "robust-kbench": Tolerance("robust-kbench, its command line", {}, (1e-3, 1e-3)),
}


def describe_tolerance(name: ToleranceName) -> str:
    """Return the tolerance as a verdict states it."""
    tolerance = TOLERANCES.get(name)
    if tolerance is None:
        return "strict (error vs an fp64 reference, docs/checks.md)"
    rtol, atol = tolerance.of(DType.F32)
    return f"{name} ({tolerance.source}: rtol {rtol:g}, atol {atol:g} for f32)"


def judge_elementwise(
    case: CaseResult,
    outputs: Sequence[tuple[BoundTensor, Path]],
    expectations: Sequence[Expectation],
    name: ToleranceName,
) -> CaseResult | Mismatch:
    """Return the case with its errors, or the first of them that is beyond the tolerance."""
    tolerance, errors = TOLERANCES[name], []
    for (tensor, path), expectation in zip(outputs, expectations, strict=True):
        found = decode(map_array(path, tensor.dtype, tensor.shape), tensor.dtype)
        errors.append(_error(found, expectation, *tolerance.of(tensor.dtype)))
    result = case.model_copy(update={"errors": tuple(errors)})
    wrong = next((error for error in errors if error.n_wrong), None)
    if wrong is None:
        return result
    message = (
        f"{wrong.n_wrong} of {wrong.n_elements} elements of '{wrong.output}' exceed the tolerance {name}: at "
        f"{list(wrong.worst_index or ())} {wrong.found:.6g} instead of {wrong.expected:.6g} (inputs '{case.family}')"
    )
    return Mismatch(message=message, failed=result)


def _error(found: np.ndarray, expectation: Expectation, rtol: float, atol: float) -> TensorError:
    """Compare with the fp64 reference, or with PyTorch's own result where that is nearer. NaN equals NaN."""
    given = found.astype(np.float64)
    sides = [expectation.reference.astype(np.float64)]
    if expectation.native is not None:
        sides.append(decode(expectation.native, expectation.dtype).astype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = [np.where(_is_same(given, side), 0.0, np.abs(given - side)) for side in sides]
        pairs = zip(differences, sides, strict=True)
        excesses = [np.where(_is_same(given, side), -atol, d - (atol + rtol * np.abs(side))) for d, side in pairs]
        excess = np.minimum.reduce([np.nan_to_num(each, nan=np.inf, posinf=np.inf) for each in excesses])
    wrong = excess > 0
    norm = float(np.linalg.norm(np.nan_to_num(sides[0], posinf=0.0, neginf=0.0)))
    distance = float(np.linalg.norm(np.nan_to_num(differences[0], posinf=0.0)))
    worst = int(np.argmax(excess)) if excess.size else 0
    shown = bool(wrong.any())
    return TensorError(
        output=expectation.output,
        relative_l2=distance / norm if norm else distance,
        relative_l2_budget=rtol,
        max_error=float(np.nan_to_num(differences[0], posinf=0.0).max(initial=0.0)),
        max_error_budget=atol,
        n_wrong=int(wrong.sum()),
        n_elements=int(excess.size),
        worst_index=tuple(int(i) for i in np.unravel_index(worst, given.shape)) if shown else None,
        expected=float(sides[0].reshape(-1)[worst]) if shown else None,
        found=float(given.reshape(-1)[worst]) if shown else None,
    )


def _is_same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the mask of elements where both are the same number, infinity or NaN."""
    return (one == other) | (np.isnan(one) & np.isnan(other))
