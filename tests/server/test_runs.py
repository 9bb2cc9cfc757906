"""Questions about the workspace as a whole: targets, runs, reports, and what a run tells while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernel_lsp.export.python.runtime_text import RUNTIME_MODULE
from kernel_lsp.source.recorded import recording_file, write_recording
from tests.record.programs import recording_of

from .client import VSCODE, initialized
from .samples import SCALE, SCALE_LINE

SETTINGS = {"device": "cpu", "generations": 1, "proposals": 2}
EVENTS = {**VSCODE, "experimental": {"kernelLsp": {"jobs": True, "events": True}}}
RUN_S = 180.0


def answers() -> dict[str, Any]:
    return {
        "workspace/configuration": lambda params: [SETTINGS for _ in params["items"]],
        "workspace/applyEdit": lambda _: {"applied": True},
    }


def workspace(folder: Path) -> Path:
    (folder / ".kernel-lsp").mkdir()
    path = folder / "scale.py"
    path.write_text(SCALE)
    return path


async def test_targets_are_found_in_every_file_but_those_of_environments(tmp_path: Path) -> None:
    path = workspace(tmp_path)
    library = tmp_path / "env" / "lib"
    library.mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (library / "other.py").write_text(SCALE)
    (tmp_path / "broken.py").write_text("import torch\ndef (")
    async with initialized(tmp_path) as editor:
        found = await editor.ask("kernelLsp/targets", {"uri": tmp_path.as_uri()})
    assert found["isComplete"]
    assert {target["uri"] for target in found["targets"]} == {path.as_uri()}
    assert ("scale", SCALE_LINE) in [(target["symbol"], target["line"]) for target in found["targets"]]


async def test_hot_spots_are_recorded_targets_that_still_exist_by_what_they_save(tmp_path: Path) -> None:
    path = workspace(tmp_path)
    seen = {"inputs": ("x=f32[64, 256], weight=f32[256]",)}
    write_recording(tmp_path, recording_of(scale__gone=seen, scale__scale={**seen, "share": 0.2}, other__f=seen))
    async with initialized(tmp_path) as editor:
        found = await editor.ask("kernelLsp/hotSpots", {"uri": tmp_path.as_uri()})
    assert [(each["uri"], each["symbol"], each["line"]) for each in found["spots"]] == [
        (path.as_uri(), "scale", SCALE_LINE)
    ]
    assert (found["command"], found["spots"][0]["gain"]) == ("python train.py", 0.2)


async def test_an_invalid_recording_is_a_problem_of_the_hot_spots(tmp_path: Path) -> None:
    workspace(tmp_path)
    recording_file(tmp_path).write_text("{")
    async with initialized(tmp_path) as editor:
        found = await editor.ask("kernelLsp/hotSpots", {"uri": tmp_path.as_uri()})
    assert "recorded.json:1: the recording is invalid" in found["problem"]


async def test_a_workspace_without_runs_has_none(tmp_path: Path) -> None:
    async with initialized(tmp_path) as editor:
        assert await editor.ask("kernelLsp/runs", {"uri": tmp_path.as_uri()}) == {"runs": []}


async def test_an_untrusted_workspace_tells_no_runs_and_no_report(tmp_path: Path) -> None:
    path = workspace(tmp_path)
    async with initialized(tmp_path, trusted=False) as editor:
        assert (await editor.ask("kernelLsp/runs", {"uri": path.as_uri()}))["runs"] == []
        assert "error" in await editor.reply("kernelLsp/report", {"uri": path.as_uri(), "run": "last"})


async def test_a_run_is_followed_by_its_events_and_found_with_its_report(tmp_path: Path) -> None:
    path = workspace(tmp_path)
    async with initialized(tmp_path, EVENTS, answers()) as editor:
        await editor.until(lambda: editor.asked("workspace/configuration"))
        uri = editor.open(path)
        job = (await editor.command("optimize", uri=uri, symbol="scale"))["job"]
        await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)
        told = [params for params in editor.said("kernelLsp/runEvent") if params["job"] == job]
        kinds = [params["event"]["kind"] for params in told]
        run = told[0]["run"]
        (item,) = (await editor.ask("kernelLsp/runs", {"uri": uri}))["runs"]
        report = await editor.ask("kernelLsp/report", {"uri": uri, "run": run})
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_finished"
    assert (item["run"], item["symbol"], item["status"], item["hasKernel"]) == (run, "scale", "finished", True)
    assert "verified" in item["result"]
    assert len(report["data"]["candidates"]) == kinds.count("candidate_proposed")
    names = ["scale.cu", "scale.py", f"{RUNTIME_MODULE}.py", "__init__.py"]
    assert [Path(file["path"]).name for file in report["data"]["files"]] == names
    assert report["html"].startswith("<!DOCTYPE html>")


async def test_a_client_that_did_not_ask_for_events_gets_none(tmp_path: Path) -> None:
    path = workspace(tmp_path)
    async with initialized(tmp_path, VSCODE, answers()) as editor:
        await editor.until(lambda: editor.asked("workspace/configuration"))
        uri = editor.open(path)
        await editor.command("optimize", uri=uri, symbol="scale")
        await editor.until(lambda: editor.asked("workspace/applyEdit"), RUN_S)
        assert not editor.said("kernelLsp/runEvent")
