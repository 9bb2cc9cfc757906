"""Calibrate judges on kernels with known correctness: the whole pipeline labels them, the judges are asked blind.

A corpus is a folder of `.cu` files with `task:` lines. A judge sees a kernel as usual: without comments, strings, file
name or label; the results of compiler and executor are withheld, since they are the label. A judge is asked only where
the label covers its kind of fault: other answers could not be scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME, Settings, find_workspace
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import SettingError, UserError
from kernel_lsp.evolve.archive.archive import make_folder
from kernel_lsp.evolve.propose.model_run import open_models
from kernel_lsp.evolve.run.request import ModelChoices
from kernel_lsp.evolve.run.task_text import describe_task
from kernel_lsp.llm.judges.calibration import (
    JUDGES,
    Calibration,
    Judged,
    Judgement,
    JudgeName,
    NoJudgement,
    Score,
    fit,
    score,
    write_calibration,
)
from kernel_lsp.llm.judges.judges import Case, Panel
from kernel_lsp.llm.manual import Ask, OnPrompt, ignore_prompt
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel, Spending
from kernel_lsp.llm.prompts import Prompts
from kernel_lsp.llm.recording import RecordedReply, read_recording
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied
from kernel_lsp.llm.specs import Roster, check_keys
from kernel_lsp.plan.parser import parse
from kernel_lsp.verify.session.check_kernel import find_task, read_kernel
from kernel_lsp.verify.session.session import Session

WITHHELD = "not run yet"
UNKNOWN: dict[JudgeName, tuple[str, ...]] = {
    "compilation": ("unsupported",),
    "memory": ("unsupported", "build_failed", "rejected", "mismatch"),
    "numerics": ("unsupported", "build_failed", "rejected", "crashed", "timed_out"),
}
"""Outcomes without information on a judge's kind of fault: code that does not compile has no values."""
FAULTY: dict[JudgeName, tuple[str, ...]] = {
    "compilation": ("build_failed",),
    "memory": ("crashed", "timed_out"),
    "numerics": ("mismatch",),
}


class CalibrationReport(Noun):
    """Result of `kernel-lsp judge calibrate`. `labels` are the pipeline's outcomes, by file."""

    schema_version: int = SCHEMA_VERSION
    corpus: str
    labels: dict[str, str]
    scores: tuple[Score, ...]
    n_calls: int
    cost_usd: float
    evaluate_s: float
    """Total time for all kernels on this device, in seconds."""
    file: str


@dataclass(frozen=True)
class Labelled:
    """A kernel of the corpus with its verdict and its view for judges."""

    name: str
    case: Case
    verdict: Verdict

    @property
    def judges(self) -> tuple[JudgeName, ...]:
        """Return the judges whose kind of fault the verdict covers."""
        return tuple(judge for judge in JUDGES if self.verdict.outcome.kind not in UNKNOWN[judge])


async def calibrate(
    corpus: Path,
    directory: Path,
    settings: Settings,
    *,
    replay: Path | None,
    callbacks: Mapping[str, Ask] | None,
    record: Callable[[RecordedReply], None],
    on_prompt: OnPrompt = ignore_prompt,
) -> CalibrationReport:
    """Label, ask, score, fit, and store the fits in the workspace; `on_prompt` receives prompts for a person. Raises
    UserError for a folder that is not a corpus."""
    workspace = find_workspace(directory)
    choices = ModelChoices.of(settings)
    recording = read_recording(replay) if replay is not None else None
    wait_s = settings.manual_wait_s
    roster = open_models(choices, directory, workspace, callbacks or {}, recording, on_prompt, wait_s)
    models = roster.of("judge")
    if not models:
        raise SettingError("no model judges", next_step="name one: --model openai/... or --model judge=...")
    check_keys(Roster({"judge": models}))
    ledger = Ledger(choices.budget_usd)
    pace = Pace(n_at_once=choices.model_concurrency, requests_per_minute=choices.model_requests_per_minute)
    patient = [PatientModel(model, ledger, pace) for model in models]

    async def ask(request: ModelRequest, model: int) -> Replied | ModelFailed:
        outcome = await patient[model].ask(request)
        record(RecordedReply(key=request.key, model=patient[model].name, request=request, outcome=outcome))
        return outcome

    panel = Panel(Prompts(workspace / FOLDER_NAME), ask, [model.name for model in models], Calibration())
    labelled = await label(corpus, settings)
    judged = await asyncio.gather(*(panel.judge(kernel.case, judges=kernel.judges) for kernel in labelled))
    names = [model.name for model in models]
    return _report(corpus, names, list(zip(labelled, judged, strict=True)), ledger.spending, workspace)


async def label(corpus: Path, settings: Settings) -> list[Labelled]:
    """Return the kernels of a corpus by name, each with the pipeline's verdict. Raises UserError for a folder without
    any."""
    files = sorted(corpus.rglob("*.cu"))
    if not files:
        raise UserError("holds no .cu file", file=str(corpus), next_step="name a folder of kernels with `task:` lines")
    texts = {file: read_kernel(file) for file in files}
    labelled: list[Labelled] = []
    for (folder, task, has_backward), group in groupby(
        sorted(files, key=lambda f: _task(f, texts[f])), key=lambda f: _task(f, texts[f])
    ):
        if task:
            labelled += await _label_group(list(group), texts, Path(folder), task, settings, has_backward=has_backward)
    return sorted(labelled, key=lambda kernel: kernel.name)


def _task(file: Path, text: str) -> tuple[str, str, bool]:
    plan = parse(text).plan
    return (
        str(file.parent),
        plan.task or "" if plan is not None else "",
        plan is not None and plan.backward is not None,
    )


async def _label_group(
    files: Sequence[Path],
    texts: Mapping[Path, str],
    folder: Path,
    task_line: str,
    settings: Settings,
    *,
    has_backward: bool,
) -> list[Labelled]:
    """Label the kernels of one task, in one session."""
    source = find_task(files[0], task_line, None, folder)
    async with Session(settings) as session:
        task = await session.capture(source, with_backward=has_backward)
        verifier = await session.verifier(source, task)
        task_text = describe_task(task, session.gpu)
        candidates = [
            Candidate(text=texts[file], origin=Origin(proposer="user", description=file.name)) for file in files
        ]
        verdicts = await asyncio.gather(*(verifier.verify(candidate, "full") for candidate in candidates))
    cases = (Case(task=task_text, text=texts[file], compiler=WITHHELD, checks=WITHHELD) for file in files)
    names = (str(file.relative_to(folder.parent)) for file in files)
    return [Labelled(*parts) for parts in zip(names, cases, verdicts, strict=True)]


def _report(
    corpus: Path,
    models: Sequence[str],
    kernels: Sequence[tuple[Labelled, tuple[Judgement | NoJudgement, ...]]],
    spending: Spending,
    workspace: Path,
) -> CalibrationReport:
    scores, fits = [], []
    for model, judge in product(sorted(set(models)), JUDGES):
        asked = [(kernel, answer) for kernel, answers in kernels for answer in answers if _is_of(answer, judge, model)]
        judged = [_judged(kernel, answer) for kernel, answer in asked if isinstance(answer, Judgement)]
        scores.append(score(judge, model, judged, n_unanswered=len(asked) - len(judged)))
        fits.append(fit(judge, model, [one.said for one in judged], [one.is_right for one in judged]))
    make_folder(workspace / FOLDER_NAME)
    file = write_calibration(workspace / FOLDER_NAME, Calibration(fits=tuple(fits)))
    return CalibrationReport(
        corpus=str(corpus),
        labels={kernel.name: kernel.verdict.outcome.kind for kernel, _ in kernels},
        scores=tuple(scores),
        n_calls=spending.n_calls,
        cost_usd=spending.cost_usd,
        evaluate_s=sum(kernel.verdict.evaluate_s for kernel, _ in kernels),
        file=str(file),
    )


def _is_of(answer: Judgement | NoJudgement, judge: JudgeName, model: str) -> bool:
    return (answer.judge, answer.model) == (judge, model)


def _judged(kernel: Labelled, judgement: Judgement) -> Judged:
    """Pair the judgement with the truth."""
    is_right = kernel.verdict.outcome.kind not in FAULTY[judgement.judge]
    return Judged(kernel=kernel.name, said=judgement.said, is_right=is_right, evaluate_s=kernel.verdict.evaluate_s)
