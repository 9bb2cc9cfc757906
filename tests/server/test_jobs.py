"""Long work from an editor: progress, results as edits, cancelling, dying, resuming. With a real engine."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE
from kernel_lsp.process.tree import descendants
from kernel_lsp.server.documents.documents import Change, Documents

from .client import MINIMAL, NEOVIM, VSCODE, Client, children, initialized
from .samples import KERNEL, SCALE, SCALE_LINE, SHIFTED_LINE
from .test_session import notebook_of

QUICK = {"device": "cpu", "generations": 1, "proposals": 2}
LONG = {"device": "cpu", "generations": 50, "proposals": 8}
EXIT_S = 2.0
CANCEL_S = 1.0
SLACK = 5.0
"""Other work on the machine may multiply a time."""
WRITTEN = ["scale.cu", "scale.py", f"{RUNTIME_MODULE}.py", "__init__.py"]
RUN_S = 180.0
SEED, N_KILLS = 20261121, 4


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    (tmp_path / ".kernel-lsp").mkdir()
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return path


def answers(settings: dict[str, Any], *, applied: bool = True) -> dict[str, Any]:
    return {
        "workspace/configuration": lambda params: [settings for _ in params["items"]],
        "workspace/applyEdit": lambda _: {"applied": applied},
        "window/showDocument": lambda _: {"success": True},
    }


async def optimize(editor: Client, scale: Path) -> str:
    await editor.until(lambda: editor.asked("workspace/configuration") or not editor.answers)
    uri = editor.open(scale)
    return (await editor.command("optimize", uri=uri, symbol="scale"))["job"]


def progress(editor: Client) -> list[dict[str, Any]]:
    return [params["value"] for params in editor.said("$/progress")]


async def until_searching(editor: Client) -> None:
    await editor.until(lambda: [v for v in progress(editor) if v.get("percentage", 0) > 5], RUN_S)


def are_gone(pids: tuple[int, ...]) -> bool:
    return not [pid for pid in pids if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_run_shows_its_progress_and_ends_in_an_edit_to_confirm(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(QUICK), trusted=True) as editor:
        started = time.monotonic()
        job = await optimize(editor, scale)
        assert time.monotonic() - started < 10
        (asked,) = await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)
        check_progress(editor)
        changes = asked["edit"]["documentChanges"]
        assert [change.get("kind", "edit") for change in changes] == ["create", "edit"] * len(WRITTEN)
        (annotation,) = asked["edit"]["changeAnnotations"].values()
        assert annotation["needsConfirmation"]
        assert all("annotationId" in change for change in changes if change.get("kind") == "create")
        assert all("annotationId" in edit for change in changes for edit in change.get("edits", ()))
        assert not (scale.parent / "kernels").exists()
        states = [news["state"] for news in editor.said("kernelLsp/jobChanged") if news["job"] == job]
        assert (states[0], states[-1]) == ("queued", "finished")
        titles = [lens["command"]["title"] for lens in await editor.at("codeLens", scale.as_uri())]
        assert "Show kernel" in titles
        assert any("verified on PTX executor (CPU)" in title for title in titles)
        await check_hints(editor, scale)


def check_progress(editor: Client) -> None:
    """Begun once, never falling, with the best so far, ended once, under one fresh token."""
    values = progress(editor)
    assert [value["kind"] for value in values if value["kind"] != "report"] == ["begin", "end"]
    percentages = [value["percentage"] for value in values if "percentage" in value]
    assert percentages == sorted(percentages)
    assert any("best" in value["message"] for value in values if value["kind"] == "report")
    assert len({params["token"] for params in editor.said("$/progress")}) == 1
    assert values[0]["cancellable"]


async def check_hints(editor: Client, scale: Path) -> None:
    """After an estimate lines have hints, for who wants them."""
    editor.answers["workspace/configuration"] = lambda params: [{"inlayHints": True} for _ in params["items"]]
    editor.tell("workspace/didChangeConfiguration", {"settings": None})
    await editor.command("estimate", uri=scale.as_uri(), symbol="scale")
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    deadline = time.monotonic() + RUN_S
    hints: list[Any] = []
    while not hints and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        params = {"textDocument": {"uri": scale.as_uri()}, "range": whole}
        hints = await editor.ask("textDocument/inlayHint", params)
    assert len(hints) == 2
    hover = await editor.at("hover", scale.as_uri(), SCALE_LINE, 4)
    assert "estimated on H200" in hover["contents"]["value"]


async def test_without_confirmation_only_new_files_are_made(scale: Path) -> None:
    async with initialized(scale.parent, NEOVIM, answers(QUICK), trusted=True) as editor:
        await optimize(editor, scale)
        (asked,) = await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)
        assert "changeAnnotations" not in asked["edit"]
        creations = [change for change in asked["edit"]["documentChanges"] if change.get("kind") == "create"]
        assert [Path(change["uri"]).name for change in creations] == WRITTEN
        assert not any(change["options"]["overwrite"] for change in creations)
        (shown,) = await editor.until(lambda: editor.asked("window/showDocument"))
        assert shown["uri"].endswith("kernels/scale.cu")


async def test_a_client_that_can_do_nothing_finds_the_result_aside(scale: Path) -> None:
    async with initialized(scale.parent, MINIMAL, trusted=True, settings=QUICK) as editor:
        editor.open(scale)
        await editor.command("optimize", uri=scale.as_uri(), symbol="scale")
        told = await editor.until(lambda: editor.said("window/showMessage"), RUN_S)
        assert "the result is in" in told[-1]["message"]
        written = sorted(path.name for path in (scale.parent / ".kernel-lsp" / "results").glob("*/*"))
        assert written == sorted(WRITTEN)
        assert progress(editor) == []


async def test_cancelling_the_progress_ends_all_processes_within_a_second(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(LONG), trusted=True) as editor:
        job = await optimize(editor, scale)
        await until_searching(editor)
        (engine,) = (await editor.ask("kernelLsp/status", {}))["enginePids"]
        running = descendants(engine)
        started = time.monotonic()
        editor.tell("window/workDoneProgress/cancel", {"token": editor.said("$/progress")[0]["token"]})
        await editor.until(
            lambda: [n for n in editor.said("kernelLsp/jobChanged") if (n["job"], n["state"]) == (job, "cancelled")]
        )
        assert time.monotonic() - started <= CANCEL_S * SLACK
        assert len(running) >= 2
        assert are_gone(running)
        assert progress(editor)[-1] == {"kind": "end", "message": "cancelled"}


async def test_a_cancelled_run_can_be_resumed_from_its_lens(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(QUICK | {"generations": 2}), trusted=True) as editor:
        job = await optimize(editor, scale)
        await until_searching(editor)
        await editor.command("cancel", job=job)
        await editor.until(lambda: progress(editor)[-1]["kind"] == "end")
    async with initialized(scale.parent, VSCODE, answers(QUICK), trusted=True) as editor:
        uri = editor.open(scale)
        await editor.until(lambda: editor.asked("workspace/codeLens/refresh"))
        deadline = time.monotonic() + 60
        resume: list[Any] = []
        while not resume and time.monotonic() < deadline:
            lenses = await editor.at("codeLens", uri)
            resume = [lens["command"] for lens in lenses if lens["command"]["title"].startswith("Resume ")]
            await asyncio.sleep(0.3)
        await editor.ask("workspace/executeCommand", {key: resume[0][key] for key in ("command", "arguments")})
        await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)


async def test_a_killed_job_s_run_is_offered_to_go_on(scale: Path) -> None:
    choose = {"window/showMessageRequest": lambda params: params["actions"][0]}
    async with initialized(scale.parent, VSCODE, answers(QUICK | {"generations": 2}) | choose, trusted=True) as editor:
        await optimize(editor, scale)
        await until_searching(editor)
        (engine,) = (await editor.ask("kernelLsp/status", {}))["enginePids"]
        os.kill(children_of(engine)[0], signal.SIGKILL)
        (offered,) = await editor.until(lambda: editor.asked("window/showMessageRequest"))
        assert "can be resumed" in offered["message"]
        await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(600)
async def test_an_engine_killed_at_random_moments_is_said_and_started_again_and_the_run_goes_on(scale: Path) -> None:
    """The moments are seeded: some in the capture or between two engines, others in the search."""
    random_ = random.Random(SEED)
    settings = QUICK | {"generations": 30, "proposals": 8}
    async with initialized(scale.parent, VSCODE, answers(settings), trusted=True) as editor:
        await optimize(editor, scale)
        killed: list[int] = []
        for number in range(N_KILLS):
            if number % 2:
                n_before = len(searching(editor))
                await editor.until(partial(is_searching, editor, n_before), RUN_S)
            await asyncio.sleep(random_.uniform(0.1, 0.5 if number % 2 else 3.0))
            pids = (await editor.ask("kernelLsp/status", {}))["enginePids"]
            if pids and not editor.asked("workspace/applyEdit"):
                running = descendants(pids[0])
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])
                await editor.until(lambda: len(said_deaths(editor)) >= len(killed))
                await until_gone(running)
        await editor.until(lambda: is_at_end(editor), 2 * RUN_S)
        (asked,) = editor.asked("workspace/applyEdit")
        assert len(asked["edit"]["documentChanges"]) == 2 * len(WRITTEN)
        assert len(killed) >= 2
        assert all("signal 9" in message for message in said_deaths(editor))
        kinds = [value["kind"] for value in progress(editor)]
        assert kinds.count("begin") == kinds.count("end")


def is_searching(editor: Client, n_before: int) -> bool:
    return len(searching(editor)) > n_before


def searching(editor: Client) -> list[str]:
    return [news["message"] for news in editor.said("kernelLsp/jobChanged") if "generation" in news.get("message", "")]


def is_at_end(editor: Client) -> bool:
    """The result is offered, or a problem was told: then there is nothing to wait for."""
    problems = [told["message"] for told in editor.said("window/showMessage") if told["type"] == 1]
    assert not problems, problems
    return bool(editor.asked("workspace/applyEdit"))


def said_deaths(editor: Client) -> list[str]:
    return [told["message"] for told in editor.said("window/showMessage") if "The kernel-lsp engine" in told["message"]]


async def until_gone(pids: tuple[int, ...]) -> None:
    async with asyncio.timeout(EXIT_S * SLACK):
        while not are_gone(pids):
            await asyncio.sleep(0.02)


async def test_exit_with_jobs_running_is_quick_and_leaves_no_process(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(LONG), trusted=True) as editor:
        await optimize(editor, scale)
        await until_searching(editor)
        running = children(editor)
        started = time.monotonic()
        assert await editor.leave() == 0
        assert time.monotonic() - started <= EXIT_S * SLACK
        assert len(running) >= 4
        assert are_gone(running)


async def test_a_killed_server_leaves_no_process(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(LONG), trusted=True) as editor:
        await optimize(editor, scale)
        await until_searching(editor)
        running = children(editor)
        os.kill(editor.pid, signal.SIGKILL)
        async with asyncio.timeout(EXIT_S * SLACK):
            while not are_gone(running):
                await asyncio.sleep(0.02)
        assert len(running) >= 4


async def test_losing_trust_ends_the_jobs(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(LONG), trusted=True) as editor:
        job = await optimize(editor, scale)
        await until_searching(editor)
        editor.tell("kernelLsp/didChangeTrust", {"trusted": False})
        await editor.until(
            lambda: [n for n in editor.said("kernelLsp/jobChanged") if (n["job"], n["state"]) == (job, "cancelled")]
        )


async def test_a_saved_kernel_is_checked_and_its_errors_stand_at_their_lines(scale: Path) -> None:
    kernel = scale.with_name("scale.cu")
    kernel.write_text(KERNEL.replace("weight[i % d]", "weigth[i % d]"))
    async with initialized(scale.parent, VSCODE, answers({"device": "cpu"}), trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.diagnostics(uri)
        n_before = len(editor.asked("workspace/diagnostic/refresh"))
        editor.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
        errors: list[Any] = []
        deadline = time.monotonic() + RUN_S
        while not errors and time.monotonic() < deadline:
            await editor.until(lambda: len(editor.asked("workspace/diagnostic/refresh")) > n_before, RUN_S)
            errors = [found for found in await editor.diagnostics(uri) if found["source"] == "nvrtc"]
            await asyncio.sleep(0.2)
        assert "weigth" in errors[0]["message"]
        assert errors[0]["range"]["start"]["line"] == 8
        assert editor.said("window/showMessage") == []


async def test_a_kernel_that_is_right_shows_what_ptxas_says(scale: Path) -> None:
    kernel = scale.with_name("scale.cu")
    kernel.write_text(KERNEL)
    async with initialized(scale.parent, VSCODE, answers({"device": "cpu"}), trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("check", uri=uri)
        told = await editor.until(lambda: editor.said("window/showMessage"), RUN_S)
        assert "correct in " in told[-1]["message"]
        titles = [lens["command"]["title"] for lens in await editor.at("codeLens", uri)]
        assert any("registers, no spills" in title for title in titles)


async def test_selected_lines_become_a_call_of_a_kernel_with_the_lines_kept(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers(QUICK), trusted=True) as editor:
        uri = editor.open(scale)
        await editor.diagnostics(uri)
        selected = {"start": {"line": SHIFTED_LINE, "character": 0}, "end": {"line": SHIFTED_LINE + 1, "character": 0}}
        params = {"textDocument": {"uri": uri}, "range": selected, "context": {"diagnostics": []}}
        actions = await editor.ask("textDocument/codeAction", params)
        (command,) = [a["command"] for a in actions if a["title"] == "Optimize the selected lines"]
        await editor.ask("workspace/executeCommand", {key: command[key] for key in ("command", "arguments")})
        editor.change(uri, 2, {"range": at(0), "text": "# typed meanwhile\n"})
        (asked,) = await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)
        changed = asked["edit"]["documentChanges"][-1]
        assert changed["textDocument"] == {"uri": uri, "version": 2}
        assert all("annotationId" in edit for edit in changed["edits"])
        name = f"scale_lines_{SHIFTED_LINE + 1}_{SHIFTED_LINE + 1}"
        document = Documents("utf-16").open(uri, "python", 2, "# typed meanwhile\n" + SCALE)
        for edit in reversed(changed["edits"]):
            start, end = (edit["range"][side] for side in ("start", "end"))
            document.apply([Change(edit["newText"], tuple(start.values()), tuple(end.values()))], 3)
        assert f"    shifted = use_{name}({name})(x, weight)\n    return torch.relu(shifted)" in document.text
        assert f"def {name}(x, weight):\n    shifted = x * weight + 1.0\n    return shifted\n" in document.text
        assert f"from kernels.{name} import use_{name}\n" in document.text
        assert f"// task: ../scale.py::{name}\n" in asked["edit"]["documentChanges"][1]["edits"][0]["newText"]
        compile(document.text, "scale.py", "exec")
        editor.change(uri, 3, {"text": document.text})
        await editor.diagnostics(uri)
        titles = [lens["command"]["title"] for lens in await editor.at("codeLens", uri)]
        assert any("estimated for H200, verified" in title and "stale" not in title for title in titles)


def at(line: int) -> dict[str, Any]:
    return {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 0}}


async def test_a_kernel_s_lines_can_be_profiled(scale: Path) -> None:
    kernel = scale.with_name("scale.cu")
    kernel.write_text(KERNEL)
    async with initialized(scale.parent, VSCODE, answers({"device": "cpu"}), trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("profile", uri=uri)
        await editor.until(lambda: editor.said("window/showMessage"), RUN_S)
        params = {"textDocument": {"uri": uri}, "range": {"start": at(0)["start"], "end": at(99)["end"]}}
        hints = await editor.ask("textDocument/inlayHint", params)
        assert any("of scale" in hint["label"] for hint in hints), hints
        assert "estimated for H200" in editor.said("window/showMessage")[-1]["message"]


async def until_hover(editor: Client, uri: str, wanted: str) -> None:
    async with asyncio.timeout(RUN_S):
        while wanted not in str(await editor.at("hover", uri, SCALE_LINE, 4)):
            await asyncio.sleep(0.5)


def n_finished(editor: Client) -> int:
    return [news["state"] for news in editor.said("kernelLsp/jobChanged")].count("finished")


async def test_another_gpu_in_pyproject_gives_another_estimate_to_who_hovers_again(scale: Path) -> None:
    async with initialized(scale.parent, NEOVIM, answers({}), trusted=True) as editor:
        uri = editor.open(scale)
        await editor.command("estimate", uri=uri, symbol="scale")
        await until_hover(editor, uri, "estimated on H200")
        (scale.parent / "pyproject.toml").write_text("[tool.kernel-lsp]\ntarget-gpu = 'L4'\n")
        assert "H200" not in str(await editor.at("hover", uri, SCALE_LINE, 4))
        await until_hover(editor, uri, "estimated on L4")


async def test_another_gpu_in_a_watched_pyproject_gives_another_estimate_by_itself(scale: Path) -> None:
    async with initialized(scale.parent, VSCODE, answers({}), trusted=True) as editor:
        uri = editor.open(scale)
        await editor.command("estimate", uri=uri, symbol="scale")
        await until_hover(editor, uri, "estimated on H200")
        await editor.until(lambda: "pyproject.toml" in str(editor.asked("client/registerCapability")))
        pyproject = scale.parent / "pyproject.toml"
        pyproject.write_text("[tool.kernel-lsp]\ntarget-gpu = 'L4'\n")
        editor.tell("workspace/didChangeWatchedFiles", {"changes": [{"uri": pyproject.as_uri(), "type": 1}]})
        await editor.until(lambda: n_finished(editor) == 2, RUN_S)
        assert "estimated on L4" in str(await editor.at("hover", uri, SCALE_LINE, 4))


async def test_a_notebook_s_function_is_estimated_and_optimized_with_what_the_cells_above_define(
    scale: Path,
) -> None:
    imports, rest = SCALE.split("\n\n\n", 1)
    above = f"%time\n{imports}\nraise RuntimeError('a cell is not run')"
    opened, (_, cell) = notebook_of(scale.parent, above, rest)
    line = SCALE_LINE - SCALE[: -len(rest)].count("\n")
    async with initialized(scale.parent, VSCODE, answers(QUICK), trusted=True) as editor:
        editor.tell("notebookDocument/didOpen", opened)
        await editor.diagnostics(cell)
        await editor.until(lambda: editor.asked("workspace/configuration"))
        await editor.command("optimize", uri=cell, symbol="scale")
        (asked,) = await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)
        uris = [change["uri"] for change in asked["edit"]["documentChanges"] if change.get("kind") == "create"]
        assert uris == [(scale.parent / "kernels" / name).as_uri() for name in WRITTEN]
        titles = [lens["command"]["title"] for lens in await editor.at("codeLens", cell)]
        assert any("verified" in title and "stale" not in title for title in titles), titles
        await editor.command("estimate", uri=cell, symbol="scale")
        deadline = time.monotonic() + RUN_S
        hover = ""
        while "of `scale`" not in hover and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            found = await editor.at("hover", cell, line + SHIFTED_LINE - SCALE_LINE, 4)
            hover = found["contents"]["value"] if found else ""
        assert "estimated on H200" in hover
