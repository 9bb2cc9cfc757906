"""What a run tells its listeners, in order. The command line renders them, the server translates them, the archive
keeps them, and a crashed run is replayed from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.model import SCHEMA_VERSION, Noun


class StageStarted(Noun):
    """What is being done now, before there is a run to speak of. Not kept in the archive."""

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
    depth: Literal["screen", "full"] = "full"
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


Event = Annotated[
    StageStarted
    | RunStarted
    | TaskCaptured
    | GenerationStarted
    | CandidateProposed
    | CandidateEvaluated
    | NewBest
    | FilesWritten
    | RunFinished,
    Field(discriminator="kind"),
]
