"""Runs of the archive in the editor: those of other programs, of earlier windows, and those that go on. The engine is a
fake one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.engine.messages import RunList, RunSummary
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.server.knowledge import ArchiveWatch

from .client import VSCODE, Client, initialized
from .fake_engine import requests_of, write_script
from .samples import SCALE, run_of_scale


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    (tmp_path / ".kernel-lsp").mkdir()
    return path


def archive(scale: Path, *runs: RunSummary) -> None:
    """The archive has these runs from now on."""
    listed = {"result": RunList(runs=runs).model_dump(mode="json")}
    write_script(scale.parent / "script", runs=[listed], resume=[{"until": str(scale.parent / "never")}])
    (scale.parent / ".kernel-lsp" / "archive.sqlite3").write_text(str(len(runs)))


@asynccontextmanager
async def opened(scale: Path, **answers: Any) -> AsyncIterator[tuple[Client, str]]:
    script = scale.parent / "script"
    async with initialized(scale.parent, VSCODE, answers, engine_script=script, trusted=True) as editor:
        yield editor, editor.open(scale)


def interrupted(scale: Path, status: str) -> RunSummary:
    now = datetime.now(UTC).isoformat()
    return run_of_scale(scale, status).model_copy(update={"started": now})


async def test_a_run_of_the_command_line_appears_by_itself(scale: Path) -> None:
    async with opened(scale) as (editor, uri):
        await editor.at("codeLens", uri)
        archive(scale, run_of_scale(scale))
        (told,) = await editor.until(lambda: editor.said("kernelLsp/runsChanged"))
        assert told == {"uri": scale.parent.as_uri()}
        assert any("verified" in lens["command"]["title"] for lens in await editor.at("codeLens", uri))


def test_a_reader_of_an_archive_is_no_change_of_it(tmp_path: Path) -> None:
    with Archive(tmp_path) as archive:
        archive.start_run("scale.py::scale", {})
    changed: list[Path] = []
    watch = ArchiveWatch(changed.append, lambda _: False)
    watch.add(tmp_path)
    with Archive(tmp_path) as archive:
        assert len(archive.runs()) == 1
        watch.look()
    watch.look()
    assert changed == []


@pytest.mark.parametrize("status", ["interrupted", "queued"])
async def test_what_a_window_left_behind_is_offered_by_the_next(scale: Path, status: str) -> None:
    run, script = interrupted(scale, status), scale.parent / "script"
    archive(scale, run)
    answers = {"window/showMessageRequest": lambda params: params["actions"][0]}
    async with opened(scale, **answers) as (editor, _):
        asked = await editor.until(lambda: [each for each in requests_of(script) if each["method"] == "resume"])
        assert "scale.py::scale" in editor.asked("window/showMessageRequest")[0]["message"]
        assert asked[0]["run_id"] == run.run_id


async def test_a_run_that_goes_on_has_its_id_from_the_start_and_so_is_listed_once(scale: Path) -> None:
    run = interrupted(scale, "interrupted")
    archive(scale, run)
    async with opened(scale) as (editor, uri):
        await editor.until(lambda: editor.asked("window/showMessageRequest"))
        await editor.command("resume", uri=uri, run=run.run_id)
        (first, *_) = await editor.until(lambda: editor.said("kernelLsp/jobChanged"))
        assert first["run"] == run.run_id


async def test_a_run_that_is_resumed_twice_goes_on_in_one_job(scale: Path) -> None:
    run = interrupted(scale, "interrupted")
    archive(scale, run)
    async with opened(scale) as (editor, uri):
        await editor.until(lambda: editor.asked("window/showMessageRequest"))
        first = await editor.command("resume", uri=uri, run=run.run_id)
        assert await editor.command("resume", uri=uri, run=run.run_id) == first
        assert await editor.command("resume", uri=uri, run="last") == first


async def test_a_finished_run_is_not_offered(scale: Path) -> None:
    archive(scale, interrupted(scale, "finished"))
    async with opened(scale) as (editor, _):
        await editor.until(lambda: editor.asked("workspace/codeLens/refresh"))
        assert not editor.asked("window/showMessageRequest")
