"""A job's calls of the editor's model, without a process around them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kernel_lsp.engine.messages import AnswerModel, Done, JobNews
from kernel_lsp.engine.runner import EditorModelCalls
from kernel_lsp.llm.manual import CallbackModel
from kernel_lsp.llm.request import Message, ModelFailed, ModelRequest, Replied

from .engines import engine

REQUEST = ModelRequest(purpose="propose", messages=(Message(role="user", content="hello"),))


def answer(call: str, text: str) -> bytes:
    outcome = Replied(model="m", text=text)
    return AnswerModel(id="a", job="j", call=call, outcome=outcome).model_dump_json().encode()


async def test_answers_find_their_calls_in_any_order() -> None:
    news: list[JobNews] = []
    calls = EditorModelCalls(news.append)
    one, two = (asyncio.create_task(calls.ask(REQUEST)) for _ in range(2))
    await asyncio.sleep(0)
    calls.take(answer("2", "second"))
    calls.take(answer("1", "first"))
    assert [(await each).text for each in (one, two)] == ["first", "second"]  # type: ignore[union-attr]
    assert [each.kind for each in news] == ["model_asked", "model_asked"]


async def test_a_call_that_overruns_is_taken_back_and_a_late_answer_passed_over() -> None:
    news: list[JobNews] = []
    calls = EditorModelCalls(news.append)
    outcome = await CallbackModel("editor", calls.ask, 0.05).reply(REQUEST)
    assert isinstance(outcome, ModelFailed)
    assert outcome.cause == "timeout"
    assert [each.kind for each in news] == ["model_asked", "model_dropped"]
    calls.take(answer("1", "late"))


async def test_a_line_that_is_no_answer_is_passed_over() -> None:
    calls = EditorModelCalls(lambda _: None)
    asking = asyncio.create_task(calls.ask(REQUEST))
    await asyncio.sleep(0)
    calls.take(b"{}\n")
    calls.take(b"nonsense\n")
    calls.take(answer("1", "hi"))
    assert isinstance(await asking, Replied)


async def test_an_answer_for_a_job_that_is_gone_finds_nothing(tmp_path: Path) -> None:
    async with engine(tmp_path) as asked:
        late = AnswerModel(id="a", job="gone", call="1", outcome=Replied(model="m", text=""))
        reply = await asked.ask(late)
        assert reply.result == Done(found=False).model_dump()
