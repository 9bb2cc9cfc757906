"""The models of one run: use archived replies first, then call models, within budget and rate limits; each reply is
committed before it is used."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.core.event import Event, ModelCalled, StageStarted
from kernel_lsp.errors import RepliesAwaited
from kernel_lsp.evolve.archive.model_records import SPENDING, ModelRecords
from kernel_lsp.llm.patience import Ledger, Pace, PatientModel, Spending
from kernel_lsp.llm.recording import RecordedReply
from kernel_lsp.llm.request import Model, ModelFailed, ModelRequest, Purpose, Replied
from kernel_lsp.llm.specs import Roster

NOT_RECORDED = ("budget", "no_recording", "awaited", "authentication")
"""Outcomes that end the run instead of being recorded: a resumed run with more money, a reply or the key asks again."""
Tell = Callable[[Event], None]


class Conversation:
    """Ask models for proposals. `spending` covers the whole run, including the time before a resume."""

    def __init__(self, roster: Roster, records: ModelRecords, budget_usd: float | None, pace: Pace, tell: Tell) -> None:
        self._roster, self._records, self._tell = roster, records, tell
        spent = records.value(SPENDING)
        self._ledger = Ledger(budget_usd, Spending() if spent is None else Spending.model_validate_json(spent))
        self._patient: dict[int, PatientModel] = {
            id(model): PatientModel(model, self._ledger, pace) for model in roster.models
        }
        self._refused: dict[str, ModelFailed] = {}

    @property
    def spending(self) -> Spending:
        return self._ledger.spending

    def names(self, purpose: Purpose) -> tuple[str, ...]:
        return tuple(model.name for model in self._roster.of(purpose))

    def why_refused(self) -> str:
        """Return the provider's message where the keys of all models that propose were refused, else nothing."""
        refused = [self._refused.get(name) for name in self.names("propose")]
        return refused[0].message if refused and refused[0] is not None and all(refused) else ""

    async def ask(self, request: ModelRequest, model_index: int, slot: int) -> Replied | ModelFailed:
        """Return the outcome from the archive, or from the model; `model_index` wraps around the models of the purpose.

        Raises RepliesAwaited when a person has not replied yet.
        """
        known = self._records.reply(request.key)
        if known is not None:
            self._say(request, known, slot, from_archive=True)
            return known
        model = self._model(request.purpose, model_index)
        refused = self._refused.get(model.name)
        if refused is not None:
            return refused
        outcome = await self._patient[id(model)].ask(request, on_wait=self._say_wait)
        self._records.save_value(SPENDING, self.spending.model_dump_json())  # first, so that spending is never lost
        if isinstance(outcome, Replied) or outcome.cause not in NOT_RECORDED:
            self._records.save_reply(RecordedReply(key=request.key, model=model.name, request=request, outcome=outcome))
        self._say(request, outcome, slot, from_archive=False)
        if isinstance(outcome, ModelFailed) and outcome.cause == "authentication":
            self._refused[model.name] = outcome
        if isinstance(outcome, ModelFailed) and outcome.cause == "awaited":
            raise RepliesAwaited(outcome.message, next_step="reply to it, then resume the run")
        return outcome

    def _say_wait(self, failed: ModelFailed, wait_s: float) -> None:
        said = f"{failed.model}: {failed.cause.replace('_', ' ')}: {failed.message}"
        self._tell(StageStarted(message=f"{said}; asking again in {wait_s:.0f} s"))

    def _model(self, purpose: Purpose, index: int) -> Model:
        """The drawn model; another one where its key was refused and another one's was not."""
        models = self._roster.of(purpose)
        drawn = models[index % len(models)]
        allowed = [model for model in models if model.name not in self._refused]
        return drawn if drawn in allowed or not allowed else allowed[index % len(allowed)]

    def _say(self, request: ModelRequest, outcome: Replied | ModelFailed, slot: int, *, from_archive: bool) -> None:
        spending = self.spending
        self._tell(
            ModelCalled(
                slot=slot,
                purpose=request.purpose,
                model=outcome.model,
                outcome="replied" if isinstance(outcome, Replied) else outcome.cause,
                message="" if isinstance(outcome, Replied) else outcome.message,
                n_prompt_tokens=outcome.usage.n_prompt_tokens,
                n_reply_tokens=outcome.usage.n_reply_tokens,
                cost_usd=outcome.usage.cost_usd,
                run_cost_usd=spending.cost_usd,
                n_run_calls=spending.n_calls,
                budget_usd=self._ledger.budget_usd,
                from_archive=from_archive,
            )
        )
