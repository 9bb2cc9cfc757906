"""Our own protocol methods and command arguments. `docs/protocol.md` is generated from this file, and a test compares
them.

All main features work without them: every extension is optional.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

Direction = Literal["client to server", "server to client"]
JobKind = Literal["optimize", "optimize_lines", "resume", "check", "profile", "estimate", "infer_inputs"]
JobState = Literal["queued", "running", "finished", "failed", "cancelled"]


@attrs.frozen
class TrustParams:
    """Tell the server whether the user trusts the workspace. Until then only explicit commands run code."""

    trusted: bool


@attrs.frozen
class JobParams:
    """State of a job. `run` is empty until it has one, `symbol` if it has no target. Sent only to a client with the
    capability ``experimental.kernelLsp.jobs``."""

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
    """Event of a run, as described in `kernel_lsp/core/event.py`. Sent only to a client with the capability
    ``experimental.kernelLsp.events``."""

    job: str
    run: str
    event: dict[str, Any]


@attrs.frozen
class FolderParams:
    """File or folder of the workspace to query."""

    uri: str


@attrs.frozen
class RunItem:
    """One run of the archive, newest first. `result` describes its outcome, empty while there is none."""

    run: str
    target: str
    uri: str
    symbol: str
    status: Literal["queued", "running", "interrupted", "finished", "failed"]
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
    """Code in a file that can be optimized. `line` is 0-based; `inputs` describes its shapes, empty when unknown."""

    uri: str
    symbol: str
    is_module: bool
    line: int
    inputs: str


@attrs.frozen
class TargetsResult:
    """Targets below a folder. `is_complete` is false when the scan stopped at its file limit."""

    targets: list[TargetItem]
    is_complete: bool


@attrs.frozen
class ReportResult:
    """Report of a run: `data` as printed by ``kernel-lsp report RUN --json``, and the HTML page that shows it."""

    run: str
    data: dict[str, Any]
    html: str


@attrs.frozen
class StatusParams:
    """No parameters."""


@attrs.frozen
class StatusResult:
    """Server status: its jobs, and the ids of its helper processes (0 for none)."""

    jobs: list[JobParams]
    n_documents: int
    trusted: bool | None
    analyst_pid: int
    engine_pids: list[int]


@attrs.frozen
class CommandLine:
    """A shell command to offer, and the folder to run it in."""

    command: str
    folder: str


@attrs.frozen
class ChatMessage:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@attrs.frozen
class ChatParams:
    """Prompt of a run for the editor's own model. `purpose` is ``translate``, ``propose``, ``repair``, ``reformat`` or
    ``judge``. `temperature` and `max_tokens` are hints: not every editor can pass them on."""

    job: str
    purpose: str
    messages: list[ChatMessage]
    temperature: float
    max_tokens: int


@attrs.frozen
class ChatResult:
    """Reply to the prompt. `text` is the whole reply, empty on failure; `message` then gives the reason. The run
    retries after ``quota`` and ``failed``, a few times with increasing delays. Token counts are 0 if unknown."""

    outcome: Literal["replied", "no_model", "no_consent", "quota", "refused", "cancelled", "failed"]
    model: str = ""
    text: str = ""
    message: str = ""
    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0


@attrs.frozen
class TargetArguments:
    """Argument of commands on a target. `kernel` is the URI of a `.cu` file from which `optimize` starts."""

    uri: str
    symbol: str
    kernel: str = ""


@attrs.frozen
class LinesArguments:
    """Argument of `optimizeLines`: whole statements of a target, as 0-based, inclusive lines."""

    uri: str
    symbol: str
    first_line: int
    last_line: int


@attrs.frozen
class DocumentArguments:
    """Argument of commands on a kernel file."""

    uri: str


@attrs.frozen
class PlanArguments:
    """Argument of `addPlan`: a kernel file, and a 0-based line of the kernel to plan, by default the last launched
    one."""

    uri: str
    line: int = -1


@attrs.frozen
class MachineCodeParams:
    """Function at a 0-based line of an open kernel file. `architecture` is one such as ``sm_90``; by default that of
    the target GPU."""

    uri: str
    line: int
    form: Literal["ptx", "sass"]
    architecture: str = ""


@attrs.frozen
class MachineCodeResult:
    """Code of one function. `lines` has the file's 0-based line for each line of `text`, -1 for none. The answer is the
    same for every line from `first_line` to `last_line`. `architectures` are those to choose from. `problem` says why
    the text is empty, and what to do."""

    text: str
    lines: list[int]
    function: str
    architecture: str
    first_line: int
    last_line: int
    architectures: list[str]
    problem: str = ""


@attrs.frozen
class JobArguments:
    """Argument of `cancel` and `useNow`: the newest job by default, or the newest with a verified kernel."""

    job: str | None = None


@attrs.frozen
class HotSpotsResult:
    """Recorded targets of a workspace, the largest gain first. `command` and `date` are those of the recorded run,
    empty without one. `problem` says why a recording cannot be read."""

    spots: list[HotSpotItem]
    command: str = ""
    date: str = ""
    problem: str = ""


@attrs.frozen
class HotSpotItem:
    """A recorded target. `share` is its part of a step, `gain` the part that its kernel saves; without a known
    `speedup` (0) the most that one could save. `line` is 0-based."""

    uri: str
    symbol: str
    line: int
    share: float
    gain: float
    speedup: float
    kind: str
    calls: int
    inputs: str


@attrs.frozen
class RunArguments:
    """Argument of commands on a run. ``last`` is the newest of the workspace of `uri`."""

    uri: str
    run: str = "last"


@attrs.frozen
class ExplainArguments:
    """Argument of `explain`: a finding's code, e.g. ``KL101`` or ``out-of-bounds-read``."""

    code: str


@attrs.frozen
class JobStarted:
    """Immediate reply of a command that starts a job."""

    job: str


@attrs.frozen
class Method:
    """One of our own methods. `result` is None for a notification."""

    name: str
    direction: Direction
    params: type
    result: type | None
    summary: str


@attrs.frozen
class Command:
    """One command of `workspace/executeCommand`. `argument` is the type of its only argument."""

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
        "kernelLsp/runsChanged",
        "server to client",
        FolderParams,
        None,
        "Another program, such as the command line, wrote a run to the archive of the workspace `uri`. Sent only to a "
        "client with the capability `experimental.kernelLsp.jobs`.",
    ),
    Method(
        "kernelLsp/targets",
        "client to server",
        FolderParams,
        TargetsResult,
        "What can be optimized in the Python files below a folder. They are read, not run.",
    ),
    Method(
        "kernelLsp/hotSpots",
        "client to server",
        FolderParams,
        HotSpotsResult,
        "The targets of the run that `kernel-lsp record` noted last, by their part of a step and what a kernel saves.",
    ),
    Method(
        "kernelLsp/report",
        "client to server",
        RunArguments,
        ReportResult,
        "Everything about a run, also while it goes on.",
    ),
    Method(
        "kernelLsp/machineCode",
        "client to server",
        MachineCodeParams,
        MachineCodeResult,
        "The PTX or SASS of the function at a line of a kernel file, as it is in the editor.",
    ),
    Method(
        "kernelLsp/typeCommand",
        "server to client",
        CommandLine,
        None,
        "Type a command line into a terminal, for the user to change and run. Sent only to a client whose capabilities "
        "have `experimental.kernelLsp.terminal`; others are told it as a message.",
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

OPTIMIZE = (
    "Optimize a target to CUDA. For a target without shapes the job infers them; the prompt after it "
    "(`window/showMessageRequest`) writes them and starts the run."
)
COMMANDS = (
    Command("kernelLsp.optimize", TargetArguments, JobStarted, OPTIMIZE),
    Command("kernelLsp.optimizeWithBackward", TargetArguments, JobStarted, "The same, with its backward."),
    Command(
        "kernelLsp.optimizeLines",
        LinesArguments,
        JobStarted,
        "Make a function of some lines of a target, optimize that, and offer to call it in their place.",
    ),
    Command(
        "kernelLsp.addShapes",
        TargetArguments,
        JobStarted,
        "Infer the shapes that a target lacks, try them on fake tensors, and write them as pragmas in one edit.",
    ),
    Command(
        "kernelLsp.check", DocumentArguments, JobStarted, "Compile and check a kernel file, as it is in the editor."
    ),
    Command("kernelLsp.measure", DocumentArguments, JobStarted, "Check a kernel file, and run and time it on the GPU."),
    Command(
        "kernelLsp.addPlan",
        PlanArguments,
        None,
        "Write a launch plan at the top of a kernel file, from its kernels and its launches, as one edit.",
    ),
    Command(
        "kernelLsp.profile",
        DocumentArguments,
        JobStarted,
        "Find out what each line of a kernel file does. The lines get inlay hints and hovers.",
    ),
    Command("kernelLsp.estimate", TargetArguments, JobStarted, "Estimate a target and each of its lines."),
    Command("kernelLsp.cancel", JobArguments, JobStarted, "End a job and all its processes; answers which."),
    Command(
        "kernelLsp.useNow",
        JobArguments,
        JobStarted,
        "End a run's search with the kernel that is verified, which becomes the result; offer the result of a run that "
        "has ended. Lenses and code actions of the target have it while the run goes on.",
    ),
    Command("kernelLsp.resume", RunArguments, JobStarted, "Go on with a run that was interrupted."),
    Command("kernelLsp.showKernel", RunArguments, None, "Show the kernel that a run ended with."),
    Command("kernelLsp.compare", RunArguments, None, "Show a run's kernel beside the PyTorch code it stands for."),
    Command("kernelLsp.report", RunArguments, None, "Write what a run found as Markdown, and show it."),
    Command(
        "kernelLsp.useEverywhere",
        TargetArguments,
        None,
        "Use a target's operator at every call outside of tests: one edit of several files, shown before it is made.",
    ),
    Command(
        "kernelLsp.revertEverywhere",
        TargetArguments,
        None,
        "Take back every use of an operator, whose name is given as the symbol, in one edit of several files.",
    ),
    Command("kernelLsp.explain", ExplainArguments, str, "Show what a finding is about: a rule with an example."),
)
