"""What the engine and whoever started it say to each other: one JSON object per line, on the engine's stdin and stdout.

A request has an id of the asker's choice. It is answered once, by a `Reply` with that id; until then a job sends
`JobEvent`s under the same id. Several requests may be under way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from kernel_lsp.core.event import Event
from kernel_lsp.core.measurement import Bound, Comparison, Estimate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.verdict import CheckOutcome, Verdict
from kernel_lsp.llm.request import ModelOutcome, ModelRequest
from kernel_lsp.source.python_file import ImportStyle

SettingValues = dict[str, Any]
"""Overrides by setting name, as `kernel_lsp.config.load_settings` takes them."""


# --- requests that are jobs


class Optimize(Noun):
    """Run an optimization; nothing is written but the archive. Result: `RunResult`.

    For a notebook `target` names its file, and `cells` are the texts of its Python cells up to that of the symbol:
    what they define becomes a generated file. `kernel` is one to begin from: the file, or `kernel_text` as if it
    stood there. `has_editor_model`: whoever asks answers `ModelAsked`."""

    method: Literal["optimize"] = "optimize"
    id: str
    directory: Path
    target: str
    backward: bool = False
    cells: tuple[str, ...] = ()
    kernel: Path | None = None
    kernel_text: str | None = None
    settings: SettingValues = {}
    has_editor_model: bool = False


class OptimizeLines(Noun):
    """Optimize the statements of `target` in the lines ``[first_line, last_line]``, 1-based, as a function of their own
    in a generated file. Result: `RunResult` with what takes their place."""

    method: Literal["optimize_lines"] = "optimize_lines"
    id: str
    directory: Path
    target: str
    first_line: int
    last_line: int
    settings: SettingValues = {}
    has_editor_model: bool = False


class Resume(Noun):
    """Go on with a run. `run_id` may be ``last``. Result: `RunResult`."""

    method: Literal["resume"] = "resume"
    id: str
    directory: Path
    run_id: str = "last"
    has_editor_model: bool = False


class Check(Noun):
    """Check a kernel: the file, or `text` as if it stood in the file. Result: `CheckResult`."""

    method: Literal["check"] = "check"
    id: str
    directory: Path
    kernel: Path
    text: str | None = None
    target: str | None = None
    settings: SettingValues = {}


class ProfileKernel(Noun):
    """Find out what each line of a kernel does, on the GPU where there is one, on the executor where not: of the file,
    or of `text` as if it stood in the file. Result: `ProfileResult`."""

    method: Literal["profile"] = "profile"
    id: str
    directory: Path
    kernel: Path
    text: str | None = None
    settings: SettingValues = {}


class EstimateTarget(Noun):
    """Capture a target, which imports its file, and estimate each of its lines. Result: `TargetEstimate`. `cells` as
    for `Optimize`; lines are then those of the cells put together, from 1. With `as_captured` the target is taken as it
    was captured last, where this engine has done that: nothing is imported then, and the answer comes at once."""

    method: Literal["estimate"] = "estimate"
    id: str
    directory: Path
    target: str
    cells: tuple[str, ...] = ()
    as_captured: bool = False
    settings: SettingValues = {}


JobRequest = Optimize | OptimizeLines | Resume | Check | ProfileKernel | EstimateTarget


# --- requests that are answered at once


class Cancel(Noun):
    """End a job: all its processes within a second. Result: `Done`; the job's own reply says that it was cancelled."""

    method: Literal["cancel"] = "cancel"
    id: str
    job: str


class AnswerModel(Noun):
    """What became of a `ModelAsked`. Result: `Done`; `found` is False when the job is gone."""

    method: Literal["answer_model"] = "answer_model"
    id: str
    job: str
    call: str
    outcome: ModelOutcome


class ListRuns(Noun):
    """The runs in a workspace's archive, newest first. Result: `RunList`."""

    method: Literal["runs"] = "runs"
    id: str
    directory: Path


class GetResult(Noun):
    """What a finished run would write. Result: `RunResult`."""

    method: Literal["result"] = "result"
    id: str
    directory: Path
    run_id: str = "last"


class GetReport(Noun):
    """Everything about a run, also while it goes on, as data and as one HTML page. Result: `ReportPage`."""

    method: Literal["report"] = "report"
    id: str
    directory: Path
    run_id: str = "last"


Request = Annotated[
    Optimize
    | OptimizeLines
    | Resume
    | Check
    | ProfileKernel
    | EstimateTarget
    | Cancel
    | AnswerModel
    | ListRuns
    | GetResult
    | GetReport,
    Field(discriminator="method"),
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
JOB_METHODS = ("optimize", "optimize_lines", "resume", "check", "profile", "estimate")


# --- results


class Done(Noun):
    """Nothing more to say. `found` is False when there was nothing to do it to."""

    found: bool = True


class RunSummary(Noun):
    """One run of the archive. `file` (absolute) and `symbol` are its target's, `name` is its operator's, with its
    files in `out`. `comparisons` and `library_steps` are those of its winner; empty without one."""

    run_id: str
    target: str
    file: str
    symbol: str
    status: str
    """``running`` (or killed), ``interrupted`` or ``finished``."""
    started: str
    name: str = ""
    out: Path = Path()
    backward: bool = False
    candidate_id: str | None = None
    reason: str = ""
    device: str = ""
    comparisons: dict[str, Comparison] = {}
    library_steps: tuple[str, ...] = ()

    @property
    def is_resumable(self) -> bool:
        return self.status != "finished"


class RunList(Noun):
    runs: tuple[RunSummary, ...]


class ResultFile(Noun):
    """A file as it would be written. `path` is absolute."""

    path: Path
    text: str


class ExtractedLines(Noun):
    """Lines as the function `name`, and what takes their place; see `kernel_lsp.source.extraction.Extraction`.
    `import_line` is how many lines stand above where one more import goes."""

    name: str
    function: str
    function_line: int
    call: str
    first_line: int
    last_line: int
    replaced: str
    """The text of these lines."""
    global_names: tuple[str, ...] = ()
    import_line: int
    import_style: ImportStyle


class Origin(Noun):
    """What a generated file was made of: the user's file, and the lines when it was not all of it."""

    file: Path
    lines: ExtractedLines | None = None


class RunResult(Noun):
    """How a run ended. `files` are empty when no verified kernel was found; `problem` says why they cannot be written
    where they belong."""

    summary: RunSummary
    files: tuple[ResultFile, ...] = ()
    problem: str = ""
    lines: ExtractedLines | None = None
    """Of the user's file, when only they were optimized."""


class ReportPage(Noun):
    """A run's report: `data` is a `kernel_lsp.export.report.RunReport`, which `html` shows."""

    run_id: str
    data: dict[str, Any]
    html: str


class CheckResult(Noun):
    kernel: Path
    verdict: Verdict


class ProfileResult(Noun):
    """A kernel's profile; without a `report` the `outcome` says why there is none."""

    kernel: Path
    report: ProfileReport | None = None
    outcome: CheckOutcome | None = None


class LineEstimate(Noun):
    """What one line of the user's code costs in eager PyTorch. `share` is of the whole target's time, 0 to 1."""

    file: str
    line: int
    text: str
    operations: tuple[str, ...]
    time_us: float
    low_us: float
    high_us: float
    floor_us: float
    """What moving its bytes, or its arithmetic, takes at best on the same GPU."""
    bound: Bound
    share: float
    bytes_moved: int
    n_operations: int
    n_launches: int


class TargetEstimate(Noun):
    """A target's predicted time. `floor_us` is the least that its inputs and outputs take to move, or its arithmetic to
    do, on the same GPU."""

    target: str
    estimate: Estimate
    floor_us: float
    lines: tuple[LineEstimate, ...]
    notes: tuple[str, ...] = ()


# --- what the engine says


class JobQueued(Noun):
    """The job waits for `n_before` others on its device."""

    kind: Literal["job_queued"] = "job_queued"
    n_before: int


class JobStarted(Noun):
    kind: Literal["job_started"] = "job_started"


class ModelAsked(Noun):
    """The job asks the editor's own model, and waits for an `AnswerModel` with the same `call`."""

    kind: Literal["model_asked"] = "model_asked"
    call: str
    request: ModelRequest


class ModelDropped(Noun):
    """The job waits for the answer to this call no longer."""

    kind: Literal["model_dropped"] = "model_dropped"
    call: str


class PromptWaits(Noun):
    """The model is a person: `prompt` is a file to take to any chat, `reply` where its answer is waited for."""

    kind: Literal["prompt_waits"] = "prompt_waits"
    prompt: Path
    reply: Path


class PromptOver(Noun):
    """There is a reply to this prompt, or none is waited for any more."""

    kind: Literal["prompt_over"] = "prompt_over"
    prompt: Path


JobNews = JobQueued | JobStarted | ModelAsked | ModelDropped | PromptWaits | PromptOver | Event
"""What a job says before its end. Beside the run's own events, none of it is archived."""


class JobEvent(Noun):
    job: str
    event: JobNews


ProblemKind = Literal["user", "environment", "busy", "internal", "cancelled", "died", "engine_died", "protocol"]


class Problem(Noun):
    """Why there is no result. ``died``: the job's process ended by itself, or with its engine's orderly end;
    ``engine_died``: the engine did; ``protocol``: the request was none."""

    kind: ProblemKind
    message: str
    file: str | None = None
    line: int | None = None
    next_step: str = ""


class Reply(Noun):
    """Exactly one of `result` and `error`. `id` is empty for a line that had none."""

    id: str
    result: dict[str, Any] | None = None
    error: Problem | None = None
