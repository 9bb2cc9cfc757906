"""Runs that ask the editor's own model, through a real engine: a client that answers, refuses, or says nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from kernel_lsp.llm.request import Cause
from kernel_lsp.server.jobs.editor_model import CAUSES
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
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / ".kernel-lsp").mkdir()
    path = tmp_path / "model.py"
    path.write_text(TARGET)
    return path


def answers(chat: Callable[[Any], Any], **settings: Any) -> dict[str, Any]:
    return {
        "workspace/configuration": lambda params: [SETTINGS | settings for _ in params["items"]],
        "workspace/applyEdit": lambda _: {"applied": True},
        METHOD: chat,
    }


async def optimize(editor: Client, target: Path) -> str:
    await editor.until(lambda: editor.asked("workspace/configuration"))
    return (await editor.command("optimize", uri=editor.open(target), symbol="scale"))["job"]


def calls(editor: Client) -> list[dict[str, Any]]:
    """Return what the run told of its models."""
    events = [params["event"] for params in editor.said("kernelLsp/runEvent")]
    return [event for event in events if event["kind"] == "model_called"]


def ended(editor: Client, job: str) -> list[str]:
    states = [news["state"] for news in editor.said("kernelLsp/jobChanged") if news["job"] == job]
    return [state for state in states if state in ("finished", "failed", "cancelled")]


def says(outcome: str, **more: Any) -> Callable[[Any], Any]:
    return lambda _: {"outcome": outcome, **more}


async def test_its_kernels_are_checked_and_its_tokens_counted(target: Path) -> None:
    numbers = itertools.count()

    def chat(params: Any) -> dict[str, Any]:
        text = right_reply("\n".join(message["content"] for message in params["messages"]), next(numbers))
        return {"outcome": "replied", "model": "m", "text": text, "nPromptTokens": 7, "nReplyTokens": 5}

    async with initialized(target.parent, MODELLED, answers(chat), trusted=True) as editor:
        job = await optimize(editor, target)
        await editor.until(lambda: ended(editor, job), RUN_S)
        assert ended(editor, job) == ["finished"]
        asked = editor.asked(METHOD)
        assert {"job", "purpose", "messages", "temperature", "maxTokens"} == set(asked[0])
        assert asked[0]["job"] == job
        told = calls(editor)
        assert len(told) == len(asked)
        assert {(each["model"], each["outcome"], each["n_prompt_tokens"]) for each in told} == {
            ("editor: m", "replied", 7)
        }
        evaluated = [params["event"] for params in editor.said("kernelLsp/runEvent")]
        from_model = [
            each for each in evaluated if each["kind"] == "candidate_evaluated" and each["outcome"] == "correct"
        ]
        assert from_model


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [("no_consent", "authentication"), ("refused", "refused")],
)
async def test_a_refusal_is_the_provider_s_and_the_run_ends(target: Path, outcome: str, cause: str) -> None:
    chat = says(outcome, message="not today")
    async with initialized(target.parent, MODELLED, answers(chat), trusted=True) as editor:
        job = await optimize(editor, target)
        await editor.until(lambda: ended(editor, job), RUN_S)
        assert {(call["outcome"], call["message"]) for call in calls(editor)} == {(cause, "not today")}


def test_every_outcome_that_a_client_may_say_is_one_of_a_provider() -> None:
    outcomes = set(get_args(get_type_hints(ChatResult)["outcome"])) - {"replied"}
    assert set(CAUSES) == outcomes
    assert set(CAUSES.values()) <= set(get_args(Cause))


async def test_an_answer_that_is_none_is_no_reply(target: Path) -> None:
    async with initialized(target.parent, MODELLED, answers(says("replied", text=7)), trusted=True) as editor:
        job = await optimize(editor, target)
        await editor.until(lambda: ended(editor, job), RUN_S)
        assert {call["outcome"] for call in calls(editor)} == {"unavailable"}


async def test_a_question_that_is_not_answered_in_time_is_taken_back(target: Path) -> None:
    async with initialized(
        target.parent, MODELLED, answers(lambda _: SILENCE, modelDeadlineS=1.0), trusted=True
    ) as editor:
        await optimize(editor, target)
        await editor.until(lambda: editor.said("$/cancelRequest"), RUN_S)
        assert editor.asked(METHOD)


async def test_a_cancelled_job_takes_its_questions_back(target: Path) -> None:
    async with initialized(target.parent, MODELLED, answers(lambda _: SILENCE), trusted=True) as editor:
        job = await optimize(editor, target)
        await editor.until(lambda: editor.asked(METHOD), RUN_S)
        n_asked = len(editor.asked(METHOD))
        await editor.command("cancel", job=job)
        await editor.until(lambda: len(editor.said("$/cancelRequest")) == n_asked)
        await editor.until(lambda: ended(editor, job) == ["cancelled"])


async def test_without_such_a_model_the_run_says_what_to_do(target: Path) -> None:
    async with initialized(target.parent, VSCODE, answers(says("replied")), trusted=True) as editor:
        job = await optimize(editor, target)
        await editor.until(lambda: ended(editor, job) == ["failed"], RUN_S)
        (told,) = await editor.until(lambda: editor.said("window/showMessage"))
        assert "no editor with a language model of its own" in told["message"]
        assert "Next: name another model" in told["message"]
        assert editor.asked(METHOD) == []


async def test_a_minimal_client_is_never_asked(target: Path) -> None:
    async with initialized(target.parent, MINIMAL, trusted=True, settings=SETTINGS) as editor:
        await editor.command("optimize", uri=editor.open(target), symbol="scale")
        (told,) = await editor.until(lambda: editor.said("window/showMessage"), RUN_S)
        assert "no editor with a language model" in told["message"]
