"""The methods and command arguments that are ours alone. `docs/protocol.md` is this file in words, and a test compares.

A client without them has all main features: everything here only adds.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

Direction = Literal["client to server", "server to client"]
JobKind = Literal["optimize", "optimize_lines", "resume", "check", "profile", "estimate"]
JobState = Literal["queued", "running", "finished", "failed", "cancelled"]


@attrs.frozen
class TrustParams:
    """Whether the user trusts the workspace. Until a client says so, nothing runs unless it is asked for."""

    trusted: bool


@attrs.frozen
class JobParams:
    """Where a job is. `run` is empty until it has one, and `symbol` where it is about no target. Sent only to a client
    whose capabilities have ``experimental.kernelLsp.jobs``."""

    job: str
    kind: JobKind
    state: JobState
    title: str
    percentage: int | None = None
    message: str = ""
    best_us: float | None = None
    cost_usd: float = 0.0
    run: str = ""
    uri: str = ""
    symbol: str = ""


@attrs.frozen
class RunEventParams:
    """What a run told: an event as `kernel_lsp/core/event.py` describes it. Sent only to a client whose capabilities
    have ``experimental.kernelLsp.events``."""

    job: str
    run: str
    event: dict[str, Any]


@attrs.frozen
class FolderParams:
    """A file or folder of the workspace that the question is about."""

    uri: str


@attrs.frozen
class RunItem:
    """One run of the archive, newest first. `result` is its end in words, empty while there is none."""

    run: str
    target: str
    uri: str
    symbol: str
    status: Literal["running", "interrupted", "finished", "failed"]
    started: str
    device: str
    has_kernel: bool
    result: str


@attrs.frozen
class RunsResult:
    """The runs of a workspace."""

    runs: list[RunItem]


@attrs.frozen
class TargetItem:
    """Something in a file that can be optimized. `line` is 0-based; `inputs` are its shapes, empty when none are
    said."""

    uri: str
    symbol: str
    is_module: bool
    line: int
    inputs: str


@attrs.frozen
class TargetsResult:
    """The targets below a folder. `is_complete` is false when there were more files than are looked at."""

    targets: list[TargetItem]
    is_complete: bool


@attrs.frozen
class ReportResult:
    """A run's report: `data` as ``kernel-lsp report RUN --json`` prints it, and the page that shows it."""

    run: str
    data: dict[str, Any]
    html: str


@attrs.frozen
class StatusParams:
    """Nothing is asked."""


@attrs.frozen
class StatusResult:
    """What the server is doing: its jobs, and its helper processes (0 for none)."""

    jobs: list[JobParams]
    n_documents: int
    trusted: bool | None
    analyst_pid: int
    engine_pids: list[int]


@attrs.frozen
class ChatMessage:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@attrs.frozen
class ChatParams:
    """What a run asks the editor's own model. `purpose` is ``translate``, ``propose``, ``repair``, ``reformat`` or
    ``judge``. `temperature` and `max_tokens` are wishes: not every editor can pass them on."""

    job: str
    purpose: str
    messages: list[ChatMessage]
    temperature: float
    max_tokens: int


@attrs.frozen
class ChatResult:
    """How that ended. `text` is the whole reply, however it came; otherwise `message` says why there is none. The run
    asks again after ``quota`` and ``failed``, a few times, and later each time. Tokens are 0 where they were not
    counted."""

    outcome: Literal["replied", "no_model", "no_consent", "quota", "refused", "cancelled", "failed"]
    model: str = ""
    text: str = ""
    message: str = ""
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0


@attrs.frozen
class TargetArguments:
    """The argument of commands on a target. `kernel` is the URI of a `.cu` file that `optimize` begins from."""

    uri: str
    symbol: str
    kernel: str = ""


@attrs.frozen
class LinesArguments:
    """The argument of `optimizeLines`: whole statements of a target, by 0-based lines, both inclusive."""

    uri: str
    symbol: str
    first_line: int
    last_line: int


@attrs.frozen
class DocumentArguments:
    """The argument of commands on a kernel file."""

    uri: str


@attrs.frozen
class JobArguments:
    """The argument of `cancel`: without it the newest job."""

    job: str | None = None


@attrs.frozen
class RunArguments:
    """The argument of commands on a run. ``last`` is the newest of the workspace of `uri`."""

    uri: str
    run: str = "last"


@attrs.frozen
class ExplainArguments:
    """The argument of `explain`: a finding's code, e.g. ``KL101`` or ``out-of-bounds-read``."""

    code: str


@attrs.frozen
class JobStarted:
    """What a command that starts a job answers, at once."""

    job: str


@attrs.frozen
class Method:
    """One method of ours. `result` is None for a notification."""

    name: str
    direction: Direction
    params: type
    result: type | None
    summary: str


@attrs.frozen
class Command:
    """One command for `workspace/executeCommand`. `argument` is what its only argument holds."""

    name: str
    argument: type
    result: type | None
    summary: str


METHODS = (
    Method(
        "kernelLsp/didChangeTrust",
        "client to server",
        TrustParams,
        None,
        "The user granted or withdrew trust. The first word on it is `initializationOptions.trusted`.",
    ),
    Method(
        "kernelLsp/status",
        "client to server",
        StatusParams,
        StatusResult,
        "What the server is doing.",
    ),
    Method(
        "kernelLsp/jobChanged",
        "server to client",
        JobParams,
        None,
        "A job was queued, started, got further or ended. Beside the standard work-done progress.",
    ),
    Method(
        "kernelLsp/runEvent",
        "server to client",
        RunEventParams,
        None,
        "What a run told, as it happens. A report that is open follows it.",
    ),
    Method(
        "kernelLsp/runs",
        "client to server",
        FolderParams,
        RunsResult,
        "The runs in the archive of the workspace that `uri` is in. None in a workspace that is not trusted.",
    ),
    Method(
        "kernelLsp/targets",
        "client to server",
        FolderParams,
        TargetsResult,
        "What can be optimized in the Python files below a folder. They are read, not run.",
    ),
    Method(
        "kernelLsp/report",
        "client to server",
        RunArguments,
        ReportResult,
        "Everything about a run, also while it goes on.",
    ),
    Method(
        "kernelLsp/completeChat",
        "server to client",
        ChatParams,
        ChatResult,
        "A run whose `models` name `editor` asks the editor's own model. Sent only to a client whose capabilities have "
        "`experimental.kernelLsp.languageModel`. One that nobody waits for any more is cancelled by `$/cancelRequest`.",
    ),
)

COMMANDS = (
    Command("kernelLsp.optimize", TargetArguments, JobStarted, "Optimize a target to CUDA."),
    Command("kernelLsp.optimizeWithBackward", TargetArguments, JobStarted, "The same, with its backward."),
    Command(
        "kernelLsp.optimizeLines",
        LinesArguments,
        JobStarted,
        "Make a function of some lines of a target, optimize that, and offer to call it in their place.",
    ),
    Command(
        "kernelLsp.check", DocumentArguments, JobStarted, "Compile and check a kernel file, as it is in the editor."
    ),
    Command("kernelLsp.measure", DocumentArguments, JobStarted, "Check a kernel file, and run and time it on the GPU."),
    Command(
        "kernelLsp.profile",
        DocumentArguments,
        JobStarted,
        "Find out what each line of a kernel file does. The lines get inlay hints and hovers.",
    ),
    Command("kernelLsp.estimate", TargetArguments, JobStarted, "Estimate a target and each of its lines."),
    Command("kernelLsp.cancel", JobArguments, JobStarted, "End a job and all its processes; answers which."),
    Command("kernelLsp.resume", RunArguments, JobStarted, "Go on with a run that was interrupted."),
    Command("kernelLsp.showKernel", RunArguments, None, "Show the kernel that a run ended with."),
    Command("kernelLsp.compare", RunArguments, None, "Show a run's kernel beside the PyTorch code it stands for."),
    Command("kernelLsp.report", RunArguments, None, "Write what a run found as Markdown, and show it."),
    Command("kernelLsp.explain", ExplainArguments, str, "Show what a finding is about: a rule with an example."),
)
