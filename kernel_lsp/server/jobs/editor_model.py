"""Answer runs' prompts from the editor: by its own language model, or by a person with any chat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsprotocol import types

from kernel_lsp.engine.messages import AnswerModel, ModelAsked, PromptWaits
from kernel_lsp.llm.manual import ManualPrompt, open_reply
from kernel_lsp.llm.request import Cause, ModelFailed, ModelOutcome, ModelRequest, Replied, Usage
from kernel_lsp.server.jobs.jobs import Job, new_id
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.rpc import ClientRefused, Protocol, structure_strictly

METHOD = "kernelLsp/completeChat"
NAME = "editor"
CAUSES: dict[str, Cause] = {
    "no_model": "unavailable",
    "no_consent": "authentication",
    "quota": "rate_limited",
    "refused": "refused",
    "cancelled": "refused",
    "failed": "connection",
}
"""Map a client's failure codes to the causes shared by all providers; only quota and failure are retryable."""

logger = logging.getLogger(__name__)


class EditorModel:
    """Pending prompts at the client, by job and call."""

    def __init__(self, rpc: Protocol) -> None:
        self._rpc = rpc
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def ask(self, job: Job, asked: ModelAsked) -> None:
        """Send a job's prompt to the client, and the reply to the job's engine."""
        task = asyncio.create_task(self._bring(job, asked))
        self._asking[job.id, asked.call] = task
        task.add_done_callback(lambda _: self._asking.pop((job.id, asked.call), None))

    def drop(self, job: str, call: str) -> None:
        """Stop waiting for this reply."""
        task = self._asking.get((job, call))
        if task is not None:
            task.cancel()

    def drop_all(self, job: str) -> None:
        """Drop all prompts of a finished job."""
        for asking, call in tuple(self._asking):
            if asking == job:
                self.drop(job, call)

    async def outcome(self, job: str, request: ModelRequest) -> ModelOutcome:
        """Ask the client's model. A refusal or a malformed answer is a failure of the model."""
        id_ = new_id()
        try:
            answer = await self._rpc.send_request_async(METHOD, _params(job, request), msg_id=id_)
            return _outcome_of(structure_strictly(answer, protocol.ChatResult))
        except asyncio.CancelledError:
            self._rpc.notify(types.CANCEL_REQUEST, types.CancelParams(id=id_))
            raise
        except ClientRefused as error:
            return ModelFailed(model=NAME, cause="unavailable", message=f"the editor refused: {error}")
        except Exception as error:  # converters raise arbitrary exceptions on malformed values
            logger.warning("%s: %s", METHOD, error)
            return ModelFailed(model=NAME, cause="unavailable", message="the editor's answer is no ChatResult")

    async def _bring(self, job: Job, asked: ModelAsked) -> None:
        outcome = await self.outcome(job.id, asked.request)
        await job.engine.ask(AnswerModel(id=new_id(), job=job.id, call=asked.call, outcome=outcome))


def _params(job: str, request: ModelRequest) -> protocol.ChatParams:
    messages = [protocol.ChatMessage(message.role, message.content) for message in request.messages]
    return protocol.ChatParams(job, request.purpose, messages, request.temperature, request.max_tokens)


def _outcome_of(result: protocol.ChatResult) -> ModelOutcome:
    """Convert the client's reply. Cost is 0: the user pays the editor's vendor directly."""
    name = f"{NAME}: {result.model}" if result.model else NAME
    usage = Usage(n_prompt_tokens=max(result.n_prompt_tokens, 0), n_reply_tokens=max(result.n_reply_tokens, 0))
    if result.outcome == "replied":
        return Replied(model=name, text=result.text, usage=usage)
    message = result.message or result.outcome.replace("_", " ")
    return ModelFailed(model=name, cause=CAUSES[result.outcome], message=message, usage=usage)


@dataclass(frozen=True)
class _Waiting:
    job: str
    prompt: ManualPrompt


class ManualPrompts:
    """Pending prompts, in order. A run may ask for several at once; each is shown once the one before has its reply."""

    def __init__(
        self,
        show: Callable[[Path], Awaitable[bool]],
        say: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._show, self._say, self._spawn = show, say, spawn
        self._waiting: list[_Waiting] = []

    def add(self, job: str, news: PromptWaits) -> None:
        """Queue a prompt."""
        self._waiting.append(_Waiting(job, ManualPrompt(news.prompt, news.reply, is_waiting=True)))
        if len(self._waiting) == 1:
            self._present_first()

    def over(self, job: str, prompt: Path) -> None:
        """Remove a prompt that is no longer needed."""
        self._keep([each for each in self._waiting if (each.job, each.prompt.prompt) != (job, prompt)])

    def drop_all(self, job: str) -> None:
        """Remove all prompts of a finished job."""
        self._keep([each for each in self._waiting if each.job != job])

    def _keep(self, kept: list[_Waiting]) -> None:
        first = self._waiting[:1]
        self._waiting = kept
        if kept and kept[:1] != first:
            self._present_first()

    def _present_first(self) -> None:
        self._spawn(self._present(self._waiting[0].prompt))

    async def _present(self, prompt: ManualPrompt) -> None:
        with suppress(OSError):  # the file exists already, or the person creates it
            open_reply(prompt)
        self._say(
            f"A prompt waits for a reply: paste {prompt.prompt} into any chat, its answer into "
            f"{prompt.reply.name} next to it, and save."
        )
        await self._show(prompt.prompt)
        await self._show(prompt.reply)
