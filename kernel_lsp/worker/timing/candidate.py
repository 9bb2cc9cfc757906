"""The command `prepare_candidate`: prepare a loaded candidate's operation as a subject of timing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..failure import short_message
from ..gpu.fingerprints import fingerprints
from ..gpu.inputs import inputs_on
from ..gpu.load import loaded_candidate
from ..gpu.run import POISON_BYTE, BoundRun, Candidate
from ..shipped.cuda_runtime import CudaError, on_device
from .rounds import admit
from .subject import ONE_SET_BYTES, Subject, n_affordable_sets, refuse_zeros

Inputs = Mapping[str, torch.Tensor]


def prepare_candidate(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare ``{"subject", "candidate", "operation", "inputs": [file entries]}``, and ``"expected": {output:
    fingerprint}`` of judged outputs; without it, those of the first call here. ``"n_calls"`` go into each sample where
    it is given.

    Answers ``{"status": "ready", ...}`` as `timing.rounds.admit`, or ``{"status": "crashed", "message"}``.
    """
    candidate = loaded_candidate(request)
    try:
        with on_device(candidate.device):
            inputs, _ = inputs_on(candidate.device).get(request["inputs"])
            if sum(tensor.numel() * tensor.element_size() for tensor in inputs.values()) >= ONE_SET_BYTES // 4:
                inputs_on(candidate.device).clear()  # those of other cases would occupy memory
            refuse_zeros(inputs)
            subject = candidate_subject(candidate, request["operation"], inputs, request.get("expected") or {})
            return {"status": "ready", **admit(request["subject"], subject, int(request.get("n_calls", 0)))}
    except (CudaError, RuntimeError) as error:
        return {"status": "crashed", "message": short_message(error)}


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
    operator, watch = operator_call(first.sharing(), operation), OutputWatch(runs, inputs, expected)
    return Subject(
        arm=lambda place: runs[place],
        graph_arm=watch.capturing,
        arm_operator=lambda place: operator,
        n_sets=len(runs),
        device=candidate.device,
        watch=watch,
        written_bytes=first.output_bytes,
    )


def operator_call(run: BoundRun, operation: Mapping[str, Any]) -> Callable[[], None]:
    """Return a call as an operator makes it: it allocates outputs and scratch, then runs the steps, all from Python."""
    made = [
        (tensor["name"], run.tensors[tensor["name"]]) for tensor in operation["tensors"] if tensor["role"] != "input"
    ]

    def call() -> None:
        for name, like in made:
            run.tensors[name] = torch.empty_like(like)
        run()

    return call


class OutputWatch:
    """Checks that timed calls do the judged work: in every block the outputs of one random set of buffers are poisoned
    before and compared after."""

    def __init__(self, runs: list[BoundRun], inputs: Inputs, expected: Mapping[str, int]) -> None:
        self._runs, self._draw = runs, random.Random()
        self._inputs = fingerprints(inputs)
        self._expected = dict(expected)
        self._poisoned = runs[0].output_fingerprints()
        self._captured: dict[int, dict[str, torch.Tensor]] = {}
        self._watched = 0
        self._n_checked = self._n_unequal = 0
        self._difference = 0.0

    def capturing(self, place: int) -> Callable[[], None]:
        """Return a call for a graph to capture. The results of library steps are the graph's: blocks replay the first
        capture of a set."""

        def call() -> None:
            self._runs[place]()
            self._captured.setdefault(place, dict(self._runs[place].tensors))

        return call

    def before_block(self, places: list[int]) -> None:
        """Poison one of the sets that the block will use."""
        if not self._expected:
            self._expected = self._runs[0].output_fingerprints()
        self._watched = self._draw.choice(places)
        run = self._runs[self._watched]
        run.poison()
        run.tensors.update(self._captured.get(self._watched, {}))
        for tensor in run.output_tensors().values():
            tensor.view(-1).view(torch.uint8).fill_(POISON_BYTE)

    def after_block(self) -> None:
        """Compare its outputs with those of the judged call."""
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
        if len(self._runs) == 1:
            other()
        for name, tensor in run.output_tensors().items():
            self._difference = max(self._difference, _relative_difference(tensor, other.output_tensors()[name]))

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


def _relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    first, second = one.double(), other.double()
    if not torch.equal(first.isnan(), second.isnan()):
        return float("inf")
    difference = torch.nan_to_num(first - second, nan=0.0).norm()
    return float(difference / torch.nan_to_num(second).norm().clamp_min(1e-300))
