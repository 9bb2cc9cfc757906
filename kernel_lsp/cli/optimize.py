"""`kernel-lsp optimize`: the run's events as progress, and the report at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kernel_lsp.cli import console
from kernel_lsp.cli.console import paste
from kernel_lsp.core.event import (
    CandidateEvaluated,
    CandidateJudged,
    Event,
    FilesWritten,
    GenerationStarted,
    ModelCalled,
    NewBest,
    ProposalDropped,
    RunFinished,
    RunStarted,
    StageStarted,
    TaskCaptured,
)
from kernel_lsp.core.recommendation import detail_lines, one_line
from kernel_lsp.core.words import counted
from kernel_lsp.errors import UserError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import record_run
from kernel_lsp.evolve.run.optimize import RunHandle, resume_request, start_request
from kernel_lsp.evolve.run.request import read_seed_kernel
from kernel_lsp.source.call_sites import takes_more

MODEL_OPTIONS = {"budget_usd": "--budget", "strategy": "--strategy", "judges": "--judges"}
"""Options that mean nothing without a model, by setting."""
OPTION_NAMES = {**MODEL_OPTIONS, "models": "--model", "out_directory": "--out", "target_gpu": "--gpu"}
"""Options that are not named as their setting."""


@dataclass(frozen=True)
class Recordings:
    """Files of models' replies: to record to, and to replay from."""

    record: Path | None = None
    replay: Path | None = None


def main(
    target: str | None,
    resume: str | None,
    backward: bool,
    overrides: Mapping[str, Any],
    as_json: bool,
    recordings: Recordings,
    seed_kernels: Sequence[Path] = (),
    *,
    applies_anyway: bool = False,
) -> int:
    """Run the command; returns the exit status."""

    def make_handle() -> RunHandle:
        if resume is not None:
            handle = _resumed(target, resume, backward, overrides, recordings.replay, seed_kernels)
        else:
            handle = _new(target, backward, overrides, recordings, seed_kernels)
        handle.applies_anyway = applies_anyway
        return handle

    return console.run_to_exit_status(_optimize(make_handle, as_json, recordings.record))


async def _optimize(make_handle: Callable[[], RunHandle], as_json: bool, record: Path | None) -> int:
    handle = make_handle()
    finished: RunFinished | None = None
    view = RunView()
    handle.callbacks, handle.on_prompt = {"paste": paste}, console.say_prompt
    with view:
        try:
            async for event in handle.events():
                view.show(event)
                if isinstance(event, RunFinished):
                    finished = event
        except BaseException:
            view.say_resumable(handle)
            raise
        finally:
            if record is not None:
                view.say_recorded(handle, record)
    assert finished is not None, "a run ends with RunFinished or raises"
    if as_json:
        console.print_json(finished)
    else:
        print_report(finished, handle, view.models)
    return console.EXIT_OK if finished.candidate_id is not None else console.EXIT_NO


def _new(
    target: str | None,
    backward: bool,
    overrides: Mapping[str, Any],
    recordings: Recordings,
    seed_kernels: Sequence[Path],
) -> RunHandle:
    if target is None:
        raise UserError("no target", next_step="kernel-lsp optimize model.py::MyModule")
    given = [read_seed_kernel(kernel) for kernel in seed_kernels]
    handle = start_request(Path.cwd(), target, backward, overrides, replay=recordings.replay, seed_kernels=given)
    unused = [option for name, option in MODEL_OPTIONS.items() if overrides[name] is not None]
    unused += ["--record"] if recordings.record is not None else []
    unused += ["--replay"] if recordings.replay is not None else []
    if unused and not handle.request.choices.models:
        step = "add --model M" if recordings.replay is None else "repeat the --model options of the recorded run"
        raise UserError(f"{', '.join(unused)} without a model", next_step=step)
    return handle


def _resumed(
    target: str | None,
    run: str,
    backward: bool,
    overrides: Mapping[str, Any],
    replay: Path | None,
    seed_kernels: Sequence[Path],
) -> RunHandle:
    if target is not None:
        raise UserError("give a TARGET or --resume, not both", next_step="the run remembers its target")
    ignored = [
        OPTION_NAMES.get(name, f"--{name}")
        for name, value in overrides.items()
        if value is not None and (name, value) != ("device", "auto")
    ]
    others = {"--backward": backward, "--replay": replay is not None, "--seed-kernel": bool(seed_kernels)}
    ignored += [option for option, is_given in others.items() if is_given]
    if ignored:
        raise UserError(
            f"--resume keeps the run's own options: {', '.join(ignored)} cannot be changed",
            next_step=f"kernel-lsp optimize --resume {run}, or begin a new run of the target",
        )
    return resume_request(Path.cwd(), run)


class ModelTally:
    """Counts the replies and the failures of a run's models, from its events."""

    def __init__(self) -> None:
        self.n_replies = 0
        self.is_priced = True
        """False once a call with tokens had no price."""
        self.failures: dict[str, None] = {}
        """Different failures, in order, as lines."""

    def take(self, event: ModelCalled) -> str:
        """Count a call; return the line of a failure that is new, else an empty text."""
        self.n_replies += event.outcome == "replied"
        self.is_priced &= event.cost_usd is not None or not event.n_prompt_tokens + event.n_reply_tokens
        line = f"{event.model}: {event.outcome.replace('_', ' ')}: {event.message}"
        if event.outcome == "replied" or line in self.failures:
            return ""
        self.failures[line] = None
        return line

    def consumed(self, n_tokens: tuple[int, int], cost_usd: float) -> str:
        """Return prompt and reply tokens and their cost; the tokens of a pasted or external program's reply are
        unknown."""
        if not self.n_replies and self.failures:
            return f"no reply: {next(iter(self.failures))}"
        if not sum(n_tokens):
            return "tokens and cost not known here"
        cost = f"${cost_usd:.4f}" if self.is_priced else "cost not known: set model_prices"
        return f"{n_tokens[0]} + {n_tokens[1]} tokens, {cost}"


class RunView:
    """Live progress on stderr: a bar where there is a terminal, lines where there is none. Use as a context manager."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[best]}"),
            TimeElapsedColumn(),
            console=console.stderr,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._spinner = console.stderr.status("starting")
        self._started = time.monotonic()
        self._best = self._cost = ""
        self.models = ModelTally()
        self.run_id: str | None = None

    def __enter__(self) -> RunView:
        self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.stop()
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Print an event, if it is of interest to a person."""
        match event:
            case StageStarted():
                self._start_stage(event.message)
            case RunStarted():
                self.run_id = event.run_id
                verb = "resuming run" if event.resumed else "run"
                self._say(f"{verb} {event.run_id}: {event.target} on {event.device}, for {event.target_gpu}")
            case TaskCaptured():
                self._say(f"captured {event.name}: {event.summary}")
                for note in event.notes:
                    self._say(f"  note: {note}")
            case GenerationStarted():
                self._start_generation(event)
            case CandidateEvaluated():
                self._count(event)
            case NewBest():
                self._best = f"best {event.score_us:.3g} us ({event.score_kind})"
                self._show_best()
            case ModelCalled():
                self._count_call(event)
            case ProposalDropped():
                if event.reason != "failed":  # the failed call has said why
                    self._say(f"  proposal {event.slot + 1}: {event.reason.replace('_', ' ')}: {event.message}")
                self._advance()
            case CandidateJudged():
                said = ", ".join(f"{judge} {probability:.2f}" for judge, probability in event.probabilities.items())
                self._say(f"  {event.candidate_id}: judged {said or 'by nobody'}")
            case FilesWritten():
                self._say("wrote " + ", ".join(event.files))

    def say_resumable(self, handle: RunHandle) -> None:
        """Print how to resume, after an interruption or an error."""
        if self.run_id is not None and handle.is_resumable:
            self._say(f"to go on: kernel-lsp optimize --resume {self.run_id}")

    def _start_stage(self, message: str) -> None:
        """Print the stage, with the seconds since the start on a terminal, where a spinner turns until a bar does."""
        if not console.stderr.is_terminal:
            self._say(message)
            return
        self._say(f"{time.monotonic() - self._started:5.1f} s  {message}")
        self._spinner.update(Text(message))

    def _start_generation(self, event: GenerationStarted) -> None:
        self._spinner.stop()  # a terminal shows one of them at a time
        self._progress.start()
        if self._bar is not None:
            self._progress.remove_task(self._bar)
        description = f"generation {event.generation + 1}/{event.n_generations}"
        self._bar = self._progress.add_task(description, total=event.n_proposals, best=self._best + self._cost)
        if not console.stderr.is_terminal:
            self._say(f"{description}: {counted(event.n_proposals, 'candidate')} {self._best}".rstrip())

    def say_recorded(self, handle: RunHandle, path: Path) -> None:
        """Write the run's replies to the requested file."""
        if handle.run_id is None or not handle.is_resumable:
            return
        with Archive(handle.workspace) as archive:
            n_replies = record_run(archive, handle.run_id, path)
        self._say(f"wrote {n_replies} {'reply' if n_replies == 1 else 'replies'} to {path}")

    def _count_call(self, event: ModelCalled) -> None:
        failure = self.models.take(event)
        budget = f" of ${event.budget_usd:.2f}" if event.budget_usd is not None else ""
        cost = f", ${event.run_cost_usd:.4f}{budget}" if self.models.is_priced else ", cost not known"
        self._cost = f"{cost} for {counted(event.n_run_calls, 'call')}" if event.n_run_calls else ""
        if failure:
            self._say(f"  {failure}")
        self._show_best()

    def _show_best(self) -> None:
        if self._bar is not None:
            self._progress.update(self._bar, best=self._best + self._cost)

    def _advance(self) -> None:
        if self._bar is not None:
            self._progress.update(self._bar, advance=1, best=self._best + self._cost)

    def _count(self, event: CandidateEvaluated) -> None:
        if event.depth == "full":
            self._say(f"full check of {event.candidate_id}: {event.outcome}, {event.message}")
        else:
            self._advance()
        if event.depth != "full" and event.outcome != "correct":
            self._say(f"  {event.candidate_id}: {event.outcome.replace('_', ' ')}: {event.message}")

    def _say(self, text: str) -> None:
        console.stderr.print(text, markup=False)


def print_report(finished: RunFinished, handle: RunHandle, models: ModelTally) -> None:
    """Print the capture, the candidates, the winner, its cost, its files, and the next step."""
    say = console.stdout.print
    say()
    say(f"{handle.target}", style="bold", markup=False)
    advice = finished.recommendation
    if advice is not None and advice.headline:
        say(f"  advice      {advice.sentence}", style="bold yellow", markup=False)
    if handle.task_summary:
        say(f"  captured    {handle.task_summary}", markup=False)
    counts = f"{finished.n_proposed} proposed, {finished.n_built} built, {finished.n_correct} correct"
    say(f"  candidates  {counts}", markup=False)
    if finished.n_model_calls:
        consumed = models.consumed((finished.n_prompt_tokens, finished.n_reply_tokens), finished.cost_usd)
        say(f"  models      {counted(finished.n_model_calls, 'call')}, {consumed}", markup=False)
    if finished.stopped:
        say(f"  stopped     {finished.stopped}", markup=False)
    if finished.candidate_id is None:
        say(f"  result      no verified kernel: {finished.reason}", style="yellow", markup=False)
        say(
            "  next        read the failure above; `kernel-lsp check KERNEL.cu` shows one candidate in full",
            markup=False,
        )
        return
    say(f"  verified    {handle.verified_on}", markup=False)
    say(f"  winner      {finished.candidate_id}: {finished.reason}", markup=False)
    for step in finished.library_steps:
        say(f"  library     {step} does part of the work (a vendor library, not our kernel)", markup=False)
    for name, comparison in finished.comparisons.items():
        say(f"  {name:<11} {one_line(comparison)}", markup=False)
        for line in detail_lines(comparison):
            say(f"  {'':<11} {line}", markup=False)
    for position, file in enumerate(finished.files):
        say(f"  {'files' if position == 0 else '':<11} {file}", markup=False)
    say(f"  next        {next_step(finished)}", markup=False)


def next_step(finished: RunFinished) -> str:
    """Return what to do with the run's result."""
    has_operator = any(file.endswith(".py") for file in finished.files)
    if finished.recommendation is not None and finished.recommendation.action == "keep" and not has_operator:
        return f"nothing was written; `kernel-lsp export {finished.run_id} --operator DIR` writes the kernel anyway"
    if not has_operator:
        return "read the kernel"
    use = f"`kernel-lsp use {finished.run_id}` shows the edits that put it to use"
    if any(takes_more(Path(file).parent, Path(file).stem) for file in finished.files if file.endswith(".py")):
        use = "call the operator in your code, with the tensors that the code draws or holds"
    if finished.recommendation is not None and finished.recommendation.action == "measure":
        return f"{finished.recommendation.remedy}; then {use}"
    return f"review kernel and operator, then {use}"
