"""Events of a run, in order. The command line renders them, the server translates them, the archive keeps them, and a
crashed run is replayed from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.recommendation import Recommendation
from kernel_lsp.core.verdict import ConfigurationOutcome


class StageStarted(Noun):
    """Start of a stage before the run exists, or while it waits. Not archived."""

    kind: Literal["stage_started"] = "stage_started"
    message: str


class RunStarted(Noun):
    kind: Literal["run_started"] = "run_started"
    run_id: str
    target: str
    device: str
    target_gpu: str
    resumed: bool = False
    digest: str = ""
    """Digest of the target's text (`kernel_lsp/source/python_file.py`)."""


class TaskCaptured(Noun):
    kind: Literal["task_captured"] = "task_captured"
    name: str
    summary: str
    n_nodes: int
    n_nodes_backward: int
    configurations: tuple[str, ...]
    n_uncovered: int = 0
    """Further configurations of the task's folder, each of which is a separate task."""
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
    depth: Literal["precheck", "rank", "screen", "full"] = "full"
    outcome: str
    """Kind of the outcome: ``correct``, ``mismatch``, ..."""
    message: str
    score_us: float | None
    score_kind: Literal["measured", "estimated", "none"]
    from_archive: bool = False


class NewBest(Noun):
    kind: Literal["new_best"] = "new_best"
    candidate_id: str
    score_us: float
    score_kind: Literal["measured", "estimated"]


class CandidateVerified(Noun):
    """A candidate passed the full check while the search goes on: it can be used at once."""

    kind: Literal["candidate_verified"] = "candidate_verified"
    candidate_id: str
    score_us: float
    score_kind: Literal["measured", "estimated"]
    advice: str = ""
    """The headline of the recommendation where that is not to apply it, e.g. ``keep torch.compile: 0.84x``."""


class ModelCalled(Noun):
    """A model was asked for proposal `slot`. `outcome` is ``replied`` or the reason for a missing reply. `run_cost_usd`
    is the run's spending so far; `cost_usd` is None when the price is unknown."""

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
    """Proposal `slot` gave no kernel to measure: no reply, an unreadable one, a duplicate program, or one that the
    judges filtered out."""

    kind: Literal["proposal_dropped"] = "proposal_dropped"
    slot: int
    generation: int
    reason: Literal["failed", "unreadable", "duplicate", "held_back"]
    message: str


class CandidateJudged(Noun):
    """Judges' estimates, by judge: the probability that the candidate is correct. They order and filter what goes to
    the hardware, and never decide correctness."""

    kind: Literal["candidate_judged"] = "candidate_judged"
    candidate_id: str
    generation: int
    probabilities: dict[str, float]
    is_passed: bool


class FilesWritten(Noun):
    kind: Literal["files_written"] = "files_written"
    files: tuple[str, ...]


class RunFinished(Noun):
    """End of a run. `candidate_id` is None when no verified kernel was found."""

    kind: Literal["run_finished"] = "run_finished"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    candidate_id: str | None
    reason: str
    """Reason for the winner, or for its absence."""
    n_proposed: int
    n_built: int
    n_correct: int
    comparisons: dict[str, Comparison] = {}
    recommendation: Recommendation | None = None
    """Advice to use the winner or to keep PyTorch; None without times."""
    library_steps: tuple[str, ...] = ()
    configurations: tuple[ConfigurationOutcome, ...] = ()
    """The winner's support for each configuration of the task's folder, where that has several."""
    files: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    stopped: str = ""
    """Reason for an early stop; empty when the last generation was reached."""
    is_cut_short: bool = False
    """The time limit for candidates ended the search."""
    stages_s: dict[str, float] = {}
    """Seconds of the winner's full check, by stage; concurrent stages say so."""
    n_model_calls: int = 0
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    cost_usd: float = 0.0
    """Cost of the calls with a known price, in US dollars."""


Event = Annotated[
    StageStarted
    | RunStarted
    | TaskCaptured
    | GenerationStarted
    | CandidateProposed
    | CandidateEvaluated
    | NewBest
    | CandidateVerified
    | ModelCalled
    | ProposalDropped
    | CandidateJudged
    | FilesWritten
    | RunFinished,
    Field(discriminator="kind"),
]
