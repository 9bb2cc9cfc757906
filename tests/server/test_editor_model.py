"""Runs that ask the editor's own model, through a real engine: a client that answers, and one that says nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from kernel_lsp.llm.request import Cause, Message, ModelFailed, ModelOutcome, ModelRequest
from kernel_lsp.server.jobs.editor_model import CAUSES, EditorModel
from kernel_lsp.server.protocol.messages import ChatResult
from tests.llm.provider_script import TARGET, right_reply

from .client import MINIMAL, SILENCE, VSCODE, Client, initialized

MODELLED = {
    **VSCODE,
    "experimental": {"kernelLsp": {"jobs": True, "events": True, "languageModel": True}},
}
METHOD = "kernelLsp/completeChat"
RUN_S = 180.0
SETTINGS = {
    "device": "cpu",
    "generations": 1,
    "proposals": 2,
    "models": ["editor"],
    "strategy": "best-of-n",
    "repairRounds": 0,
    "modelDeadlineS": 1.0,
}


def target_in(folder: Path) -> Path:
    (folder / ".kernel-lsp").mkdir()
    path = folder / "model.py"
    path.write_text(TARGET)
    return path


def ended(editor: Client, job: str) -> list[str]:
    states = [news["state"] for news in editor.said("kernelLsp/jobChanged") if news["job"] == job]
    return [state for state in states if state in ("finished", "failed", "cancelled")]


@dataclass
class Session:
    """A client's log: the requests and events of a run with replies, then of one without, up to its cancellation."""

    job: str
    ends: list[str]
    asked: list[dict[str, Any]]
    events: list[dict[str, Any]]
    n_unanswered: int = 0
    n_taken_back_in_time: int = 0
    n_taken_back: int = 0
    ends_of_silent: tuple[str, ...] = ()


async def session_in(target: Path) -> Session:
    chat: dict[str, Callable[[Any], Any]] = {"answer": replies()}
    answers = {
        "workspace/configuration": lambda params: [SETTINGS for _ in params["items"]],
        "workspace/applyEdit": lambda _: {"applied": True},
        METHOD: lambda params: chat["answer"](params),
    }
    async with initialized(target.parent, MODELLED, answers, trusted=True) as editor:
        await editor.until(lambda: editor.asked("workspace/configuration"))
        uri = editor.open(target)
        job = (await editor.command("optimize", uri=uri, symbol="scale"))["job"]
        await editor.until(lambda: ended(editor, job), RUN_S)
        events = [params["event"] for params in editor.said("kernelLsp/runEvent")]
        seen = Session(job, ended(editor, job), editor.asked(METHOD), events)
        chat["answer"] = lambda _: SILENCE
        job = (await editor.command("optimize", uri=uri, symbol="scale"))["job"]
        await editor.until(lambda: editor.said("$/cancelRequest"), RUN_S)
        seen.n_taken_back_in_time = len(editor.said("$/cancelRequest"))
        await editor.command("cancel", job=job)
        await editor.until(lambda: ended(editor, job), RUN_S)
        seen.n_unanswered = len(editor.asked(METHOD)) - len(seen.asked)
        await editor.until(lambda: len(editor.said("$/cancelRequest")) >= seen.n_unanswered)
        seen.n_taken_back, seen.ends_of_silent = len(editor.said("$/cancelRequest")), tuple(ended(editor, job))
        return seen


def replies() -> Callable[[Any], Any]:
    numbers = itertools.count()

    def chat(params: Any) -> dict[str, Any]:
        text = right_reply("\n".join(message["content"] for message in params["messages"]), next(numbers))
        return {"outcome": "replied", "model": "m", "text": text, "nPromptTokens": 7, "nReplyTokens": 5}

    return chat


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return asyncio.run(session_in(target_in(tmp_path_factory.mktemp("session"))))


def test_its_kernels_are_checked_and_its_tokens_counted(session: Session) -> None:
    assert session.ends == ["finished"]
    assert {"job", "purpose", "messages", "temperature", "maxTokens"} == set(session.asked[0])
    assert session.asked[0]["job"] == session.job
    told = [event for event in session.events if event["kind"] == "model_called"]
    assert len(told) == len(session.asked)
    assert {(each["model"], each["outcome"], each["n_prompt_tokens"]) for each in told} == {("editor: m", "replied", 7)}
    assert [e for e in session.events if e["kind"] == "candidate_evaluated" and e["outcome"] == "correct"]


def test_a_question_that_is_not_answered_in_time_is_taken_back(session: Session) -> None:
    assert session.n_taken_back_in_time > 0


def test_a_cancelled_job_takes_its_questions_back(session: Session) -> None:
    assert session.ends_of_silent == ("cancelled",)
    assert session.n_taken_back == session.n_unanswered


class Answering:
    """The client's side of the protocol, with one answer to every question."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def send_request_async(self, *_: object, **__: object) -> object:
        return self.answer


async def outcome_of(answer: object) -> ModelOutcome:
    request = ModelRequest(purpose="propose", messages=(Message(role="user", content="hello"),))
    return await EditorModel(Answering(answer)).outcome("job", request)  # type: ignore[arg-type]


@pytest.mark.parametrize(("outcome", "cause"), CAUSES.items())
async def test_a_refusal_is_the_provider_s(outcome: str, cause: str) -> None:
    found = await outcome_of({"outcome": outcome, "message": "not today"})
    assert isinstance(found, ModelFailed)
    assert (found.cause, found.message) == (cause, "not today")


async def test_an_answer_that_is_none_is_no_reply() -> None:
    found = await outcome_of({"outcome": "replied", "text": 7})
    assert isinstance(found, ModelFailed)
    assert found.cause == "unavailable"


def test_every_outcome_that_a_client_may_say_is_one_of_a_provider() -> None:
    outcomes = set(get_args(get_type_hints(ChatResult)["outcome"])) - {"replied"}
    assert set(CAUSES) == outcomes
    assert set(CAUSES.values()) <= set(get_args(Cause))


async def test_without_such_a_model_the_run_says_what_to_do(tmp_path: Path) -> None:
    target = target_in(tmp_path)
    async with initialized(tmp_path, MINIMAL, trusted=True, settings=SETTINGS) as editor:
        await editor.command("optimize", uri=editor.open(target), symbol="scale")
        (told,) = await editor.until(lambda: editor.said("window/showMessage"), RUN_S)
        assert "no editor with a language model of its own" in told["message"]
        assert "Next: name another model" in told["message"]
        assert editor.asked(METHOD) == []
