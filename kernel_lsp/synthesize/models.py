"""Ask models to compose tasks from drawn operators, and for an opinion on a task as a baseline."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.config import FOLDER_NAME, Settings, find_workspace
from kernel_lsp.errors import EnvironmentProblem, RepliesAwaited
from kernel_lsp.evolve.propose.conversation import NOT_RECORDED
from kernel_lsp.evolve.propose.model_run import open_models
from kernel_lsp.evolve.run.request import ModelChoices
from kernel_lsp.llm.judges.judges import JUDGE_MAX_TOKENS, JUDGE_TEMPERATURE, read_probability
from kernel_lsp.llm.manual import Ask, OnPrompt, ignore_prompt
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel
from kernel_lsp.llm.prompts import Prompts, RenderedPrompt
from kernel_lsp.llm.replies import BadReply, parse_rewrite
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied
from kernel_lsp.llm.specs import check_keys
from kernel_lsp.synthesize.admission import NotAdmitted, admit, without_docstring
from kernel_lsp.synthesize.request import SCALES, SynthesisRequest

EVERY = 2
"""One in so many attempts is composed by a model, where there is one: the others keep the rules' variety."""


VAGUE = ("", "Union")
"""Types of a catalogue's arguments that say nothing."""


@dataclass(frozen=True)
class Composition:
    """A task's text by a model, its operators, and where the reply comes from."""

    text: str
    operators: tuple[str, ...]
    model: str
    request_key: str


@dataclass(frozen=True)
class Opinion:
    """The mean probability that a task is a fair baseline, and the models that said it."""

    probability: float
    models: tuple[str, ...]


class NotComposed(Exception):
    """A model composed nothing that can be used."""


class TaskModels:
    """The models of one synthesis, within its budget."""

    def __init__(
        self, composers: Sequence[PatientModel], judges: Sequence[PatientModel], prompts: Prompts, settings: Settings
    ) -> None:
        self._composers, self._judges, self._prompts = composers, judges, prompts
        self._max_tokens, self._threshold = settings.model_max_tokens, settings.judge_threshold
        self.n_at_once = settings.model_concurrency

    def composes(self, index: int) -> bool:
        """Tell whether a model composes the attempt of this index."""
        return bool(self._composers) and index % EVERY == EVERY - 1

    def composer(self, index: int) -> PatientModel:
        """Return the model that composes the attempt of this index."""
        return self._composers[index // EVERY % len(self._composers)]

    async def compose(
        self,
        request: SynthesisRequest,
        index: int,
        catalogue: Mapping[str, str],
        operators: Sequence[str],
        structure: str,
    ) -> Composition:
        """Return the task that a model makes of drawn operators. `catalogue` is signatures by name. Raises NotComposed;
        EnvironmentProblem and RepliesAwaited where the model would not answer the next request, either."""
        low, high = SCALES[request.scale].elements
        inputs = {
            "operators": [catalogue.get(name, f"{name} of two tensors") for name in operators],
            "n_operators": request.max_operators,
            "structure": structure,
            "low": low,
            "high": high,
        }
        rendered = self._prompts.render("compose_task", inputs)
        asked = _asked("propose", rendered, index, 0.7, self._max_tokens)
        outcome = await self.composer(index).ask(asked)
        if isinstance(outcome, ModelFailed):
            _raise_where_permanent(outcome)
            raise NotComposed(f"{outcome.model}: {outcome.message}")
        parsed = parse_rewrite(outcome)
        if isinstance(parsed, BadReply):
            raise NotComposed(parsed.problem)
        try:
            found = admit(parsed.text, catalogue, request.max_operators)
        except NotAdmitted as problem:
            raise NotComposed(str(problem)) from None
        origin = f"composed by a model, seed {request.seed}, index {index}"
        text = f'"""{", ".join(found)}. Synthesized: {origin}."""\n\n{without_docstring(parsed.text)}'
        return Composition(text, found, outcome.model, asked.key)

    async def opinion(self, text: str) -> Opinion | None:
        """Return what the judges say of a task as a baseline; None where no judge gives a readable answer."""
        found: dict[str, float] = {}
        rendered = self._prompts.render("judge_baseline", {"code": _without_prose(text)})
        for model in self._judges:
            outcome = await model.ask(_asked("judge", rendered, 0, JUDGE_TEMPERATURE, JUDGE_MAX_TOKENS))
            if isinstance(outcome, ModelFailed):
                _raise_where_permanent(outcome)
            said = read_probability(outcome.text) if isinstance(outcome, Replied) else None
            if said is not None:
                found[model.name] = said
        return Opinion(sum(found.values()) / len(found), tuple(found)) if found else None

    def is_fair(self, opinion: Opinion | None) -> bool:
        return opinion is None or opinion.probability >= self._threshold


def open_task_models(
    specs: Sequence[str],
    settings: Settings,
    directory: Path,
    callbacks: Mapping[str, Ask] | None = None,
    on_prompt: OnPrompt = ignore_prompt,
) -> TaskModels | None:
    """Open the models of a synthesis: those of the purpose `propose` compose, those of `judge` judge baselines. None
    without specs. Raises SettingError, UserError."""
    if not specs:
        return None
    workspace = find_workspace(directory)
    choices = ModelChoices.of(settings).model_copy(update={"models": tuple(specs)})
    roster = open_models(choices, directory, workspace, callbacks or {}, None, on_prompt, settings.manual_wait_s)
    check_keys(roster)
    ledger = Ledger(choices.budget_usd)
    pace = Pace(n_at_once=choices.model_concurrency, requests_per_minute=choices.model_requests_per_minute)
    patient = {id(model): PatientModel(model, ledger, pace) for model in roster.models}
    composers, judges = ([patient[id(model)] for model in roster.of(purpose)] for purpose in ("propose", "judge"))
    return TaskModels(composers, judges, Prompts(workspace / FOLDER_NAME), settings)


def read_signatures(catalogue: Path) -> dict[str, str]:
    """Return the signatures of the operators that a probe could use, by name: ``nn.ELU(alpha: float)``."""
    operators = json.loads(catalogue.read_text(encoding="utf-8"))["operators"]
    return {entry["short"]: _signature(entry) for entry in operators if entry["uses"]}


def _signature(entry: Mapping[str, Any]) -> str:
    first = [] if entry["kind"] == "module" else ["input: Tensor"]
    given = [each for each in entry["arguments"] if not each.get("is_call")]
    named = [each["name"] if each["type"] in VAGUE else f"{each['name']}: {each['type']}" for each in given]
    return f"{entry['short']}({', '.join([*first, *named])})"


def _asked(purpose: Any, rendered: RenderedPrompt, sample: int, temperature: float, max_tokens: int) -> ModelRequest:
    return ModelRequest(
        purpose=purpose,
        messages=rendered.messages,
        sample=sample,
        temperature=temperature,
        max_tokens=max_tokens,
        prompt=rendered.name,
        prompt_hash=rendered.hash,
    )


def _raise_where_permanent(failed: ModelFailed) -> None:
    """Raise where every further request would fail, so that the command ends and resumes later."""
    if failed.cause == "awaited":
        raise RepliesAwaited(failed.message, next_step="write the replies and repeat the command")
    if failed.cause in NOT_RECORDED:
        message, step = f"{failed.model} gives no reply: {failed.message}", "correct it and repeat the command"
        raise EnvironmentProblem(message, next_step=step)


def _without_prose(text: str) -> str:
    """Return the code without comments and docstring."""
    return ast.unparse(ast.parse(without_docstring(text)))
