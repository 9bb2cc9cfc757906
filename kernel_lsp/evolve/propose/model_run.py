"""Assemble a run's models, prompts, judges and records as requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp.config import FOLDER_NAME
from kernel_lsp.core.event import Event
from kernel_lsp.core.task import Task
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.model_records import ModelRecords
from kernel_lsp.evolve.propose.conversation import Conversation
from kernel_lsp.evolve.propose.feedback import ProfileCandidate, Profiler, facts_of_task
from kernel_lsp.evolve.propose.model_search import ModelSearch, ModelSearchSettings
from kernel_lsp.evolve.propose.population import INNOVATIONS, as_kernels, related
from kernel_lsp.evolve.propose.prompt_builder import Questions
from kernel_lsp.evolve.propose.proposal import Workshop
from kernel_lsp.evolve.run.evaluations import Evaluations
from kernel_lsp.evolve.run.request import ModelChoices, OptimizeRequest
from kernel_lsp.evolve.run.task_text import describe_task, task_floor_us
from kernel_lsp.gpu.floor import graph_bytes
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.llm.judges.calibration import Calibration, read_calibration
from kernel_lsp.llm.judges.judges import Panel
from kernel_lsp.llm.litellm_model import Endpoint
from kernel_lsp.llm.manual import WAIT_S, Ask, OnPrompt, ignore_prompt
from kernel_lsp.llm.patience import Pace
from kernel_lsp.llm.prompts import Prompts
from kernel_lsp.llm.recording import Recording, read_recording
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied
from kernel_lsp.llm.specs import Roster, Surroundings, check_prices, open_roster, parse_prices
from kernel_lsp.training.features import SchedulableProgram
from kernel_lsp.verify.model.cases import captured_sizes

MANUAL_FOLDER_NAME = "manual"
RELATED, CALIBRATION = "related", "calibration"
"""Names of values fixed at a run's start, which affect prompts or the handling of replies."""


@dataclass(frozen=True)
class ModelTools:
    """Parts independent of the task, opened before a capture so that a wrong name fails early."""

    roster: Roster
    prompts: Prompts
    recording: Recording | None


def open_tools(
    request: OptimizeRequest,
    workspace: Path,
    callbacks: Mapping[str, Ask],
    on_prompt: OnPrompt,
    manual_wait_s: float,
) -> ModelTools:
    """Open the models and prompts of a request. Raises SettingError, UserError."""
    recording = read_recording(request.replay) if request.replay is not None else None
    roster = open_models(request.choices, request.directory, workspace, callbacks, recording, on_prompt, manual_wait_s)
    return ModelTools(roster, Prompts(workspace / FOLDER_NAME), recording)


def with_keys(tools: ModelTools) -> tuple[ModelTools | None, tuple[str, ...]]:
    """Return the tools without the models whose API key is missing, or None where no model is left, and one message
    for each model that was left out."""
    missing = tools.roster.missing_keys()
    roster = tools.roster.without(missing)
    can_propose = bool(roster.of("propose")) or not missing
    others = "the other models" if can_propose else "the generator"
    messages = tuple(
        f"missing API key for {name}: set {variable}; this run continues with {others}"
        for name, variable in missing.items()
    )
    return (replace(tools, roster=roster) if can_propose else None), messages


def open_models(
    choices: ModelChoices,
    directory: Path,
    workspace: Path,
    callbacks: Mapping[str, Ask],
    recording: Recording | None,
    on_prompt: OnPrompt = ignore_prompt,
    manual_wait_s: float = WAIT_S,
) -> Roster:
    """Open the models named by `choices`; `manual_wait_s` is the maximum wait for a person's reply. Raises
    SettingError, UserError."""
    endpoint = Endpoint(
        base_url=choices.model_base_url,
        prices=parse_prices(choices.model_prices),
        deadline_s=choices.model_deadline_s,
        idle_deadline_s=choices.model_idle_deadline_s,
    )
    surroundings = Surroundings(
        directory=directory,
        manual_folder=workspace / FOLDER_NAME / MANUAL_FOLDER_NAME,
        endpoint=endpoint,
        callbacks=callbacks,
        replay=recording,
        manual_wait_s=manual_wait_s,
        on_prompt=on_prompt,
    )
    roster = open_roster(choices.models, surroundings)
    check_prices(roster, choices.budget_usd)
    return roster


@dataclass(frozen=True)
class ModelRun:
    """Everything needed for a search with models. `target` is the text of candidates' `task:` line."""

    run_id: str
    archive: Archive
    request: OptimizeRequest
    tools: ModelTools
    workspace: Path
    task: Task
    target: str
    gpu: GpuSpec
    evaluations: Evaluations
    program: SchedulableProgram | None
    deadline_s: float
    profile: ProfileCandidate | None = None

    def search(self) -> ModelSearch:
        """Return the search, ready to run or to be resumed."""
        records = ModelRecords(self.archive, self.run_id)
        sizes, request = captured_sizes(self.task), self.request
        graphs = [self.task.forward] + ([self.task.backward] if self.task.backward is not None else [])
        settings = ModelSearchSettings(
            n_generations=request.generations,
            n_proposals=request.proposals,
            seed=request.seed,
            choices=request.choices,
            task_facts=facts_of_task(self.task),
            floor_us=task_floor_us(self.task, self.gpu),
            floor_bytes=sum(graph_bytes(graph, sizes) for graph in graphs),
            deadline_s=self.deadline_s,
            given=request.given(self.target),
        )
        return ModelSearch(lambda tell: self._workshop(records, tell), records, self.program, settings)

    def _workshop(self, records: ModelRecords, tell: Callable[[Event], None]) -> Workshop:
        choices = self.request.choices
        pace = Pace(n_at_once=choices.model_concurrency, requests_per_minute=choices.model_requests_per_minute)
        conversation = Conversation(self.tools.roster, records, choices.budget_usd, pace, tell)
        task_text = describe_task(self.task, self.gpu)
        innovations = INNOVATIONS.validate_json(self._fixed(records, RELATED, self._related))
        questions = Questions(
            prompts=self.tools.prompts,
            task=task_text,
            related=as_kernels(innovations),
            floor_us=task_floor_us(self.task, self.gpu),
            max_tokens=choices.model_max_tokens,
        )
        return Workshop(
            run_id=self.run_id,
            archive=self.archive,
            conversation=conversation,
            questions=questions,
            evaluations=self.evaluations,
            task_target=self.target,
            repair_rounds=choices.repair_rounds,
            profiler=Profiler(records, self.profile, self.tools.recording.values if self.tools.recording else None),
            panel=self._panel(records, conversation) if choices.judges == "filter" else None,
            judge_threshold=choices.judge_threshold,
            tell=tell,
        )

    def _panel(self, records: ModelRecords, conversation: Conversation) -> Panel:
        calibration = Calibration.model_validate_json(self._fixed(records, CALIBRATION, self._calibration))

        async def ask(request: ModelRequest, model: int) -> Replied | ModelFailed:
            return await conversation.ask(request, model, request.sample)

        return Panel(self.tools.prompts, ask, conversation.names("judge"), calibration)

    def _related(self) -> str:
        return INNOVATIONS.dump_json(related(self.archive, self.task)).decode()

    def _calibration(self) -> str:
        return read_calibration(self.workspace / FOLDER_NAME).model_dump_json()

    def _fixed(self, records: ModelRecords, name: str, make: Callable[[], str]) -> str:
        """Return a value fixed for the whole run: archived, else recorded, else computed now."""
        value = records.value(name)
        if value is None:
            recording = self.tools.recording
            value = recording.values[name] if recording is not None and name in recording.values else make()
            records.save_value(name, value)
        return value
