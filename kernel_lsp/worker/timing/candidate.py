"""The command `prepare_candidate`: prepare a loaded candidate's operation as a subject of timing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..failure import short_message
from ..gpu.device import once_there_is_memory, release_memory
from ..gpu.fingerprints import fingerprints, spread
from ..gpu.run import POISON_BYTE, BoundRun, Candidate, inputs_on, loaded_candidate, made_by
from ..shipped.cuda_runtime import CudaError, on_device
from .rounds import SUBJECTS, admit
from .subject import Results, Subject, is_large, n_affordable_sets, refuse_zeros

Inputs = Mapping[str, torch.Tensor]


def prepare_candidate(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare ``{"subject", "candidate", "operation", "inputs": [file entries]}``, and ``"expected": {output:
    fingerprint}`` of judged outputs; without it, those of the first call here. ``"before"`` is the operation that
    makes further inputs of the timed one, once. ``"n_calls"`` go into each sample where it is given. Beside the large
    subject ``"beside"`` it uses the buffers of that one: others would not fit.

    Answers ``{"status": "ready", ...}`` as `timing.rounds.admit`, or ``{"status": "crashed", "message"}``.
    """
    candidate = loaded_candidate(request)
    device = candidate.device
    try:
        with on_device(device):
            answer = once_there_is_memory(
                device, lambda: _prepared(candidate, request), lambda: _let_go(device, request["subject"])
            )
            return {"status": "ready", **answer}
    except (CudaError, RuntimeError) as error:
        return {"status": "crashed", "message": short_message(error)}


def _let_go(device: int, subject_id: str) -> None:
    SUBJECTS.pop(subject_id, None)
    inputs_on(device).clear()
    release_memory()


def _prepared(candidate: Candidate, request: dict[str, Any]) -> dict[str, Any]:
    n_calls, other = int(request.get("n_calls", 0)), SUBJECTS.get(request.get("beside", ""))
    if other is not None and other.is_large:
        watch = other.watch.again()
        return admit(request["subject"], replace(other, watch=watch), n_calls)
    kept = inputs_on(candidate.device)
    inputs, _ = kept.get(request["inputs"])
    if not kept.may_stay_beside(2 * sum(tensor.nbytes for tensor in inputs.values())):
        kept.clear()  # those of other cases would occupy memory
    refuse_zeros(inputs)
    if "before" in request:
        inputs = {**inputs, **made_by(candidate, request["before"], inputs)}
    subject = candidate_subject(candidate, request["operation"], inputs, request.get("expected") or {})
    if subject.is_large:
        del inputs
        release_memory()
    return admit(request["subject"], subject, n_calls)


def candidate_subject(
    candidate: Candidate, operation: Mapping[str, Any], inputs: Inputs, expected: Mapping[str, int]
) -> Subject:
    """Return an operation over several sets of buffers, and as a user calls it. `inputs` are on the device."""
    runs = [BoundRun(candidate, operation, inputs)]
    first = runs[0]
    n_bytes = first.input_bytes + first.output_bytes + first.scratch_bytes
    for _ in range(n_affordable_sets(n_bytes, candidate.device) - 1):
        try:
            runs.append(first.fresh())
        except torch.OutOfMemoryError:
            break
    operator, watch = operator_call(first.sharing(), operation), OutputWatch(runs, fingerprints(inputs), expected)
    if is_large(n_bytes):
        first.drop_given_inputs()
    return Subject(
        arm=lambda place: runs[place],
        graph_arm=lambda place: runs[place],
        arm_operator=lambda place: operator,
        n_sets=len(runs),
        is_large=is_large(n_bytes),
        device=candidate.device,
        watch=watch,
        written_bytes=first.output_bytes,
    )


def operator_call(run: BoundRun, operation: Mapping[str, Any]) -> Callable[[], None]:
    """Return a call as an operator makes it: it allocates outputs and scratch, runs the steps, all from Python, and
    frees them."""
    made = [
        (tensor["name"], run.tensors[tensor["name"]]) for tensor in operation["tensors"] if tensor["role"] != "input"
    ]

    def call() -> None:
        for name, like in made:
            run.tensors[name] = torch.empty_like(like)
        run()
        run.tensors.update(made)

    return call


class OutputWatch:
    """Checks that timed calls do the judged work: in every block the outputs of one random set of buffers are poisoned
    before and compared after."""

    def __init__(self, runs: list[BoundRun], inputs: Mapping[str, int], expected: Mapping[str, int]) -> None:
        """`inputs` are the fingerprints of the inputs, `expected` those of the outputs."""
        self._runs, self._draw = runs, random.Random()
        self._inputs = inputs
        self._expected = dict(expected)
        runs[0].poison()
        self._poisoned = runs[0].output_fingerprints()
        self._watched = 0
        self._n_checked = self._n_unequal = 0
        self._difference = 0.0

    def again(self) -> OutputWatch:
        """Return another watch of the same runs."""
        return OutputWatch(self._runs, self._inputs, self._expected)

    def captured(self, places: Sequence[int]) -> dict[int, Results]:
        """Return the results of calls that a graph has just captured, by set of buffers: those of one of them where
        library steps made them, as each that is kept occupies memory."""
        are_own = all(self._runs[place].has_own_results for place in places)
        chosen = places if are_own else [self._draw.choice(places)]
        return {place: self._runs[place].output_tensors() for place in chosen}

    def before_block(self, calls: Sequence[tuple[int, Results]]) -> None:
        """Poison the results of one of the calls of the block, as `Subject.intact_results` has them."""
        if not self._expected:
            self._expected = self._runs[0].output_fingerprints()
        self._watched, results = self._draw.choice(calls)
        run = self._runs[self._watched]
        run.poison()
        run.tensors.update(results)
        for tensor in run.output_tensors().values():
            tensor.view(-1).view(torch.uint8).fill_(POISON_BYTE)

    def after_block(self) -> None:
        """Compare the results of the watched call with those of the judged call; where they differ, with those of an
        untimed call."""
        run = self._runs[self._watched]
        self._n_checked += 1
        found = run.output_fingerprints()
        if found == self._poisoned and any(tensor.numel() for tensor in run.output_tensors().values()):
            self._n_unequal, self._difference = self._n_unequal + 1, float("inf")
            return
        if found == self._expected:
            return
        self._n_unequal += 1
        other = self._runs[self._watched - 1] if len(self._runs) > 1 else run.fresh()
        other.poison()
        other()
        for name, tensor in run.output_tensors().items():
            self._difference = max(self._difference, spread(other.output_tensors()[name], tensor)["relative_l2"])

    def report(self) -> dict[str, Any]:
        """Return ``{"n_checked", "n_unequal", "relative_difference", "changed_inputs", "overrun"}``. The difference is
        the largest ||now - other|| / ||other|| of an output whose bytes differed from those of the first call; infinite
        where NaNs are in other places, or nothing was written."""
        return {
            "n_checked": self._n_checked,
            "n_unequal": self._n_unequal,
            "relative_difference": self._difference,
            "changed_inputs": sorted({name for run in self._runs for name in run.changed_inputs(self._inputs)}),
            "overrun": sorted({name for run in self._runs for name in run.overrun()}),
        }
