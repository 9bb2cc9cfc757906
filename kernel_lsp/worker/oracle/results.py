"""Compute a case's expected results: in fp64, by PyTorch at the declared dtypes, and in fp64 on inputs perturbed by one
rounding. Uses a GPU where one is lent, which no candidate uses meanwhile."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import torch

from ..capture.captured import Captured
from ..capture.program import quiet
from ..cases.case_values import Case
from ..failure import Failure
from ..hide_cuda import without_cuda
from .alternatives import Answers, accept_alternatives, either
from .fp64_reference import CPU, ReferenceRun
from .perturbation import response
from .sampling import Sample
from .selection_outputs import Chosen, chosen_among


@dataclass(frozen=True)
class Results:
    """The expected outputs: in fp64, by PyTorch at the declared dtypes, and in fp64 on inputs perturbed by one rounding
    (empty where that makes no sense).

    `note` describes a fallback; `eager_bytes` is PyTorch's memory beyond its inputs on a GPU. `undecided` masks
    unspecified integers of each result, and gradients that depend on a NaN's branch (empty where there are none).
    `may_lose_nans`: the result has numbers in place of NaNs that are correct as well (empty where none has). `chosen`
    are the elements that each result's unspecified integers index (empty where no order decides).
    """

    expected: list[torch.Tensor]
    native: list[torch.Tensor]
    perturbed: list[torch.Tensor]
    note: str
    eager_bytes: int = 0
    undecided: list[torch.Tensor] = field(default_factory=list)
    may_lose_nans: list[bool] = field(default_factory=list)
    chosen: list[Chosen | None] = field(default_factory=list)

    def sliced(self, sample: Sample) -> Results:
        """Return the slices of results without `chosen` elements."""
        of = sample.of_results
        return replace(
            self,
            expected=of(self.expected),
            native=of(self.native),
            perturbed=of(self.perturbed),
            undecided=of(self.undecided),
        )


def results_of(captured: Captured, case: Case, family: str, seed: int, is_backward: bool, gpu: int | None) -> Results:
    """Return the results of a case, computed on the GPU of that index or on the CPU, and left there. Fills in the
    case's gradients. Raises TargetFailure for sizes or values that the user's code refuses."""
    run = ReferenceRun(captured, family, seed, is_backward)
    with quiet(), without_cuda():
        if gpu is not None:
            with contextlib.suppress(Failure, RuntimeError):
                # E.g. a tensor that the code creates on the CPU, or too little memory: falls back to the CPU.
                return _on_gpu(run, case, gpu)
        return _results(run, case, CPU)


def give_back_memory(gpu: int | None) -> None:
    """Free unused memory, which a candidate may need."""
    if gpu is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# --- below: running


def _on_gpu(run: ReferenceRun, case: Case, gpu: int) -> Results:
    """Compute on the GPU with TF32 off: its precision is below the declared dtype's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda", gpu)
    with torch.cuda.device(device), torch.device(device):
        return _results(run, case, device)


def _results(run: ReferenceRun, case: Case, device: torch.device) -> Results:
    here = case.on(device, run.captured.kept)
    expected = run.expected(here, case)
    here = replace(here, gradients=[gradient.to(device) for gradient in case.gradients])
    before = _start_counting(device)
    native, note = run.native(here, expected)
    eager_bytes = _peak_bytes(device) - before
    answers = Answers(run, here, native, expected)
    perturbed = [] if answers.is_exact else response(run, here, expected)
    accept_alternatives(answers)
    chosen = chosen_among(run.captured, here, answers.by_order, answers.any_of) if answers.by_order else []
    marks = either(answers.by_order, answers.any_of)
    return Results(answers.expected, native, perturbed, note, eager_bytes, marks, answers.lost, chosen)


def _start_counting(device: torch.device) -> int:
    """Return the bytes in use on a GPU, the base of a peak; 0 on the CPU, where memory is not counted."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
