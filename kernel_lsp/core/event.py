"""What a run tells its listeners, in order. The command line renders them, the server translates them, the archive
keeps them, and a crashed run is replayed from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.model import SCHEMA_VERSION, Noun


class StageStarted(Noun):
    """What is being done now: before there is a run to speak of, and where one waits. Not kept in the archive."""

    kind: Literal["stage_started"] = "stage_started"
    message: str


class RunStarted(Noun):
    kind: Literal["run_started"] = "run_started"
    run_id: str
    target: str
    device: str
    target_gpu: str
    resumed: bool = False


class TaskCaptured(Noun):
    kind: Literal["task_captured"] = "task_captured"
    name: str
    summary: str
    n_nodes: int
    n_nodes_backward: int
    configurations: tuple[str, ...]
    n_uncovered: int = 0
    """Further configurations of the task's folder, which are tasks of their own."""
    notes: tuple[str, ...] = ()


class GenerationStarted(Noun):
    kind: Literal["generation_started"] = "generation_started"
    generation: int
    n_generations: int
    n_proposals: int


class CandidateProposed(Noun):
    kind: Literal["candidate_proposed"] = "candidate_proposed"
    candidate_id: str
    generation: int
    description: str


class CandidateEvaluated(Noun):
    kind: Literal["candidate_evaluated"] = "candidate_evaluated"
    candidate_id: str
    generation: int
    depth: Literal["precheck", "screen", "full"] = "full"
    outcome: str
    """The kind of the outcome: ``correct``, ``mismatch``, ..."""
    message: str
    score_us: float | None
    score_kind: Literal["measured", "estimated", "none"]
    from_archive: bool = False


class NewBest(Noun):
    kind: Literal["new_best"] = "new_best"
    candidate_id: str
    score_us: float
    score_kind: Literal["measured", "estimated"]


class ModelCalled(Noun):
    """A model was asked for proposal `slot`. `outcome` is ``replied`` or why there is no reply. `run_cost_usd` is what
    the run has spent so far; `cost_usd` is None where no price is known."""

    kind: Literal["model_called"] = "model_called"
    slot: int
    purpose: str
    model: str
    outcome: str
    message: str = ""
    n_prompt_tokens: int
    n_reply_tokens: int
    cost_usd: float | None
    run_cost_usd: float
    n_run_calls: int
    budget_usd: float | None = None
    from_archive: bool = False


class ProposalDropped(Noun):
    """Proposal `slot` brought no kernel to measure: no reply, none that can be read, a program that is known already,
    or one that the judges hold back from the hardware."""

    kind: Literal["proposal_dropped"] = "proposal_dropped"
    slot: int
    generation: int
    reason: Literal["failed", "unreadable", "duplicate", "held_back"]
    message: str


class CandidateJudged(Noun):
    """What the judges think, by judge: the probability that there is no fault. It orders and filters what goes to the
    hardware; it never makes a candidate right or wrong."""

    kind: Literal["candidate_judged"] = "candidate_judged"
    candidate_id: str
    generation: int
    probabilities: dict[str, float]
    is_passed: bool


class FilesWritten(Noun):
    kind: Literal["files_written"] = "files_written"
    files: tuple[str, ...]


class RunFinished(Noun):
    """The end of a run that could run. `candidate_id` is None when no verified kernel was found."""

    kind: Literal["run_finished"] = "run_finished"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    candidate_id: str | None
    reason: str
    """Why this one won, or why none was found."""
    n_proposed: int
    n_built: int
    n_correct: int
    comparisons: dict[str, Comparison] = {}
    library_steps: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    stopped: str = ""
    """Why the search ended before its last generation; empty when it did not."""
    n_model_calls: int = 0
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    cost_usd: float = 0.0
    """Of the calls whose price is known."""


Event = Annotated[
    StageStarted
    | RunStarted
    | TaskCaptured
    | GenerationStarted
    | CandidateProposed
    | CandidateEvaluated
    | NewBest
    | ModelCalled
    | ProposalDropped
    | CandidateJudged
    | FilesWritten
    | RunFinished,
    Field(discriminator="kind"),
]
