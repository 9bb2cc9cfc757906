"""Messages between the engine and its client: one JSON object per line, on the engine's stdin and stdout.

The client chooses a request's id. Each request gets one `Reply` with that id; until then a job sends `JobEvent`s with
the same id. Requests may overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from kernel_lsp.core.event import CandidateJudged, Event
from kernel_lsp.core.measurement import Comparison, Estimate, LineEstimate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.recommendation import Recommendation
from kernel_lsp.core.verdict import CheckOutcome, Verdict
from kernel_lsp.llm.request import ModelOutcome, ModelRequest
from kernel_lsp.source.python_file import ImportStyle

MachineForm = Literal["ptx", "sass"]
SettingValues = dict[str, Any]
"""Overrides by setting name, as `kernel_lsp.config.load_settings` takes them."""


class _Request(Noun):
    """One request, with the id that its reply repeats."""

    id: str


class _InFolder(_Request):
    """A request about a workspace, named by a folder in it."""

    directory: Path


class _Set(_InFolder):
    """A request that depends on settings."""

    settings: SettingValues = {}


class Optimize(_Set):
    """Run an optimization; only the archive is written. Result: `RunResult`.

    For a notebook `target` names its file, and `cells` are the texts of its Python cells up to that of the symbol; a
    file is generated from them. `kernel` is the file of a kernel to start from, or `kernel_text` its unsaved text.
    `has_editor_model` is true when the client answers `ModelAsked`.
    """

    method: Literal["optimize"] = "optimize"
    target: str
    backward: bool = False
    cells: tuple[str, ...] = ()
    kernel: Path | None = None
    kernel_text: str | None = None
    has_editor_model: bool = False


class OptimizeLines(_Set):
    """Optimize the statements of `target` in the lines ``[first_line, last_line]``, 1-based, as a function of their own
    in a generated file. Result: `RunResult` with what takes their place."""

    method: Literal["optimize_lines"] = "optimize_lines"
    target: str
    first_line: int
    last_line: int
    has_editor_model: bool = False


class Resume(_InFolder):
    """Resume a run. `run_id` may be ``last``. Result: `RunResult`."""

    method: Literal["resume"] = "resume"
    run_id: str = "last"
    has_editor_model: bool = False


class Check(_Set):
    """Check a kernel: the file, or `text` in place of its contents. Result: `CheckResult`."""

    method: Literal["check"] = "check"
    kernel: Path
    text: str | None = None
    target: str | None = None


class ProfileKernel(_Set):
    """Profile each line of a kernel, on the GPU if there is one, else on the executor. Profiles the file, or `text` in
    place of its contents. Result: `ProfileResult`."""

    method: Literal["profile"] = "profile"
    kernel: Path
    text: str | None = None


class EstimateTarget(_Set):
    """Capture a target, which imports its file, and estimate each of its lines. Result: `TargetEstimate`. `cells` is as
    in `Optimize`; lines then count from 1 in the concatenated cells. With `as_captured` this engine's last capture is
    reused, if there is one: nothing is imported, and the reply is immediate."""

    method: Literal["estimate"] = "estimate"
    target: str
    cells: tuple[str, ...] = ()
    as_captured: bool = False


class InferInputs(_Set):
    """Infer the pragmas that a target lacks, and try them on fake tensors. Result: `InferredInputs`. `cells` is as in
    `Optimize`."""

    method: Literal["infer_inputs"] = "infer_inputs"
    target: str
    cells: tuple[str, ...] = ()


JobRequest = Optimize | OptimizeLines | Resume | Check | ProfileKernel | EstimateTarget | InferInputs


class Cancel(_Request):
    """Cancel a job: all its processes end within a second. Result: `Done`; the job's own reply reports the
    cancellation."""

    method: Literal["cancel"] = "cancel"
    job: str


class AnswerModel(_Request):
    """Answer a `ModelAsked`. Result: `Done`; `found` is False when the job has ended."""

    method: Literal["answer_model"] = "answer_model"
    job: str
    call: str
    outcome: ModelOutcome


class TakeVerified(_Request):
    """End a run's search with the candidate of its `CandidateVerified`, which becomes the result. Result: `Done`;
    `found` is False when the job has ended."""

    method: Literal["take_verified"] = "take_verified"
    job: str


class ListRuns(_InFolder):
    """The runs in a workspace's archive, newest first. Result: `RunList`."""

    method: Literal["runs"] = "runs"


class GetResult(_InFolder):
    """Return the files that a finished run would write. Result: `RunResult`."""

    method: Literal["result"] = "result"
    run_id: str = "last"


class GetKernelRecord(_InFolder):
    """Ask what the archive knows of a kernel with this text. Result: `KernelRecord`."""

    method: Literal["kernel_record"] = "kernel_record"
    text: str


class GetMachineCode(_Set):
    """The PTX or SASS of the function at a 1-based `line` of the `text` of a kernel file. `architecture` is one such as
    ``sm_90``, empty for that of the target GPU. Result: `MachineCode`."""

    method: Literal["machine_code"] = "machine_code"
    kernel: Path
    text: str
    line: int
    form: MachineForm
    architecture: str = ""


class DraftPlan(_Request):
    """A launch plan for a text without one, for the kernel at a 0-based line, if any. Result: `PlanDraft`."""

    method: Literal["draft_plan"] = "draft_plan"
    file: Path
    text: str
    line: int = -1


class GetReport(_InFolder):
    """Return everything about a run, also of one in progress, as data and as one HTML page. Result: `ReportPage`."""

    method: Literal["report"] = "report"
    run_id: str = "last"


ToJob = AnswerModel | TakeVerified
"""Requests to a running job."""
OtherRequest = Cancel | ToJob | ListRuns | GetResult | GetReport | GetKernelRecord | GetMachineCode | DraftPlan
Request = Annotated[JobRequest | OtherRequest, Field(discriminator="method")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
JOB_METHODS = ("optimize", "optimize_lines", "resume", "check", "profile", "estimate", "infer_inputs")


class Done(Noun):
    """Acknowledgement. `found` is False when the object of the request does not exist."""

    found: bool = True


class RunSummary(Noun):
    """One run of the archive. `file` (absolute) and `symbol` identify its target; `name` is its operator's, with files
    in `out`. `comparisons`, `recommendation` and `library_steps` are those of its winner; empty without one."""

    run_id: str
    target: str
    file: str
    symbol: str
    status: str
    """``queued``, ``running``, ``interrupted`` or ``finished``."""
    started: str
    digest: str = ""
    """Digest of the target's text at the start."""
    name: str = ""
    out: Path = Path()
    backward: bool = False
    candidate_id: str | None = None
    reason: str = ""
    device: str = ""
    comparisons: dict[str, Comparison] = {}
    recommendation: Recommendation | None = None
    library_steps: tuple[str, ...] = ()

    @property
    def is_resumable(self) -> bool:
        return self.status != "finished"


class RunList(Noun):
    runs: tuple[RunSummary, ...]


class ResultFile(Noun):
    """A result file to be written. `path` is absolute."""

    path: Path
    text: str


class ExtractedLines(Noun):
    """Lines extracted as the function `name`, and their replacement; see `kernel_lsp.source.extraction.Extraction`.
    `import_line` counts the lines above the position for one more import."""

    name: str
    function: str
    function_line: int
    call: str
    first_line: int
    last_line: int
    replaced: str
    """Original text of these lines."""
    global_names: tuple[str, ...] = ()
    import_line: int
    import_style: ImportStyle


class Origin(Noun):
    """Origin of a generated file: the user's file, and the lines if it was generated from some of them."""

    file: Path
    lines: ExtractedLines | None = None


class RunResult(Noun):
    """End of a run. `files` is empty without a verified kernel; `problem` says why they cannot be written to their
    destination."""

    summary: RunSummary
    files: tuple[ResultFile, ...] = ()
    problem: str = ""
    lines: ExtractedLines | None = None
    """The extracted lines of the user's file, if only lines were optimized."""


class KernelRecord(Noun):
    """Archived results of one kernel: its deepest verdict, and what judges said of it. `run_id` and `date` are those of
    the newest run with a verdict; empty without any."""

    run_id: str = ""
    date: str = ""
    verdict: Verdict | None = None
    judged: tuple[CandidateJudged, ...] = ()


class MachineCode(Noun):
    """Code of the function in the lines ``[first_line, last_line]`` of a file, 1-based and 0 without one. `lines` has
    the file's line for each line of `text`, 0 for none; `architectures` are those to choose from. `problem` says why
    the text is empty."""

    form: MachineForm
    architecture: str
    function: str = ""
    first_line: int = 0
    last_line: int = 0
    text: str = ""
    lines: tuple[int, ...] = ()
    architectures: tuple[str, ...] = ()
    problem: str = ""


class PlanDraft(Noun):
    """The lines of a plan; empty for a text without a kernel that writes to memory."""

    text: str


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


class InferredInputs(Noun):
    """Pragmas that the target's code accepts, in the order in which the analysis of the text lists the missing ones."""

    texts: tuple[str, ...]


class TargetEstimate(Noun):
    """Predicted time of a target: `estimate` in eager mode, `compiled` with `torch.compile`. `floor_us` is its speed
    of light in microseconds: the traffic of inputs and outputs, or the arithmetic, at peak rate on the same GPU."""

    target: str
    estimate: Estimate
    compiled: Estimate | None = None
    floor_us: float
    lines: tuple[LineEstimate, ...]
    notes: tuple[str, ...] = ()


class JobQueued(Noun):
    """The job waits for `n_before` other jobs on its device."""

    kind: Literal["job_queued"] = "job_queued"
    n_before: int


class JobStarted(Noun):
    kind: Literal["job_started"] = "job_started"


class ModelAsked(Noun):
    """The job sent a prompt to the editor's own model, and waits for an `AnswerModel` with the same `call`."""

    kind: Literal["model_asked"] = "model_asked"
    call: str
    request: ModelRequest


class ModelDropped(Noun):
    """The job no longer waits for the reply to this call."""

    kind: Literal["model_dropped"] = "model_dropped"
    call: str


class PromptWaits(Noun):
    """A person is the model: `prompt` is the file to paste into a chat, `reply` the file in which the answer is
    expected."""

    kind: Literal["prompt_waits"] = "prompt_waits"
    prompt: Path
    reply: Path


class PromptOver(Noun):
    """The prompt has its reply, or the run no longer waits for one."""

    kind: Literal["prompt_over"] = "prompt_over"
    prompt: Path


JobNews = JobQueued | JobStarted | ModelAsked | ModelDropped | PromptWaits | PromptOver | Event
"""Everything that a job sends before its end. Only the run's own events are archived."""


class JobEvent(Noun):
    job: str
    event: JobNews


ProblemKind = Literal["user", "environment", "busy", "internal", "cancelled", "died", "engine_died", "protocol"]


class Problem(Noun):
    """Reason for a missing result. ``died``: the job's process ended unexpectedly, or with its engine's orderly end;
    ``engine_died``: the engine died; ``protocol``: the request was malformed."""

    kind: ProblemKind
    message: str
    file: str | None = None
    line: int | None = None
    next_step: str = ""


class Reply(Noun):
    """Exactly one of `result` and `error` is set. `id` is empty for a line without one."""

    id: str
    result: dict[str, Any] | None = None
    error: Problem | None = None
