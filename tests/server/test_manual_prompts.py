"""A person with any chat as a run's model, from an editor: prompts are shown one by one, replies are pasted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.engine.messages import PromptWaits
from kernel_lsp.server.jobs.editor_model import ManualPrompts
from tests.llm.provider_script import TARGET, right_reply

from .client import VSCODE, Client, initialized
from .test_editor_model import RUN_S, SETTINGS, ended


async def optimize(editor: Client, target: Path) -> str:
    await editor.until(lambda: editor.asked("workspace/configuration"))
    return (await editor.command("optimize", uri=editor.open(target), symbol="scale"))["job"]


class Desk:
    """`ManualPrompts` and what it showed and said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[str] = []
        self.said: list[str] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.prompts = ManualPrompts(self._show, self.said.append, self._spawn)

    def add(self, job: str, name: str) -> None:
        reply = self.folder / f"{name}.reply.md"
        self.prompts.add(job, PromptWaits(prompt=self.folder / f"{name}.prompt.md", reply=reply))

    def over(self, job: str, name: str) -> None:
        self.prompts.over(job, self.folder / f"{name}.prompt.md")

    async def settled(self) -> list[str]:
        await asyncio.gather(*self._tasks)
        return self.shown

    async def _show(self, path: Path) -> bool:
        self.shown.append(path.name)
        return True

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.append(asyncio.create_task(work))


async def test_of_several_prompts_the_next_is_shown_when_the_first_has_its_reply(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for name in ("a", "b", "c"):
        desk.add("job", name)
    assert await desk.settled() == ["a.prompt.md", "a.reply.md"]
    desk.over("job", "c")
    assert await desk.settled() == ["a.prompt.md", "a.reply.md"]
    desk.over("job", "a")
    assert (await desk.settled())[2:] == ["b.prompt.md", "b.reply.md"]


async def test_prompts_of_a_job_that_is_over_are_not_shown(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for job, name in (("one", "a"), ("one", "b"), ("two", "c")):
        desk.add(job, name)
    desk.prompts.drop_all("one")
    assert (await desk.settled())[2:] == ["c.prompt.md", "c.reply.md"]


async def test_a_reply_that_somebody_began_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.reply.md").write_text("half of")
    desk = Desk(tmp_path)
    desk.add("job", "a")
    await desk.settled()
    assert (tmp_path / "a.reply.md").read_text() == "half of"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / ".kernel-lsp").mkdir()
    path = tmp_path / "model.py"
    path.write_text(TARGET)
    return path


async def test_a_run_goes_on_with_what_is_pasted_into_the_file_that_opens(target: Path) -> None:
    answers = {
        "workspace/configuration": lambda params: [SETTINGS | {"models": ["manual"]} for _ in params["items"]],
        "window/showDocument": lambda _: {"success": True},
        "workspace/applyEdit": lambda _: {"applied": True},
    }
    async with initialized(target.parent, VSCODE, answers, trusted=True) as editor:
        job = await optimize(editor, target)
        answered: set[str] = set()

        def paste() -> list[str]:
            for params in editor.asked("window/showDocument"):
                path = Path(params["uri"].removeprefix("file://"))
                if path.name.endswith(".reply.md") and path.name not in answered:
                    prompt = path.with_name(path.name.replace(".reply.", ".prompt.")).read_text()
                    path.write_text(path.read_text() + right_reply(prompt, len(answered)))
                    answered.add(path.name)
            return ended(editor, job)

        await editor.until(paste, RUN_S)
        assert ended(editor, job) == ["finished"]
        assert answered
        assert any("waits for a reply" in said["message"] for said in editor.said("window/showMessage"))
