"""A kernel that is verified while its run goes on can be used at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.engine.messages import ResultFile, RunResult
from kernel_lsp.server.jobs.verified_early import NONE_YET, USE_NOW

from .client import MINIMAL, VSCODE, Client, initialized
from .fake_engine import requests_of, write_script
from .samples import run_of_scale

ADVICE = "measure first: 0.96x"
TIME = f"3.5 us, estimated; {ADVICE}"
TEXT = "import torch\n\n# kernel-lsp: x=f32[64, 128]\ndef scale(x):\n    return x * 2.0\n"
EVENTS = (
    {"kind": "run_started", "run_id": "r", "target": "model.py::scale", "device": "CPU", "target_gpu": "H200"},
    {"kind": "generation_started", "generation": 0, "n_generations": 4, "n_proposals": 8},
    {"kind": "candidate_verified", "candidate_id": "c", "score_us": 3.5, "score_kind": "estimated", "advice": ADVICE},
)


ASKS = {"window/showMessageRequest": lambda params: {"title": params["actions"][0]["title"]}}


def paths(folder: Path) -> tuple[Path, Path, Path]:
    """Return the target's file, the engine's script and the file whose creation ends the run."""
    (folder / "model.py").write_text(TEXT)
    return folder / "model.py", folder / "script", folder / "ended"


def run_until(ended: Path, end: dict[str, Any]) -> list[dict[str, Any]]:
    return [*({"event": event} for event in EVENTS), {"until": str(ended)}, end]


def result_of(path: Path, **changes: Any) -> dict[str, Any]:
    problem = changes.pop("problem", "")
    summary = run_of_scale(path).model_copy(update={"reason": "", "candidate_id": "c", **changes})
    files = () if problem else (ResultFile(path=path.parent / "kernels" / "scale.cu", text="// a kernel\n"),)
    return RunResult(summary=summary, files=files, problem=problem).model_dump(mode="json")


def use_now() -> dict[str, Any]:
    return {"command": "kernelLsp.useNow", "arguments": []}


async def lenses(editor: Client, uri: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = await editor.ask("textDocument/codeLens", {"textDocument": {"uri": uri}})
    return shown


def at_target(uri: str) -> dict[str, Any]:
    start = {"line": 3, "character": 0}
    return {"textDocument": {"uri": uri}, "range": {"start": start, "end": start}, "context": {"diagnostics": []}}


def taken(script: Path) -> list[dict[str, Any]]:
    return [each for each in requests_of(script) if each["method"] == "take_verified"]


async def test_the_user_takes_a_verified_kernel_before_the_search_ends(tmp_path: Path) -> None:
    path, script, ended = paths(tmp_path)
    end = {"error": {"kind": "user", "message": "the search ended"}}
    write_script(script, optimize=run_until(ended, end), take_verified=[{"result": {"found": True}}])
    async with initialized(tmp_path, VSCODE, ASKS, engine_script=script, trusted=True) as editor:
        job = (await editor.command("optimize", uri=editor.open(path), symbol="scale"))["job"]
        await editor.until(lambda: taken(script))
        (asked,) = editor.asked("window/showMessageRequest")
        assert asked["actions"] == [{"title": USE_NOW}]
        assert asked["message"].startswith(f"scale: a kernel is verified ({TIME})")
        assert [request["job"] for request in taken(script)] == [job]
        ended.touch()


async def test_an_editor_without_choices_takes_it_by_lens_action_or_command(tmp_path: Path) -> None:
    path, script, ended = paths(tmp_path)
    end = {"error": {"kind": "user", "message": "the search ended"}}
    write_script(script, optimize=run_until(ended, end), take_verified=[{"result": {"found": True}}])
    async with initialized(tmp_path, MINIMAL, engine_script=script, trusted=True) as editor:
        uri = editor.open(path)
        assert NONE_YET in str(await editor.reply("workspace/executeCommand", use_now()))
        job = (await editor.command("optimize", uri=uri, symbol="scale"))["job"]
        command = {"title": f"Use it now: {TIME}", "command": "kernelLsp.useNow", "arguments": [{"job": job}]}
        while command not in [lens["command"] for lens in await lenses(editor, uri)]:
            await asyncio.sleep(0.02)
        actions = await editor.ask("textDocument/codeAction", at_target(uri))
        assert f"Use the verified kernel now: scale, {TIME}" in [action["title"] for action in actions]
        await editor.ask("workspace/executeCommand", use_now())
        await editor.until(lambda: [request["job"] for request in taken(script)] == [job])
        ended.touch()
        await editor.until(lambda: any("the search ended" in str(message) for message in editor.notifications))
        assert command not in [lens["command"] for lens in await lenses(editor, uri)]
        assert not editor.asked("window/showMessageRequest")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"error": {"kind": "user", "message": "there is no run r"}}, "its result cannot be read: there is no run r"),
        ({"candidate_id": None, "reason": "no time left"}, "scale: the run has ended without a kernel: no time left"),
        ({"candidate_id": None, "status": "cancelled"}, "scale: the run has ended without a kernel: cancelled"),
        ({"problem": "model.py is gone"}, "scale: model.py is gone"),
        ({"candidate_id": "c"}, "its place is"),
    ],
    ids=["unknown", "none", "cancelled", "not placed", "applied"],
)
async def test_after_the_runs_end_its_result_is_applied_or_a_message_says_why_not(
    tmp_path: Path, reply: dict[str, Any], says: str
) -> None:
    path, script, ended = paths(tmp_path)
    ended.touch()
    result = reply if "error" in reply else {"result": result_of(path, **reply)}
    end = {"error": {"kind": "cancelled", "message": "the user cancelled it"}}
    write_script(script, optimize=run_until(ended, end), result=[result])
    edits = {"workspace/applyEdit": lambda _: {"applied": True}}
    async with initialized(tmp_path, MINIMAL, edits, engine_script=script, trusted=True) as editor:
        job = await editor.command("optimize", uri=editor.open(path), symbol="scale")
        while (await editor.ask("kernelLsp/status", {}))["jobs"]:
            await asyncio.sleep(0.02)
        assert await editor.ask("workspace/executeCommand", use_now()) == job
        await editor.until(lambda: says in str(editor.notifications) + str(editor.asked("workspace/applyEdit")))
        assert not taken(script)
