"""Use the editor's own language model for runs whose `models` names it: forward prompts to the client, replies to the
engine."""

from __future__ import annotations

import asyncio
import logging

from lsprotocol import types

from kernel_lsp.engine.messages import AnswerModel, ModelAsked
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

    # --- below

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
