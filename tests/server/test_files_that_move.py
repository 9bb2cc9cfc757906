"""Files that are renamed, deleted, closed or edited while a job is about them, and texts that are no files, with a fake
engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kernel_lsp.core.verdict import Unsupported, Verdict
from kernel_lsp.engine.messages import CheckResult, ResultFile, RunResult

from .client import VSCODE, Client, initialized
from .fake_engine import requests_of, write_script
from .samples import KERNEL, SCALE, SCALE_LINE, run_of_scale

APPLIED = {"workspace/applyEdit": lambda _: {"applied": True}}


def optimized(path: Path) -> dict[str, Any]:
    out = path.parent / "kernels"
    files = (ResultFile(path=out / "scale.cu", text=KERNEL), ResultFile(path=out / "scale.py", text="x = 1\n"))
    return {"result": RunResult(summary=run_of_scale(path), files=files).model_dump(mode="json")}


def checked(path: Path) -> dict[str, Any]:
    verdict = Verdict(candidate_id="", device="", outcome=Unsupported(message="of the old text"))
    return {"result": CheckResult(kernel=path, verdict=verdict).model_dump(mode="json")}


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """`scale.py`, in a folder whose name every client writes differently."""
    folder = tmp_path / "a (1) + @ü"
    folder.mkdir()
    path, kernel = folder / "scale.py", folder / "scale.cu"
    path.write_text(SCALE)
    kernel.write_text(KERNEL)
    until = {"until": str(folder / "go")}
    write_script(folder / "script", optimize=[until, optimized(path)], check=[until, checked(kernel)])
    return path


def finished(editor: Client) -> list[Any]:
    return [news for news in editor.said("kernelLsp/jobChanged") if news["state"] == "finished"]


async def titles(editor: Client, uri: str) -> list[str]:
    return [lens["command"]["title"] for lens in await editor.at("codeLens", uri)]


async def test_a_result_of_a_text_that_was_edited_meanwhile_is_stale(scale: Path) -> None:
    folder = scale.parent
    async with initialized(folder, VSCODE, APPLIED, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(scale)
        await editor.command("optimize", uri=uri, symbol="scale")
        editor.change(uri, 2, {"text": SCALE.replace("+ 1.0", "+ 2.0")})
        (folder / "go").touch()
        await editor.until(lambda: finished(editor))
        await editor.diagnostics(uri)
        assert any(title.endswith("(stale)") for title in await titles(editor, uri))


async def test_a_file_that_is_gone_at_the_end_is_named(scale: Path) -> None:
    folder = scale.parent
    async with initialized(folder, VSCODE, APPLIED, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(scale)
        await editor.command("optimize", uri=uri, symbol="scale")
        scale.rename(scale.with_name("renamed.py"))
        (folder / "go").touch()
        (said,) = await editor.until(lambda: editor.said("window/showMessage"))
        assert "scale.py, the source of scale, no longer exists" in said["message"]
        assert editor.asked("workspace/applyEdit") or await editor.until(lambda: editor.asked("workspace/applyEdit"))


async def test_a_check_of_a_text_that_was_closed_says_nothing_of_the_one_that_is_open_now(scale: Path) -> None:
    folder, kernel = scale.parent, scale.with_suffix(".cu")
    async with initialized(folder, VSCODE, engine_script=folder / "script", trusted=True) as editor:
        uri = editor.open(kernel)
        await editor.command("check", uri=uri)
        editor.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        editor.open(kernel, KERNEL.replace("+ 1.0f", "+ 2.0f"))
        (folder / "go").touch()
        await editor.until(lambda: finished(editor))
        assert any(title.endswith("of the old text (stale)") for title in await titles(editor, uri))


@pytest.mark.parametrize("safe", ["/", "/()+@&!*'"])
async def test_however_a_client_writes_a_path_a_kernel_s_target_is_its_open_document(scale: Path, safe: str) -> None:
    folder, uri = scale.parent, f"file://{quote(str(scale), safe=safe)}"
    kernel = f"file://{quote(str(scale.with_suffix('.cu')), safe=safe)}"
    async with initialized(folder, VSCODE, engine_script=folder / "script", trusted=True) as editor:
        for each, language, text in ((uri, "python", SCALE), (kernel, "cuda-cpp", KERNEL + "\n// typed\n")):
            item = {"uri": each, "languageId": language, "version": 1, "text": text}
            editor.tell("textDocument/didOpen", {"textDocument": item})
        await editor.diagnostics(kernel)
        actions = await editor.at("codeAction", kernel, 0)
        (command,) = [a["command"] for a in actions if a["title"] == "Optimize this kernel: scale"]
        arguments = {key: command[key] for key in ("command", "arguments")}
        await editor.ask("workspace/executeCommand", arguments)
        news = await editor.until(lambda: editor.said("kernelLsp/jobChanged"))
        assert (news[-1]["uri"], news[-1]["symbol"]) == (uri, "scale")
        (asked,) = await editor.until(lambda: requests_of(folder / "script"))
        assert asked["kernel_text"].endswith("// typed\n")


@pytest.mark.parametrize("uri", ["untitled:Untitled-1", "vscode-remote://host/home/a.py", "git:/w/a.py?x"])
async def test_a_text_that_is_no_file_has_findings_and_nothing_that_would_run(tmp_path: Path, uri: str) -> None:
    async with initialized(tmp_path, VSCODE, trusted=True) as editor:
        item = {"uri": uri, "languageId": "python", "version": 1, "text": SCALE}
        editor.tell("textDocument/didOpen", {"textDocument": item})
        assert [found["code"] for found in await editor.diagnostics(uri)] == ["KL101"]
        assert await titles(editor, uri) == []
        told = await editor.at("hover", uri, SCALE_LINE, 5)
        assert "No estimate: save this text as a file first." in told["contents"]["value"]
        call = {"command": "kernelLsp.optimize", "arguments": [{"uri": uri, "symbol": "scale"}]}
        refused = await editor.reply("workspace/executeCommand", call)
        assert "save it as one first" in refused["error"]["message"]
        kernel = {"uri": f"{uri}.cu", "languageId": "cuda-cpp", "version": 1, "text": KERNEL}
        editor.tell("textDocument/didOpen", {"textDocument": kernel})
        assert await editor.diagnostics(f"{uri}.cu") == []
        assert await titles(editor, f"{uri}.cu") == []
        assert await editor.at("codeAction", f"{uri}.cu", 0) == []


async def test_a_file_that_is_not_there_yet_is_not_estimated(tmp_path: Path) -> None:
    async with initialized(tmp_path, VSCODE, trusted=True) as editor:
        uri = editor.open(tmp_path / "no such folder" / "a.py", SCALE)
        told = await editor.at("hover", uri, SCALE_LINE, 5)
        assert "save this text as a file first" in told["contents"]["value"]


async def test_a_cell_of_a_notebook_that_was_never_saved_is_estimated_from_its_text(tmp_path: Path) -> None:
    cell = f"vscode-notebook-cell:{tmp_path}/n.ipynb#W0"
    (tmp_path / ".kernel-lsp").mkdir()
    write_script(tmp_path / "script", estimate=[{"until": str(tmp_path / "go")}])
    async with initialized(tmp_path, VSCODE, engine_script=tmp_path / "script", trusted=True) as editor:
        notebook = {"uri": (tmp_path / "n.ipynb").as_uri(), "notebookType": "jupyter-notebook", "version": 1}
        item = {"uri": cell, "languageId": "python", "version": 1, "text": SCALE}
        cells = [{"kind": 2, "document": cell}]
        opened = {"notebookDocument": {**notebook, "cells": cells}, "cellTextDocuments": [item]}
        editor.tell("notebookDocument/didOpen", opened)
        assert "Estimating" in str(await editor.at("hover", cell, SCALE_LINE, 5))
        (asked,) = await editor.until(lambda: requests_of(tmp_path / "script"))
        assert asked["cells"] == [SCALE]
